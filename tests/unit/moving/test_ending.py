"""The WAL alone shows which batches Spark completed: everything before the batch that ran last, and nothing else."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from wal_sink.errors import FencedError, HistoryError
from wal_sink.lifecycle.run import Run
from wal_sink.moving.ending import Ending, ending_of, manifest_of
from wal_sink.recovery.inventory import held_batches, marked_through, require_wal
from wal_sink.wal import paths
from wal_sink.wal.records import Release


def ending(place: Place) -> Ending:
    log = log_on(place.wal)
    wal = require_wal(log, "the test")
    _, held = held_batches(log, wal)
    return ending_of(log, held, marked=marked_through(log, "a"), first_batch=wal.first_batch)


def staged(place: Place, run: Run, *, complete: int, runs: int | None = None, end: int = 0) -> None:
    """Complete batches up to `complete`, then stage `runs` without completing it. `end` changes their input."""
    query = place.query()
    list(query.batches(run, complete + 1, end_offset=lambda batch_id: batch_id + end))
    if runs is not None:
        query.start_batch(runs, runs + end)
        query.stage(run, runs)


def roll_back(place: Place, to: int) -> None:
    """Restore the checkpoint to its state after batch `to`."""
    for folder in ("offsets", "commits"):
        names = [name for name in place.checkpoint.list(folder) if int(name) > to]
        place.checkpoint.delete([f"{folder}/{name}" for name in names])


def a_place() -> Place:
    return Place(rows=lambda _: [2])


def test_the_batch_that_ran_last_is_undecided_complete_or_not() -> None:
    for is_complete in (True, False):
        place = a_place()
        staged(place, place.open({"a": Recorder()}), complete=3 if is_complete else 2, runs=None if is_complete else 3)
        assert ending(place) == Ending(2, 3)


def test_a_released_batch_is_complete() -> None:
    place = a_place()
    run = place.open({"a": Recorder()})
    staged(place, run, complete=3)
    run.deliver_all()
    assert ending(place) == Ending(3, None)
    place.wal.delete([paths.marker("a", number) for number in range(4)])
    assert ending(place) == Ending(3, None)


def test_a_wal_that_holds_only_its_first_batch() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=-1, runs=0)
    assert ending(place) == Ending(-1, 0)


def test_after_a_roll_back_batches_of_the_earlier_history_are_given_up() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=4)
    roll_back(place, 0)
    staged(place, place.open({"a": Recorder()}), complete=1, runs=2, end=10)
    assert ending(place) == Ending(1, 2, (3, 4))


def test_also_if_the_new_history_has_delivered_what_it_completed() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=4)
    roll_back(place, 0)
    run = place.open({"a": Recorder()})
    staged(place, run, complete=1, end=10)
    run.deliver_all()
    assert ending(place) == Ending(1, None, (2, 3, 4))
    place.wal.delete([paths.marker("a", number) for number in range(2)])
    assert ending(place) == Ending(1, None, (2, 3, 4))


def test_a_later_start_that_staged_nothing_changes_nothing() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=3)
    end_roles(place.wal)
    place.open({"a": Recorder()})
    assert ending(place) == Ending(2, 3)


def test_an_attempt_without_a_manifest_shows_that_the_batch_before_it_is_complete() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=3)
    place.wal.create(f"{paths.attempt_folder(4, 1, 1)}/000000-0000-a.parquet", b"rows")
    assert ending(place) == Ending(3, None, (4,))


def test_the_manifest_of_an_older_attempt_does_not_make_a_batch_staged() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=3)
    place.open({"a": Recorder()})
    place.wal.create(f"{paths.attempt_folder(3, 2, 1)}/000000-0000-a.parquet", b"rows")
    assert ending(place) == Ending(2, None, (3,))


def test_a_long_backlog_costs_a_listing_a_batch_only_if_a_later_run_may_have_begun_another_history() -> None:
    place = Place(rows=lambda _: [1])
    run = place.open({"a": Recorder()})
    staged(place, run, complete=199)
    points: list[str] = []
    log = log_on(place.wal, lambda what, where: points.append(f"{what} {where}"))
    _, held = held_batches(log, require_wal(log, "the test"))
    points.clear()
    assert ending_of(log, held, marked=-1, first_batch=0) == Ending(198, 199)
    assert len([point for point in points if point.startswith("before")]) <= 4

    place.open({"a": Recorder()})
    points.clear()
    assert ending_of(log, held, marked=-1, first_batch=0) == Ending(198, 199)
    assert len([point for point in points if point.startswith("before list")]) == 201


@pytest.mark.parametrize("is_released", [True, False])
def test_the_manifest_that_counts(is_released: bool) -> None:
    place = a_place()
    run = place.open({"a": Recorder()})
    staged(place, run, complete=0)
    if is_released:
        run.deliver_all()
    log = log_on(place.wal)
    assert (log.find(Release, paths.release(0)) is not None) is is_released
    manifest = manifest_of(log, 0)
    assert manifest is not None
    assert (manifest.batch_id, manifest.rows) == (0, 2)
    assert manifest_of(log, 7) is None


class _Life:
    """A query whose checkpoint is rolled back now and then, and whose runs die in the middle of a batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.place = a_place()
        self.completed: dict[int, str] = {}
        """Batches that Spark completed, with their offsets: those that no later run began anew."""

    def run(self) -> None:
        run = self.place.open({"a": Recorder()})
        query, end = self.place.query(), self.random.choice([0, 1000])
        for _ in range(self.random.randrange(5)):
            batch_id = self.newest("commits") + 1
            query.start_batch(batch_id, batch_id + end)
            if not query.stage(run, batch_id):
                self.completed.setdefault(batch_id, self.offsets(batch_id))
            else:
                self.completed = {each: text for each, text in self.completed.items() if each < batch_id}
            if self.random.random() < 0.2:
                break  # it dies before Spark completes the batch
            query.complete_batch(batch_id)
            self.completed[batch_id] = self.offsets(batch_id)
            if self.random.random() < 0.05:
                run.deliver_all()
        end_roles(self.place.wal)

    def roll_back(self) -> None:
        if self.random.random() < 0.7 and (newest := self.newest("commits")) > 0:
            roll_back(self.place, self.random.randrange(newest + 1))

    def newest(self, folder: str) -> int:
        return max((int(name) for name in self.place.checkpoint.list(folder)), default=-1)

    def offsets(self, batch_id: int) -> str:
        return self.place.checkpoint.read(f"offsets/{batch_id}").decode()


@pytest.mark.parametrize("seed", range(120))
def test_whatever_happened_every_batch_that_counts_was_completed_and_only_one_is_undecided(seed: int) -> None:
    life = _Life(seed)
    for _ in range(5):
        with contextlib.suppress(HistoryError, FencedError):  # a released batch with other input
            life.run()
        life.roll_back()
    log = log_on(life.place.wal)
    if paths.WAL not in life.place.wal.list(""):
        return
    found = ending(life.place)
    for batch_id in range(found.through + 1):
        manifest = manifest_of(log, batch_id)
        assert manifest is not None
        if log.find(Release, paths.release(batch_id)) is None:
            assert life.completed.get(batch_id) == manifest.offsets, batch_id
    for batch_id, text in life.completed.items():
        if batch_id > found.through:
            assert batch_id == found.undecided
            assert (manifest := manifest_of(log, batch_id)) is not None
            assert manifest.offsets == text

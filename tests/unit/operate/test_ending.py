"""The WAL alone shows which batches Spark completed: everything before the batch that ran last, and nothing else."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.house.log import Release, paths
from tests.house.protocol import Run
from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from wal_sink.errors import FencedError, HistoryError
from wal_sink.operate.settle import Ending, ending_of, manifest_of
from wal_sink.protocol.inventory import held_batches, marked_through, require_wal


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


def saved(place: Place) -> dict[str, bytes]:
    """A backup of the checkpoint."""
    return {path: place.checkpoint.read(path) for path in place.checkpoint.list("", recursive=True)}


def bring_back(place: Place, own: dict[str, bytes]) -> None:
    place.checkpoint.delete(place.checkpoint.list("", recursive=True))
    for path, data in own.items():
        place.checkpoint.create(path, data)


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
    assert ending(place) == Ending(1, 2, (3, 4), unclear=(1, 2))  # or its checkpoint came back, and staged nothing yet


def test_a_history_that_came_back_makes_the_batches_in_between_unclear() -> None:
    """Spark completed 0 to 6. An older checkpoint was restored by mistake, and batches 3 and 4 ran with other input.
    Then the newer checkpoint came back, and batch 7 ran.
    """
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=6)
    own = saved(place)
    roll_back(place, 2)
    staged(place, place.open({"a": Recorder()}), complete=3, runs=4, end=100)
    bring_back(place, own)
    assert ending(place) == Ending(3, 4, (5, 6), unclear=(3, 4))
    staged(place, place.open({"a": Recorder()}), complete=7)

    assert ending(place) == Ending(6, 7, unclear=(3, 4, 5, 6))

    run = place.open({"a": Recorder()})
    with pytest.raises(HistoryError, match="under the same id"):
        run.deliver_all()
    assert ending(place) == Ending(6, 7, unclear=(3, 4, 5, 6))


def test_a_history_of_which_the_wal_holds_nothing_cannot_be_seen() -> None:
    """The older checkpoint ran only batches that the newer one had not staged: see ASSUMPTIONS.md."""
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=2)
    own = saved(place)
    staged(place, place.open({"a": Recorder()}), complete=3, runs=4, end=100)
    bring_back(place, own)
    assert ending(place) == Ending(3, 4)

    staged(place, place.open({"a": Recorder()}), complete=2, runs=3)
    assert ending(place) == Ending(2, 3, (4,), unclear=(3,))


def test_terms_that_fall_without_two_manifests_are_unclear_too() -> None:
    """The manifests of the first history are lost."""
    place = a_place()
    run = place.open({"a": Recorder()})
    staged(place, run, complete=6)
    own = saved(place)
    roll_back(place, 2)
    staged(place, place.open({"a": Recorder()}), complete=3, runs=4)
    bring_back(place, own)
    place.wal.delete([paths.manifest(number, 1, number + 1) for number in (3, 4)])
    staged(place, place.open({"a": Recorder()}), complete=7)
    assert ending(place) == Ending(6, 7, unclear=(3, 4, 5, 6))


def test_a_batch_that_was_staged_again_from_the_same_input_is_clear() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=2, runs=3)
    run = place.open({"a": Recorder()})
    place.query().stage(run, 3)
    assert ending(place) == Ending(2, 3)


def test_a_manifest_that_cannot_be_read_may_be_of_any_input() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=2, runs=3)
    place.query().stage(place.open({"a": Recorder()}), 3)
    place.wal.delete([paths.manifest(3, 1, 4)])
    place.wal.create(paths.manifest(3, 1, 4), b"damaged")
    assert ending(place) == Ending(2, 3, unclear=(3,))


def test_a_release_after_a_lost_one_counts() -> None:
    """Sink a, which has all of it, is retired."""
    place = a_place()
    run = place.open({"a": Recorder()})
    staged(place, run, complete=5)
    run.deliver_all()
    place.wal.delete([paths.release(3), *[paths.marker("a", number) for number in range(6)]])
    assert ending(place) == Ending(5, None)


def test_a_release_that_is_collected_meanwhile_is_none() -> None:
    place = a_place()
    run = place.open({"a": Recorder()})
    staged(place, run, complete=3)
    run.deliver_all()
    place.wal.delete([paths.release(0), *[paths.marker("a", number) for number in range(4)]])

    def collect(what: str, where: str) -> None:
        if (what, where) == ("before read", paths.release(3)):
            place.wal.delete([paths.release(3)])

    log = log_on(place.wal, collect)
    _, held = held_batches(log, require_wal(log, "the test"))
    assert ending_of(log, held, marked=-1, first_batch=0) == Ending(2, 3)


def test_batches_of_the_old_history_stay_unclear_after_the_new_one_has_delivered() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=4)
    roll_back(place, 0)
    run = place.open({"a": Recorder()})
    staged(place, run, complete=1, end=10)
    run.deliver_all()
    assert ending(place) == Ending(1, None, (2, 3, 4))  # what was released is clear
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


def test_a_long_backlog_costs_a_listing_a_batch() -> None:
    place = Place(rows=lambda _: [1])
    run = place.open({"a": Recorder()})
    staged(place, run, complete=199)
    points: list[str] = []
    log = log_on(place.wal, lambda what, where: points.append(f"{what} {where}"))
    _, held = held_batches(log, require_wal(log, "the test"))
    for _ in range(2):
        points.clear()
        assert ending_of(log, held, marked=-1, first_batch=0) == Ending(198, 199)
        asked = [point for point in points if point.startswith("before")]
        assert (len(asked), len([point for point in asked if point.startswith("before list")])) == (201, 200)
        place.open({"a": Recorder()})  # a later run that staged nothing


class _Life:
    """A query whose checkpoint is rolled back now and then, and may come back later, and whose runs die in the middle
    of a batch.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.place = a_place()
        self.completed: dict[int, str] = {}
        """Batches that Spark completed, with their offsets: those that no later run began anew."""
        self.backups: list[tuple[dict[str, bytes], dict[int, str]]] = []
        self.is_unseen = False
        """Whether a checkpoint came back, and the WAL has nothing from its query since."""

    def run(self) -> None:
        run = self.place.open({"a": Recorder()})
        query, end = self.place.query(), self.random.choice([0, 1000])
        for _ in range(self.random.randrange(5)):
            batch_id = self.newest("commits") + 1
            query.start_batch(batch_id, batch_id + end)
            is_replay = not query.stage(run, batch_id)
            self.is_unseen = self.is_unseen and is_replay
            if is_replay:
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

    def keep(self) -> None:
        self.backups.append((saved(self.place), dict(self.completed)))

    def come_back(self) -> None:
        own, completed = self.random.choice(self.backups)
        bring_back(self.place, own)
        self.completed, self.is_unseen = dict(completed), True

    def newest(self, folder: str) -> int:
        return max((int(name) for name in self.place.checkpoint.list(folder)), default=-1)

    def offsets(self, batch_id: int) -> str:
        return self.place.checkpoint.read(f"offsets/{batch_id}").decode()


@pytest.mark.parametrize("first", range(0, 120, 20), ids="seeds from {}".format)
def test_every_batch_that_counts_was_completed_and_only_one_is_undecided(first: int) -> None:
    for seed in range(first, first + 20):
        life = _Life(seed)
        for _ in range(5):
            with contextlib.suppress(HistoryError, FencedError):  # a released batch with other input
                life.run()
            life.roll_back()
        if paths.WAL in life.place.wal.list(""):
            assert_true(life, ending(life.place))


def assert_true(life: _Life, found: Ending) -> None:
    """`_assert_true`, with the seed of the life if it is not."""
    try:
        _assert_true(life, found)
    except AssertionError as error:
        error.add_note(f"seed {life.seed}")
        raise


def _assert_true(life: _Life, found: Ending) -> None:
    """Every batch that a drain would deliver was completed with this input, and no other one was completed."""
    log = log_on(life.place.wal)
    for batch_id in range(found.through + 1):
        manifest = manifest_of(log, batch_id)
        assert manifest is not None
        if log.find(Release, paths.release(batch_id)) is None:
            assert batch_id in life.completed
            assert input_of(life.completed[batch_id]) == input_of(manifest.offsets), batch_id
    for batch_id, text in life.completed.items():
        if batch_id > found.through:
            assert batch_id == found.undecided
            assert (manifest := manifest_of(log, batch_id)) is not None
            assert input_of(manifest.offsets) == input_of(text)


def input_of(offsets: str) -> str:
    """The lines of the sources: the same input may have been planned twice."""
    return offsets.split("\n", 2)[2]


@pytest.mark.parametrize("first", range(0, 240, 40), ids="seeds from {}".format)
def test_if_a_newer_checkpoint_comes_back_after_an_older_one_the_wrong_history_is_never_taken_for_clear(
    first: int,
) -> None:
    clear = 0
    for seed in range(first, first + 40):
        life = _brought_back(seed)
        found = _seen_ending(life)
        if found is not None and not found.unclear:
            assert_true(life, found)
            clear += 1
    assert clear >= 3  # that an ending is unclear is no answer to everything


def _brought_back(seed: int) -> _Life:
    """A life in which a newer checkpoint may come back after an older one."""
    life = _Life(seed)
    for _ in range(6):
        life.keep()
        with contextlib.suppress(HistoryError, FencedError):
            life.run()
        life.keep()
        life.roll_back()
        if life.random.random() < 0.4:
            life.come_back()
    return life


def _seen_ending(life: _Life) -> Ending | None:
    """How it ends; None if the WAL cannot show it, since it holds nothing of that."""
    if paths.WAL not in life.place.wal.list("") or life.is_unseen:
        return None
    return ending(life.place)

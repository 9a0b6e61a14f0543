"""How a checkpoint fits a WAL, and what each sink would get twice or never, by the records alone."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.moving.test_copy import memory
from tests.unit.moving.test_ending import roll_back, staged
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import DivergentReplay
from wal_sink.moving.situation import MOST_READ, Batches, Match, QueryFound, look_at_query
from wal_sink.recovery.inventory import require_wal
from wal_sink.recovery.sink_changes import retire
from wal_sink.settings import Settings
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, encode


def look(place: Place, checkpoint: Store | None = None, log: Log | None = None) -> QueryFound:
    log = log or log_on(place.wal)
    return look_at_query(log, require_wal(log, "the test"), Checkpoint(checkpoint or place.checkpoint))


def a_place(batches: int = 4, delivered: int = 2) -> Place:
    """A WAL of two rows a batch. Sink `a` has the first batches."""
    place = Place(rows=lambda _: [2])
    run = place.open({"a": Recorder()})
    place.stream(run, delivered - 1)
    staged(place, run, complete=batches - 1)
    end_roles(place.wal)
    return place


def test_its_own_checkpoint_fits_and_nothing_is_twice_or_never() -> None:
    found = look(a_place())
    assert found.match is Match.SAME
    assert [(share.twice, share.never) for share in found.sinks] == [(Batches(), Batches())]


def test_a_sink_that_was_forgotten_by_hand_gets_nothing_and_may_have_lost_everything_but_its_mark() -> None:
    place = Place(rows=lambda _: [2])
    run = place.open({"a": Recorder(), "b": Recorder()})
    place.stream(run, 1)
    end_roles(place.wal)
    place.wal.create(paths.forgotten("b"), b"")
    assert [share.sink for share in look(place, memory()).sinks] == ["a"]

    place.wal.delete([f"sinks/b/{name}" for name in place.wal.list("sinks/b", recursive=True) if name != "forgotten"])

    assert [share.sink for share in look(place, memory()).sinks] == ["a"]


def test_also_within_a_batch() -> None:
    place = a_place()
    staged(place, place.open({"a": Recorder()}), complete=3, runs=4)
    assert look(place).match is Match.SAME


def test_another_query_would_get_twice_what_a_sink_has_and_never_what_it_lacks() -> None:
    place, new = a_place(), memory()
    assert look(place, new).match is Match.NONE
    new.create("metadata", json.dumps({"id": "another"}).encode())

    found = look(place, new)

    assert (found.match, found.query_id, found.committed) == (Match.OTHER, "another", -1)
    assert [(share.through, share.twice, share.never) for share in found.sinks] == [
        (1, Batches(0, 1, 4), Batches(2, 3, 4))
    ]
    assert (found.ending.through, found.ending.undecided, found.undecided_rows) == (2, 3, 2)
    assert (found.offsets, found.undecided_offsets) == (('{"end": 2}',), ('{"end": 3}',))


def test_with_a_restored_checkpoint_a_new_wal_would_send_twice_what_lies_behind_it() -> None:
    place = a_place(delivered=3)
    roll_back(place, 0)

    found = look(place)

    assert (found.match, found.committed, found.diverged) == (Match.BEHIND, 0, None)
    assert [(share.twice, share.never) for share in found.sinks] == [(Batches(1, 2, 4), Batches())]


def test_batches_that_the_restored_checkpoint_has_and_a_sink_lacks_are_never_unless_they_are_drained() -> None:
    place = a_place(delivered=1)
    run = place.open({"b": Recorder()}, start_from="earliest")
    run.deliver_all()
    end_roles(place.wal)
    roll_back(place, 1)
    shares = {share.sink: share for share in look(place).sinks}
    assert (shares["a"].twice, shares["a"].never) == (Batches(), Batches(1, 1, 2))
    assert (shares["b"].twice, shares["b"].never) == (Batches(2, 3, 4), Batches())


def test_a_batch_that_the_restored_checkpoint_planned_otherwise_is_named() -> None:
    place = a_place(delivered=4)
    roll_back(place, 1)
    place.query().start_batch(2, 2)
    assert look(place).diverged is None
    place.checkpoint.delete(["offsets/2"])
    place.query().start_batch(2, 99)
    assert look(place).diverged == 2


def came_back() -> Place:
    """An older checkpoint was restored by mistake and the query ran; then its own checkpoint came back. No sink has any
    batch after 1.
    """
    place = Place(rows=lambda _: [2])
    run = place.open({"a": Recorder()})
    place.stream(run, 1)
    staged(place, run, complete=5)
    end_roles(place.wal)
    own = {path: place.checkpoint.read(path) for path in place.checkpoint.list("", recursive=True)}
    roll_back(place, 2)
    staged(place, place.open({}), complete=3, runs=4, end=100)
    end_roles(place.wal)
    place.checkpoint.delete(place.checkpoint.list("", recursive=True))
    for path, data in own.items():
        place.checkpoint.create(path, data)
    staged(place, place.open({}), complete=6)
    end_roles(place.wal)
    return place


def test_its_own_checkpoint_does_not_fit_a_wal_that_holds_batches_of_another_history() -> None:
    place = came_back()

    found = look(place)

    assert (found.match, found.diverged, found.ending.unclear) == (Match.DIVERGED, 3, (3, 4, 5))
    assert [(share.twice, share.never) for share in found.sinks] == [(Batches(), Batches())]
    sink = Recorder()
    run = place.open({"a": sink})
    with pytest.raises(DivergentReplay, match="batch 3"):
        run.deliver_all()
    assert set(sink.batches) == {2}


def test_restored_to_its_state_before_these_batches_it_runs_them_again_and_fits() -> None:
    place = came_back()
    roll_back(place, 2)
    assert (look(place).match, look(place).diverged) == (Match.BEHIND, None)

    sink = Recorder()
    place.stream(place.open({"a": sink}), 7)

    assert set(sink.batches) == {2, 3, 4, 5, 6, 7}
    assert look(place).match is Match.SAME


def test_batches_that_every_sink_has_are_not_compared_again() -> None:
    place = a_place(delivered=4)
    entry = place.checkpoint.read("offsets/2")
    place.checkpoint.delete(["offsets/2"])
    place.checkpoint.create("offsets/2", entry.replace(b'"end": 2', b'"end": 99'))
    assert look(place).match is Match.SAME


def test_a_batch_that_runs_now_is_still_being_staged() -> None:
    place = a_place()
    staged(place, place.open({}), complete=3, runs=4)
    place.checkpoint.delete(["offsets/4"])
    place.query().start_batch(4, 99)
    assert look(place).match is Match.SAME


def test_files_that_the_restored_checkpoint_no_longer_tells_are_no_divergence() -> None:
    place = a_place(delivered=4)
    roll_back(place, 1)
    place.checkpoint.delete(["offsets/1"])
    conf = json.dumps({"batchTimestampMs": 7, "conf": {}})
    place.checkpoint.create("offsets/2", f'v1\n{conf}\n{{"logOffset":3}}'.encode())
    assert look(place).diverged is None


def test_a_wal_that_was_restored_from_a_backup_lacks_batches_that_spark_completed() -> None:
    place = a_place()
    for batch_id in (2, 3):
        place.wal.delete(
            [f"{paths.batch(batch_id)}/{name}" for name in place.wal.list(paths.batch(batch_id), recursive=True)]
        )

    found = look(place)

    assert found.match is Match.AHEAD
    assert [(share.twice, share.never) for share in found.sinks] == [(Batches(), Batches(2, 3, 0, is_exact=False))]


def test_a_query_that_goes_on_while_it_is_looked_at_is_not_behind() -> None:
    place = a_place(delivered=4)
    run = place.open({"a": Recorder()})
    batches = place.query().batches(run, 6)
    armed: list[str] = ["armed"]

    def go_on(what: str, where: str) -> None:
        if armed and what == "before list" and where == paths.LOW_WATER:
            armed.clear()
            for _ in batches:
                run.deliver_all()

    assert look(place, log=log_on(place.wal, go_on)).match is Match.SAME
    assert not armed


def test_retired_sinks_and_sinks_of_a_replay_are_not_meant_for_every_batch() -> None:
    place = a_place(delivered=4)
    retire(log_on(place.wal), "a", drop_pending=0, take_over=TakeOver.IF_GONE)
    assert look(place, memory()).sinks == ()


def test_with_a_long_backlog_the_rows_are_a_lower_bound_and_the_requests_bounded() -> None:
    place = Place(rows=lambda _: [1])
    run = place.open({"a": Recorder()}, settings=Settings(chunk_rows=2))
    place.stream(run, 1)
    staged(place, run, complete=299)
    end_roles(place.wal)
    points: list[str] = []

    found = look(place, memory(), log_on(place.wal, lambda what, where: points.append(f"{what} {where}")))

    [share] = found.sinks
    assert share.never == Batches(2, 299, MOST_READ, is_exact=False)
    assert share.never.count == 298
    assert share.twice == Batches(0, 1, 0, is_exact=False)
    asked = [point for point in points if point.startswith("before")]
    listed = [point for point in asked if point.startswith(f"before list {paths.BATCHES}/")]
    assert len(listed) == 298 + MOST_READ + 2  # each batch once; for its rows; for the end of the input
    assert len(asked) - len(listed) < 4 * MOST_READ


def test_damaged_and_lost_manifests_make_the_rows_a_lower_bound() -> None:
    place = a_place(delivered=1)
    log = log_on(place.wal)
    path = paths.manifest(3, 1, 4)
    manifest = log.require(Manifest, path)
    place.wal.delete([path, paths.manifest(2, 1, 3)])
    place.wal.create(path, encode(msgspec.structs.replace(manifest, attempt=9)))

    found = look(place, memory())

    assert [share.never for share in found.sinks] == [Batches(1, 3, 2, is_exact=False)]
    assert (found.undecided_rows, found.undecided_offsets) == (None, ())

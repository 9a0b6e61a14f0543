"""`settle`: a WAL whose checkpoint is lost delivers what it holds, once, and no query goes on from there."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.house.log import TakeOver, paths
from tests.house.operate import AgainstCheckpoint, Check
from tests.house.protocol import Checkpoint, GonePlace, Run
from tests.house.stores import MemoryStore, Store, StoreSpec
from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder, served_sink
from tests.unit.operate.test_ending import bring_back, roll_back, saved, staged
from wal_sink.errors import ConfigError, HeldError, HistoryError
from wal_sink.operate.settle import Settled, settle
from wal_sink.settings import Settings
from wal_sink.testing import Crash, FaultyStore, simulated_runtime

_numbers = itertools.count()
ROWS = [3, 2]


def pending(*, batches: int = 3, delivered: int = 1, stops_at: int | None = None) -> Place:
    """A WAL of complete batches of which sink `a` has the first ones. `stops_at`: Spark did not complete this one."""
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder(), "b": Recorder()})
    place.stream(run, delivered - 1)
    list(place.query().batches(run, batches))
    if stops_at is not None:
        query = place.query()
        query.start_batch(stops_at, stops_at)
        query.stage(run, stops_at)
    run.end()
    end_roles(place.wal)
    return place


def lost() -> Store:
    """The checkpoint of a new query, which took the place of the old one."""
    new = memory()
    new.create("metadata", json.dumps({"id": "a-new-query"}).encode())
    return new


def memory() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://settled-{next(_numbers)}"))


def settled_or_not(
    place: Place, folder: Store, newest: str | None = None, *, checkpoint: Store | None = None
) -> Settled | None:
    """Do the same as the command."""
    log, own = log_on(place.wal), Checkpoint(checkpoint or lost())
    return settle(log, own, folder, newest, take_over=TakeOver.IF_GONE)


def settled(place: Place, folder: Store, newest: str | None = None, *, checkpoint: Store | None = None) -> Settled:
    done = settled_or_not(place, folder, newest, checkpoint=checkpoint)
    assert done is not None
    return done


def drained(place: Place, checkpoint: Store, name: str = "a") -> list[int]:
    """Drain a sink with this checkpoint. Returns the batches that it got."""
    sink = Recorder()
    run = Place(wal=place.wal, checkpoint=checkpoint, rows=place.rows).open({name: sink})  # type: ignore[arg-type]
    run.deliver_all()
    run.end()
    end_roles(place.wal)
    return sorted(set(sink.batches))


# --- what is left is delivered


def test_what_is_left_is_delivered_once_without_the_checkpoint() -> None:
    place, folder = pending(), memory()

    plan = settled(place, folder, "complete")

    assert plan.through == 2
    assert drained(place, folder) == [1, 2]
    assert drained(place, folder) == []
    assert drained(place, folder, "b") == [1, 2]
    assert settled(place, memory()).through == settled(place, folder).through, "a new sink may be served later"
    assert Check(place.wal, comparisons=[AgainstCheckpoint(folder)]).run() == []


def test_the_batch_of_which_nobody_knows_is_left_alone_if_the_new_query_reads_it_again() -> None:
    place, folder = pending(stops_at=3), memory()

    assert settled(place, folder, "incomplete").through == 2

    assert drained(place, folder) == [1, 2]


def test_the_batch_of_which_nobody_knows_is_delivered_if_the_new_query_begins_behind_it() -> None:
    place, folder = pending(stops_at=3), memory()

    assert settled(place, folder, "complete").through == 3

    assert drained(place, folder) == [1, 2, 3]


def test_a_batch_whose_delivery_had_begun_goes_on_where_it_stopped() -> None:
    place, folder = Place(rows=lambda _: [7]), memory()
    first = Recorder()

    def dies(_: object) -> None:
        if len(first.chunks) == 2:
            raise Crash

    first.fail = dies
    run = place.open({"a": first})
    next(place.query().batches(run, 1))
    with pytest.raises(Crash):
        run.deliver_all()
    end_roles(place.wal)

    settled(place, folder)
    second = Recorder()
    Place(wal=place.wal, checkpoint=folder).open({"a": second}).deliver_all()

    assert len(first.keys) == 2
    assert len(set(first.keys + second.keys)) == 4
    assert len(set(first.keys) & set(second.keys)) <= 1


def test_the_old_checkpoint_may_come_back() -> None:
    """Its query runs the undecided batch again: a replay, which no sink gets twice."""
    place, folder = pending(stops_at=3), memory()
    settled(place, folder, "complete")
    assert drained(place, folder) == [1, 2, 3]

    sink = Recorder()
    run = place.open({"a": sink})
    place.stream(run, 4)

    assert sorted(set(sink.batches)) == [4]


def test_a_query_that_spark_does_not_refuse_is_refused_by_the_stager() -> None:
    """Spark itself refuses the offset log: tests/integration/test_settled_checkpoint.py."""
    place, folder = pending(), memory()
    settled(place, folder, "complete")
    run = Place(wal=place.wal, checkpoint=folder).open({"a": Recorder()})

    with pytest.raises(ConfigError, match="made this checkpoint for drains"):
        run.begin_staging(3, planned_ms=7)


# --- histories that were given up


def came_back() -> Place:
    """An older checkpoint was restored by mistake and the query ran; then its own checkpoint came back. No sink has any
    batch after 1.
    """
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    place.stream(run, 1)
    staged(place, run, complete=5)
    end_roles(place.wal)
    own = saved(place)
    roll_back(place, 2)
    staged(place, place.open({}), complete=3, runs=4, end=100)
    end_roles(place.wal)
    bring_back(place, own)
    staged(place, place.open({}), complete=6)
    end_roles(place.wal)
    return place


def test_a_wal_of_two_histories_is_not_settled() -> None:
    """The settlement would deliver batches 3 and 4 of the history that was given up, which no drain with the query's
    own checkpoint does.
    """
    place, folder = came_back(), memory()

    with pytest.raises(ConfigError, match=r"two histories of the query staged batches 3-5, and the WAL does not show"):
        settled(place, folder, "complete")
    with pytest.raises(ConfigError, match=r"is a checkpoint of this WAL.*restore the checkpoint to its state before"):
        settled(place, folder, "complete", checkpoint=place.checkpoint)

    assert folder.list("", recursive=True) == []


def test_a_query_whose_checkpoint_is_restored_to_before_the_settled_batches_runs_them_again() -> None:
    place = came_back()
    with pytest.raises(HistoryError, match="batch 3"):
        place.open({"a": Recorder()}).deliver_all()
    end_roles(place.wal)
    roll_back(place, 2)

    sink = Recorder()
    place.stream(place.open({"a": sink}), 7)

    assert set(sink.batches) == {3, 4, 5, 6, 7}


def test_the_checkpoint_for_drains_is_not_replaced() -> None:
    place, folder = pending(stops_at=3), memory()
    settled(place, folder, "incomplete")

    with pytest.raises(ConfigError, match="So run a drain with this checkpoint"):
        settled(place, memory(), "complete", checkpoint=folder)


def test_a_wal_whose_query_went_on_since_is_settled_anew() -> None:
    place, folder, second = pending(), memory(), memory()
    settled(place, folder, "complete")
    list(place.query().batches(place.open({}), 5))
    end_roles(place.wal)

    assert settled(place, second, "complete", checkpoint=folder).through == 4
    assert drained(place, second) == [1, 2, 3, 4]


# --- killed


def test_killed_at_any_request_to_the_folder_the_same_command_completes_it() -> None:
    points: list[str] = []
    settled(pending(), FaultyStore(memory(), lambda what, where: points.append(f"{what} {where}")), "complete")
    assert len(points) == 9
    for number in range(len(points)):
        place, folder, left = pending(), memory(), iter(range(number))

        def die(_what: str, _where: str, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise Crash

        with pytest.raises(Crash):
            settled(place, FaultyStore(folder, die), "complete")
        assert_as_before_or_after(place, folder)
        settled(place, folder, "complete")
        assert drained(place, folder) == [1, 2]


def assert_as_before_or_after(place: Place, folder: Store) -> None:
    """A drain is refused or delivers everything, a query is refused, and the WAL has no finding."""
    entries = folder.list("", recursive=True)
    assert not entries or "offsets/3" in entries, "Spark would go on behind what the folder holds, without its state"
    has_id = "metadata" in folder.list("")
    if has_id:
        assert drained(place, folder, "b") == [1, 2]
    else:
        with pytest.raises(HistoryError, match="no query yet"):
            drained(place, folder)
    assert Check(place.wal, comparisons=[AgainstCheckpoint(place.checkpoint)]).run() == []


def test_a_query_whose_checkpoint_came_back_loses_and_doubles_nothing() -> None:
    place, folder, sink = pending(), memory(), Recorder()
    settled(place, folder, "complete")
    assert drained(place, folder) == [1, 2]

    place.stream(place.open({"a": sink}), 3)

    assert sorted(set(sink.batches)) == [3]


def test_a_wal_that_no_sink_ever_served_is_settled_for_a_new_one() -> None:
    place, folder = Place(rows=lambda _: ROWS), memory()
    list(place.query().batches(place.open({}), 2))
    end_roles(place.wal)

    settled(place, folder, "complete")

    sink = Recorder()
    run = Place(wal=place.wal, checkpoint=folder).open({"new": sink}, start_from="earliest")
    run.deliver_all()
    assert sorted(set(sink.batches)) == [0, 1]


# --- refused


def test_a_decision_that_nobody_can_make_for_the_user_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"completed batch 2 \(5 rows\).*source 0: .*after batch 1 \(source 0: "):
        settled(pending(), memory())


def test_a_decision_against_what_the_wal_shows_is_refused() -> None:
    place = pending()
    run = place.open({"a": Recorder()})
    run.deliver_all()
    end_roles(place.wal)
    with pytest.raises(ConfigError, match=r"Spark completed batch 2, its newest one\. Leave out --newest"):
        settled(place, memory(), "incomplete")
    assert settled(place, memory()).through == 2
    assert settled(place, memory(), "complete").through == 2


def test_a_wal_whose_newest_checkpoint_is_given_is_not_settled() -> None:
    place = pending()
    with pytest.raises(ConfigError, match="is a checkpoint of this WAL, and is not older than the WAL"):
        settled(place, memory(), checkpoint=place.checkpoint)


def test_where_no_batch_was_staged_or_none_is_complete_there_is_nothing_to_settle() -> None:
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    query = place.query()
    query.start_batch(0, 0)
    run.begin_staging(0, planned_ms=query.planned_ms(0))  # killed before its manifest
    end_roles(place.wal)
    assert settled_or_not(place, memory()) is None
    query.stage(place.open({"a": Recorder()}), 0)
    end_roles(place.wal)
    with pytest.raises(ConfigError, match="no batch of this WAL is certainly complete"):
        settled(place, memory(), "incomplete")


@pytest.mark.parametrize("path", ["metadata", "offsets/1", "state/0", "commits/2"])
def test_a_folder_that_holds_anything_else_is_refused_and_so_is_the_wal(path: str) -> None:
    place, folder = pending(), memory()
    folder.create(path, b"{}")
    with pytest.raises(ConfigError, match="this folder is not empty"):
        settled(place, folder, "complete")
    assert folder.list("", recursive=True) == [path]
    with pytest.raises(ConfigError, match="one lies inside the other"):
        settled(place, place.wal, "complete")


def test_a_folder_that_another_process_fills_at_the_same_time_is_refused() -> None:
    place, folder = pending(), memory()

    def fill(what: str, where: str) -> None:
        if (what, where) == ("before create", "commits/2"):
            folder.create("commits/2", b"v1\n{}")

    with pytest.raises(ConfigError, match="another process has just written commits/2"):
        settled(place, FaultyStore(folder, fill), "complete")


def test_settling_is_refused_while_a_process_serves_the_wal() -> None:
    place = pending()
    place.open({"a": Recorder()})
    with pytest.raises(HeldError, match="is running on this machine"):
        settled(place, memory(), "complete")


def test_a_wal_that_lost_its_place_and_its_checkpoint_is_settled_and_then_moved() -> None:
    place, copy, folder = pending(), Place(), memory()
    for name in place.wal.list("", recursive=True):
        copy.wal.create(name, place.wal.read(name))
    place.wal.delete(place.wal.list("", recursive=True))

    settled(copy, folder, "complete")

    with pytest.raises(ConfigError, match="Two copies of one WAL"):
        drained(copy, folder)
    run, sink = Run(copy.wal, folder, Settings(chunk_rows=2), runtime=simulated_runtime()), Recorder()
    run.open([served_sink(run, "a", sink)], moved_from=GonePlace(place.wal.root))
    run.deliver_all()
    assert sorted(set(sink.batches)) == [1, 2]


def test_a_restored_checkpoint_is_left_and_its_wal_settled() -> None:
    """The restored query is not started again: a new one begins behind batch 2."""
    place, folder = pending(delivered=2), memory()
    for path in ("commits/1", "commits/2", "offsets/2"):
        place.checkpoint.delete([path])

    assert settled(place, folder, "complete", checkpoint=place.checkpoint).through == 2
    assert drained(place, folder) == [2]


def test_a_lost_or_damaged_manifest_of_the_newest_batch_is_told_without_its_rows() -> None:
    place = pending(delivered=1)
    path = next(f"{paths.batch(2)}/{name}" for name in place.wal.list(paths.batch(2)) if name.startswith("manifest"))
    place.wal.delete([path])
    place.wal.create(path, b"no record")
    with pytest.raises(
        ConfigError, match=r"completed batch 2\. Add --newest complete if the new query begins after this batch:"
    ):
        settled(place, memory())


def test_where_the_newest_batch_was_marked_and_its_objects_are_gone_the_rest_is_delivered() -> None:
    place, folder = pending(), memory()
    place.open({"a": Recorder()}).deliver_all()
    end_roles(place.wal)
    place.wal.delete([f"{paths.batch(2)}/{name}" for name in place.wal.list(paths.batch(2), recursive=True)])

    assert settled(place, folder) == Settled(2, ())
    assert set(folder.list("", recursive=True)) == {"metadata", "commits/2", "offsets/3"}

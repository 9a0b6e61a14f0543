"""`adopt --settle`: a WAL whose checkpoint is lost delivers what it holds, once, and no query goes on from there."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.moving.test_copy import memory
from tests.unit.moving.test_situation import came_back
from wal_sink.checking.against_checkpoint import AgainstCheckpoint
from wal_sink.checking.verify import Check
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import ConfigError, HeldError, HistoryError
from wal_sink.moving import settlement
from wal_sink.moving.adopt import SettlePlan, is_settled, is_whole, plan_settle, settle, settle_order
from wal_sink.moving.ending import manifest_of
from wal_sink.moving.settlement import FolderState
from wal_sink.moving.situation import Match, QueryFound, look_at_query
from wal_sink.recovery.inventory import require_wal
from wal_sink.repair.journal import Order, begin, find_unfinished, read_journal
from wal_sink.stores.base import Store
from wal_sink.testing import Crash, FaultyStore
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log

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


def look(place: Place, checkpoint: Store) -> QueryFound:
    log = log_on(place.wal)
    return look_at_query(log, require_wal(log, "the test"), Checkpoint(checkpoint))


def settled(
    place: Place, folder: Store, newest: str | None = None, *, log: Log | None = None, checkpoint: Store | None = None
) -> SettlePlan:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    order = settle_order(folder, newest, why="the disk is gone")
    entry = find_unfinished(log, order)
    plan = SettlePlan(**entry.plan) if entry else plan_settle(look(place, checkpoint or lost()), folder, newest)
    return SettlePlan(**settle(log, order, plan, folder, take_over=TakeOver.IF_GONE).plan)


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
    assert is_settled(look(place, lost()))
    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.begun.why, entry.result) == ("done", "the disk is gone", {"through": 2})
    assert list(Check(place.wal, comparisons=[AgainstCheckpoint(folder)]).run()) == []


def test_the_batch_of_which_nobody_knows_is_left_alone_if_the_new_query_reads_it_again() -> None:
    place, folder = pending(stops_at=3), memory()

    assert settled(place, folder, "incomplete").through == 2

    assert drained(place, folder) == [1, 2]


def test_and_is_delivered_if_the_new_query_begins_behind_it() -> None:
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


def test_a_wal_of_two_histories_is_not_settled() -> None:
    """The settlement would deliver batches 3 and 4 of the history that was given up, which no drain with the query's
    own checkpoint does.
    """
    place, folder = came_back(), memory()

    with pytest.raises(ConfigError, match=r"two histories of the query staged batches 3-5, and the WAL does not show"):
        settled(place, folder, "complete")
    with pytest.raises(ConfigError, match=r"the WAL holds batch 3 with other input than "):
        settled(place, folder, "complete", checkpoint=place.checkpoint)

    assert folder.list("", recursive=True) == []
    assert read_journal(log_on(place.wal)) == []


def test_the_checkpoint_for_drains_is_not_taken_for_the_query_s_own() -> None:
    place, folder = pending(stops_at=3), memory()
    settled(place, folder, "incomplete")

    found = look(place, folder)

    assert (found.match, found.committed) == (Match.FOR_DRAINS, 2)
    assert [(share.sink, share.never.count) for share in found.sinks] == [("a", 3), ("b", 3)]
    with pytest.raises(ConfigError, match=r"made .* for drains, and a drain delivers what is left with it"):
        plan_settle(found, memory(), "complete")


def test_if_the_query_went_on_since_it_is_settled_anew() -> None:
    place, folder, second = pending(), memory(), memory()
    settled(place, folder, "complete")
    list(place.query().batches(place.open({}), 5))
    end_roles(place.wal)

    assert settled(place, second, "complete", checkpoint=folder).through == 4
    assert drained(place, second) == [1, 2, 3, 4]


# --- killed


def test_killed_at_any_request_to_the_wal_the_same_command_completes_it() -> None:
    folders: dict[int, Store] = {}

    def make() -> Place:
        place = pending()
        folders[id(place)] = memory()
        return place

    def act(log: Log, place: Place) -> None:
        settled(place, folders[id(place)], "complete", log=log)

    for place in killed_everywhere(make, lambda place: place.wal, act):
        folder = folders[id(place)]
        assert_as_before_or_after(place, folder)
        settled(place, folder, "complete")
        assert drained(place, folder) == [1, 2]


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
    """A drain is refused or delivers everything, and the WAL has no finding."""
    has_id = "metadata" in folder.list("")
    if has_id:
        assert drained(place, folder, "b") == [1, 2]
    else:
        with pytest.raises(HistoryError, match="no query yet"):
            drained(place, folder)
    assert list(Check(place.wal, comparisons=[AgainstCheckpoint(place.checkpoint)]).run()) == []


@pytest.mark.parametrize("is_written", [False, True])
def test_a_query_beside_an_unfinished_settlement_loses_and_doubles_nothing(*, is_written: bool) -> None:
    """Its checkpoint came back, or it was never lost."""
    place, folder = pending(), memory()
    log = log_on(place.wal)
    plan = SettlePlan(folder.root, 2, "gone", "none")
    begin(log, settle_order(folder, "complete", why=""), asdict(plan))
    if is_written:
        settlement.write(folder, files(log, 2), log.runtime)
        assert drained(place, folder) == [1, 2]
    sink = Recorder()
    place.stream(place.open({"a": sink}), 3)
    end_roles(place.wal)

    assert sorted(set(sink.batches)) == ([3] if is_written else [1, 2, 3])
    settled(place, folder, "complete")
    assert drained(place, folder) == []


def test_a_wal_that_no_sink_ever_served_is_settled_for_a_new_one() -> None:
    place, folder = Place(rows=lambda _: ROWS), memory()
    list(place.query().batches(place.open({}), 2))
    end_roles(place.wal)
    assert not is_settled(look(place, lost()))

    settled(place, folder, "complete")

    sink = Recorder()
    run = Place(wal=place.wal, checkpoint=folder).open({"new": sink}, start_from="earliest")
    run.deliver_all()
    assert sorted(set(sink.batches)) == [0, 1]


# --- refused


def test_a_decision_that_nobody_can_make_for_the_user_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="nobody knows whether Spark completed batch 2"):
        settled(pending(), memory())


def test_where_the_wal_shows_it_no_decision_is_taken() -> None:
    place = pending()
    run = place.open({"a": Recorder()})
    run.deliver_all()
    end_roles(place.wal)
    with pytest.raises(ConfigError, match=r"Spark completed batch 2, its newest one\. Leave out --newest"):
        settled(place, memory(), "incomplete")
    assert settled(place, memory()).through == 2
    assert settled(place, memory(), "complete").through == 2


def test_with_its_own_checkpoint_it_is_drained_as_always() -> None:
    place = pending()
    with pytest.raises(ConfigError, match="Leave out --settle"):
        settled(place, memory(), checkpoint=place.checkpoint)


def test_without_any_complete_batch_there_is_nothing_to_deliver() -> None:
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    end_roles(place.wal)
    with pytest.raises(ConfigError, match="no batch of this WAL is certainly complete"):
        settled(place, memory(), "incomplete")


@pytest.mark.parametrize("path", ["metadata", "offsets/1", "state/0", "commits/2"])
def test_a_folder_that_holds_anything_else_is_refused(path: str) -> None:
    place, folder = pending(), memory()
    folder.create(path, b"{}")
    with pytest.raises(ConfigError, match="this folder is not empty"):
        settled(place, folder, "complete")
    assert folder.list("", recursive=True) == [path]
    assert read_journal(log_on(place.wal)) == []


def test_a_folder_within_the_wal_is_refused() -> None:
    place = pending()
    with pytest.raises(ConfigError, match="one lies inside the other"):
        settled(place, place.wal, "complete")


def test_a_folder_that_another_process_fills_at_the_same_time_is_refused() -> None:
    place, folder = pending(), memory()
    log = log_on(place.wal)
    wal = require_wal(log, "the test")
    files = settlement.files_of(wal, 2, None)
    folder.create("commits/2", b"v1\n{}")
    with pytest.raises(ConfigError, match="another process has just written commits/2"):
        settlement.write(folder, files, log.runtime)


def test_beside_a_process_that_serves_the_wal_it_is_refused() -> None:
    place = pending()
    place.open({"a": Recorder()})
    with pytest.raises(HeldError, match="is running on this machine"):
        settled(place, memory(), "complete")
    assert read_journal(log_on(place.wal)) == []


def test_another_unfinished_adoption_is_completed_first() -> None:
    place, folder = pending(), memory()
    begin(log_on(place.wal), settle_order(memory(), "complete", why=""), {})
    with pytest.raises(HeldError, match="wal-sink adopt WAL --settle"):
        settled(place, folder, "complete")


def test_a_repair_of_a_sink_may_be_unfinished() -> None:
    place, folder = pending(), memory()
    begin(log_on(place.wal), Order("skip", {}, ("terms/committer-a/",)), {})
    assert settled(place, folder, "complete").through == 2


def test_a_checkpoint_that_is_there_is_seen() -> None:
    place, folder = pending(), memory()
    plan = settled(place, folder, "complete")
    log = log_on(place.wal)
    wal = require_wal(log, "the test")
    assert is_whole(log, wal, plan, folder)
    folder.delete(["metadata"])
    assert settlement.state_of(folder, place.wal, files(log, plan.through)) is FolderState.PART
    assert settlement.state_of(memory(), place.wal, files(log, plan.through)) is FolderState.EMPTY


def files(log: Log, through: int) -> dict[str, bytes]:
    return settlement.files_of(require_wal(log, "the test"), through, manifest_of(log, through))


def test_a_restored_checkpoint_is_left_and_its_wal_settled() -> None:
    """The restored query is not started again: a new one begins behind batch 2."""
    place, folder = pending(delivered=2), memory()
    for path in ("commits/1", "commits/2", "offsets/2"):
        place.checkpoint.delete([path])
    found = look(place, place.checkpoint)
    assert (found.match, found.committed, found.ending.through) == (Match.BEHIND, 0, 1)

    plan = settled(place, folder, "complete", checkpoint=place.checkpoint)

    assert (plan.through, plan.match) == (2, "behind")
    assert drained(place, folder) == [2]

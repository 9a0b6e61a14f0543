"""`catch-up` of a commit sink: a table that was rolled back, or is an older copy, gets what it does not show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.house.log import Log, TakeOver, paths
from tests.house.operate import AgainstTarget, Check, changes_of, plan_skip, read_changes, retire, skip, skip_order
from tests.house.sinks import BatchCommit, CommitPosition, CommitSink, SinkContext, StagedSegment, as_sink
from tests.support.forgetting import Forgetful, Target
from tests.support.lake import Lake, LakeSink, LostRaceError
from tests.support.repairs import end_roles, killed_everywhere, log_on, remade
from tests.support.small_run import Place, Recorder, numbers
from wal_sink.errors import ConfigError, DeliveryError, FencedError, HistoryError
from wal_sink.operate.catch_up import CaughtUp, catch_up
from wal_sink.operate.catch_up_plan import (
    CatchUpPlan,
    catch_up_order,
    find_unfinished,
    holder_name,
    plan_catch_up,
    planned_catch_up,
)
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import Crash

ROWS = [2, 1]


@dataclass
class World:
    """A WAL of which the sink `a` delivered batches into a table, and nobody serves it."""

    lake: Lake = field(default_factory=Lake)
    place: Place = field(default_factory=lambda: Place(rows=lambda _: ROWS))
    late: list[BatchCommit] = field(default_factory=list)
    """Each commit, as a call that stands still may send it at any later time."""

    def deliver(self, through: int) -> None:
        self.place.stream(self.place.open({"a": _Noting(self.lake, self.late)}), through)
        end_roles(self.place.wal)

    def goes_on(self, through: int, *, lacks: Sequence[int] = ()) -> None:
        """A live query goes on, and every row is there once."""
        self.deliver(through)
        assert self.lake.rows() == rows_of(*(number for number in range(through + 1) if number not in lacks))

    def plan(self, to: object = None, *, log: Log | None = None, **more: Any) -> CatchUpPlan:
        return plan_catch_up(log or log_on(self.place.wal), "a", as_sink(to or LakeSink(self.lake)), **more)

    def catch_up(
        self, to: CommitSink | None = None, *, log: Log | None = None, policies: Any = None, **more: Any
    ) -> CaughtUp:
        """Do the same as the command."""
        log, to = log or log_on(self.place.wal), to or LakeSink(self.lake)
        order = catch_up_order(
            log, "a", to, why="rolled back", is_empty=more.get("is_empty", False), leave_out=more.get("leave_out", ())
        )
        begun = find_unfinished(log, order)
        plan = planned_catch_up(begun) if begun else self.plan(to, log=log, **more)
        delivery = Delivery(to, **(policies or {}))
        return catch_up(log, order, plan, to, delivery=delivery, take_over=TakeOver.IF_GONE)

    def faults(self) -> list[object]:
        return list(Check(self.place.wal, comparisons=[AgainstTarget(LakeSink(self.lake), "a")]).run())

    def collect(self, through: int) -> None:
        """The batches up to this one are deleted, as after every sink had them."""
        log_on(self.place.wal).raise_low_water(through)
        for batch_id in range(through + 1):
            names = self.place.wal.list(paths.batch(batch_id), recursive=True)
            self.place.wal.delete([f"{paths.batch(batch_id)}/{name}" for name in names])


class _Noting(LakeSink):
    """Notes each commit that it makes."""

    def __init__(self, lake: Lake, noted: list[BatchCommit]) -> None:
        super().__init__(lake)
        self.noted = noted
        self.driver_only = True  # a copy would note elsewhere

    def commit(self, batch: BatchCommit) -> None:
        self.noted.append(batch)
        super().commit(batch)


class _Watched(LakeSink):
    """Tells each call before and after its effect."""

    def __init__(self, lake: Lake, tell: Callable[[str], None]) -> None:
        super().__init__(lake)
        self.tell = tell
        self.driver_only = True

    def open(self, context: SinkContext) -> None:
        self.tell("before open")
        super().open(context)

    def prepare(self, segment: StagedSegment) -> str:
        self.tell("before prepare")
        handle = super().prepare(segment)
        self.tell("after prepare")
        return handle

    def position(self) -> CommitPosition | None:
        self.tell("before position")
        return super().position()

    def commit(self, batch: BatchCommit) -> None:
        self.tell("before commit")
        super().commit(batch)
        self.tell("after commit")


def rows_of(*batches: int) -> list[dict[str, Any]]:
    return [row for batch_id in batches for count in ROWS for row in numbers(batch_id, count).to_pylist()]


def rolled_back(version: int = 2) -> World:
    """Batches 0 to 3 are in versions 1 to 4. The table shows an earlier version."""
    world = World()
    world.deliver(3)
    world.lake.restore(version)
    return world


def of_a_backup(version: int = 2) -> World:
    """The table as a whole is an older copy."""
    world = World()
    world.deliver(3)
    del world.lake.versions[version + 1 :]
    return world


# --- killed, and what wakes up meanwhile


def arrive_late(world: World) -> None:
    """Commits of the process before the rollback, which stood still, reach the target. It may take the next batch."""
    late = LakeSink(world.lake)
    late.slot = next(iter(world.lake.versions[-1].positions))
    for commit in world.late[:4]:
        with suppress(LostRaceError):
            late.commit(commit)


def a_live_query_wakes_up(world: World) -> None:
    """Its late commits arrive, then it starts again: it delivers behind all rows, or not at all."""
    arrive_late(world)
    rows = world.lake.rows()
    assert rows in [rows_of(*range(count)) for count in range(5)]
    try:
        world.deliver(4)
    except HistoryError as error:
        said = str(error)
    else:
        said = ""
    end_roles(world.place.wal)
    if said:
        assert "wal-sink catch-up WAL --name SINK --to TARGET --why TEXT" in said
        assert world.lake.rows() == rows != rows_of(0, 1, 2, 3)
    else:
        assert world.lake.rows() == rows_of(0, 1, 2, 3, 4)


def test_killed_at_any_request_with_a_live_process_in_between_every_row_is_there_once() -> None:
    worlds = killed_everywhere(
        remade(rolled_back), lambda world: world.place.wal, lambda log, world: world.catch_up(log=log)
    )
    seen = set()
    for world in worlds:
        a_live_query_wakes_up(world)
        world.catch_up()
        seen.add(len(world.lake.rows()))
        world.goes_on(5)
        assert world.faults() == []
        outcomes = [change.outcome for change in changes_of(log_on(world.place.wal), "a", "a")]
        assert outcomes[-1] == "done"
    assert seen == {12, 15}, "before and after the live process could go on"


@pytest.mark.parametrize("make", [rolled_back, of_a_backup])
def test_killed_at_any_call_of_the_target_with_a_live_process_in_between_every_row_is_there_once(
    make: Callable[[], World],
) -> None:
    points: list[str] = []
    world = make()
    world.catch_up(_Watched(world.lake, points.append))
    assert len(points) > 20
    for number in range(len(points)):
        world, count = make(), itertools.count()

        def tell(_what: str, count: Any = count, number: int = number) -> None:
            if next(count) == number:
                raise Crash

        with pytest.raises(Crash):
            world.catch_up(_Watched(world.lake, tell))
        end_roles(world.place.wal)
        a_live_query_wakes_up(world)
        world.catch_up()
        world.goes_on(5)


@pytest.mark.parametrize("call", range(20))
def test_late_commits_of_the_process_before_change_nothing_at_any_call(call: int) -> None:
    """They arrive while the catch-up works."""
    world, count = rolled_back(), itertools.count()

    def tell(_what: str) -> None:
        if next(count) == call:
            arrive_late(world)

    world.catch_up(_Watched(world.lake, tell))
    assert next(count) > call
    world.goes_on(5)


def completed(world: World) -> None:
    """Repeat the command; if it is refused, do first what it says."""
    with suppress(ConfigError):
        world.catch_up()
        return
    name = holder_name(read_changes(log_on(world.place.wal), "a")[-1])
    retire(log_on(world.place.wal), name, drop_pending=0, take_over=TakeOver.IF_GONE, why="")
    end_roles(world.place.wal)
    world.catch_up()


@pytest.mark.parametrize("version", [0, 1, 2, 4])
@pytest.mark.parametrize("call", range(20))
def test_a_table_that_is_rolled_back_again_at_any_call_is_not_taken_for_whole(call: int, version: int) -> None:
    world, count = rolled_back(), itertools.count()

    def tell(_what: str) -> None:
        if next(count) == call:
            world.lake.restore(version)

    with suppress(HistoryError, DeliveryError, ConfigError):
        world.catch_up(_Watched(world.lake, tell))
    if world.lake.rows() != rows_of(0, 1, 2, 3):
        with pytest.raises(HistoryError):
            world.deliver(4)
        end_roles(world.place.wal)
        completed(world)
    end_roles(world.place.wal)
    world.goes_on(5)


# --- what is sent


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("make", [rolled_back, of_a_backup])
def test_a_table_gets_exactly_what_it_does_not_show_one_commit_a_batch(
    version: int, make: Callable[[int], World]
) -> None:
    world = make(version)
    before, is_empty = world.lake.commits, make is of_a_backup and version == 0

    done = world.catch_up(is_empty=is_empty)

    assert world.lake.rows() == rows_of(0, 1, 2, 3)
    assert (done.batches, done.rows, world.lake.commits - before) == (4 - version, 3 * (4 - version), 4 - version)
    assert world.faults() == []
    world.goes_on(5)


def test_the_plan_names_what_the_target_shows_and_so_does_the_record() -> None:
    world = rolled_back(2)
    objects = world.place.wal.list("", recursive=True)

    plan = world.plan()

    assert (plan.batches, plan.held_through, plan.is_behind) == (((2, 3), (3, 3)), 1, True)
    assert plan.position == "batch 3, which it does not show; it shows batch 1"
    assert world.place.wal.list("", recursive=True) == objects
    world.catch_up()
    [record] = read_changes(log_on(world.place.wal), "a")
    assert planned_catch_up(record) == plan


def test_a_sink_that_delivered_nothing_has_an_empty_plan() -> None:
    world = World()
    list(world.place.query().batches(world.place.open({"a": LakeSink(world.lake)}), 1))
    end_roles(world.place.wal)

    assert (world.plan().batches, world.plan().position) == ((), "nothing")
    assert world.catch_up().batches == 0


@pytest.mark.parametrize("version", [2, 3])
def test_a_batch_that_was_rolled_back_before_its_marker_is_the_sinks_next_one(version: int) -> None:
    world = World()
    world.deliver(3)
    world.place.wal.delete([paths.marker("a", 3)])
    world.lake.restore(version)

    assert world.catch_up().batches == 3 - version
    world.goes_on(5)


class _LosesAnswers(LakeSink):
    def commit(self, batch: BatchCommit) -> None:
        super().commit(batch)
        if batch.batch_id > 1:
            raise ConnectionError("no answer")


@pytest.mark.parametrize("is_rolled_back", [True, False])
def test_a_roll_that_was_committed_and_not_marked_is_known_or_comes_back(is_rolled_back: bool) -> None:
    world = World()
    rolled = Delivery(_LosesAnswers(world.lake), roll_s=60, retry=Retry(attempts=1))
    run = world.place.open({"a": rolled})
    world.place.stream(run, 1)
    for _ in world.place.query().batches(run, 5):
        continue
    run.gate.search()
    with pytest.raises(DeliveryError):
        run.deliver_all()
    end_roles(world.place.wal)
    assert (world.lake.commits, run.committers[0].marked_through) == (3, 1)
    if is_rolled_back:
        world.lake.restore(2)
    assert world.plan().batches == ()
    world.place.open({"a": replace(rolled, to=LakeSink(world.lake))}).deliver_all()
    assert world.lake.rows() == rows_of(0, 1, 2, 3, 4)
    assert world.faults() == []


def test_a_table_that_is_back_at_the_state_before_a_catch_up_lacks_nothing() -> None:
    """The commits of the catch-up are gone, and the ones before it are there again: newer than the position."""
    world = rolled_back(2)

    def tell(what: str) -> None:
        if what == "after commit":
            raise Crash

    with suppress(Crash):
        world.catch_up(_Watched(world.lake, tell))
    end_roles(world.place.wal)
    world.lake.restore(4)

    assert world.catch_up().batches == 0
    world.goes_on(5)


def test_a_query_that_starts_meanwhile_ends_it() -> None:
    world = rolled_back()

    def tell(what: str) -> None:
        if what == "before commit":
            world.place.open({"a": LakeSink(world.lake)}, stages=False)

    with pytest.raises(FencedError):
        world.catch_up(_Watched(world.lake, tell))


# --- refused


def test_a_table_without_a_position_is_refused_unless_the_user_says_that_it_is_empty() -> None:
    world = World()
    world.deliver(1)
    world.lake.versions[:] = Lake().versions

    with pytest.raises(ConfigError, match="holds no position of sink 'a'"):
        world.plan()
    assert world.catch_up(is_empty=True).rows == 6
    world.goes_on(2)


def test_a_table_that_is_ahead_or_of_another_history_is_refused() -> None:
    world = World()
    world.deliver(1)
    slot, (position, number) = next(iter(world.lake.versions[-1].positions.items()))

    world.lake.versions[-1].positions[slot] = replace(position, batch_id=3), number
    with pytest.raises(HistoryError, match="is ahead, at batch 3"):
        world.plan()
    world.lake.versions[-1].positions[slot] = replace(position, digest="0" * 15), number
    with pytest.raises(HistoryError, match=r"with digest 0{15}, but the WAL delivers .* or it has another history"):
        world.plan()


def test_a_target_of_another_kind_is_refused() -> None:
    world = rolled_back()
    for to, kind in ((Recorder(), "plain"), (Forgetful(Target()), "transactional")):
        with pytest.raises(ConfigError, match=f"is a {kind} target, but sink 'a' is a commit one"):
            world.plan(to)


def test_a_table_that_got_rows_by_another_sink_since_is_refused() -> None:
    world = rolled_back()
    again = Delivery(LakeSink(world.lake), start_from=2, same_target=True)
    world.place.open({"b": again}, stages=False).deliver_all()
    end_roles(world.place.wal)

    with pytest.raises(ConfigError, match=r"sink 'b' .* also delivered batch 2 or a later one"):
        world.plan()
    world.lake.restore(2)
    assert world.plan().others == ("b",)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ({"on_rejected": "dead_letter"}, "on_rejected='dead_letter'"),
        ({"rows_per_s": 5.0}, "rows_per_s=5"),
        ({"max_concurrency": 1}, "max_concurrency=1"),
    ],
)
def test_policies_that_a_commit_cannot_keep_are_refused_before_anything_is_written(
    policy: dict[str, Any], named: str
) -> None:
    world = rolled_back()
    objects = world.place.wal.list("", recursive=True)
    with pytest.raises(ConfigError, match=named):
        world.catch_up(policies=policy)
    assert world.place.wal.list("", recursive=True) == objects


# --- batches that cannot be sent


def test_batches_that_were_deleted_are_left_out_only_if_the_user_says_so() -> None:
    world = rolled_back(1)
    world.collect(2)

    with pytest.raises(ConfigError, match=r"batches 1-2 were deleted from the log.*--leave-out 1-2$"):
        world.plan()
    assert world.catch_up(leave_out=[1, 2]).batches == 1
    assert world.lake.rows() == rows_of(0, 3)
    world.goes_on(4, lacks=(1, 2))


def test_a_catch_up_with_nothing_left_to_send_is_refused() -> None:
    world = rolled_back(1)
    world.collect(3)

    with pytest.raises(ConfigError, match="there is nothing to send"):
        world.catch_up(leave_out=[1, 2, 3])


class _Refusing(LakeSink):
    def commit(self, batch: BatchCommit) -> None:
        raise PermissionError(f"no batch {batch.batch_id}")


def test_a_skipped_batch_stays_skipped_once_the_user_said_that_it_may() -> None:
    """Nobody knows whether the commit of a skipped batch came."""
    world = World()
    world.deliver(1)
    with pytest.raises(DeliveryError):
        world.place.stream(world.place.open({"a": _Refusing(world.lake)}), 2)
    end_roles(world.place.wal)
    log = log_on(world.place.wal)
    plan = plan_skip(log, "a", 2)
    skip(log, skip_order(log, "a", 2, why=""), plan, take_over=TakeOver.IF_GONE)
    world.deliver(3)
    world.lake.restore(1)

    with pytest.raises(ConfigError, match="batch 2: skipped by this sink"):
        world.plan()
    assert world.catch_up(leave_out=[2]).batches == 2
    world.goes_on(4, lacks=(2,))

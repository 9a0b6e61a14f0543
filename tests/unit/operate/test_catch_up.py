"""`catch-up`: a target that was restored to an older state gets what it lost, each row once, and the sink goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from tests.house.log import Log, Marker, SinkRecord, TakeOver, claim, encode, paths
from tests.house.operate import (
    AgainstTarget,
    Check,
    Fault,
    SparkCommit,
    WalFacts,
    changes_of,
    read_changes,
    read_health,
    rename,
    retire,
)
from tests.house.protocol import read_names
from tests.house.sinks import LedgerEntry, TransactionalSink, as_sink
from tests.support.forgetting import Forgetful, Target, raising, rows_of
from tests.support.repairs import end_roles, killed_everywhere, log_on, remade
from tests.support.small_run import Place, Recorder
from wal_sink import PermanentError, RetryLaterError
from wal_sink.errors import ConfigError, DeliveryError, FencedError, HeldError, HistoryError
from wal_sink.operate.catch_up import CaughtUp, catch_up
from wal_sink.operate.catch_up_plan import (
    CatchUpPlan,
    catch_up_order,
    find_unfinished,
    holder_name,
    plan_catch_up,
    planned_catch_up,
)
from wal_sink.protocol.sinks import describe_unserved
from wal_sink.settings import Delivery
from wal_sink.testing import Crash

ROWS = [5, 3]
BATCH_COMMITS = 5
"""Commits of a batch: three chunks of the first segment, and two of the second."""


def delivered(target: Target, through: int = 3, *, rows: Any = lambda _: ROWS, **delivery: Any) -> Place:
    """A WAL of which the sink `a` has every batch, and nobody serves it."""
    place = Place(rows=rows)
    place.stream(place.open({"a": Forgetful(target)}, **delivery), through)
    end_roles(place.wal)
    return place


def caught_up(
    place: Place,
    to: object,
    *,
    log: Log | None = None,
    name: str = "a",
    is_empty: bool = False,
    leave_out: Sequence[int] = (),
    **delivery: Any,
) -> CaughtUp:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    sink = as_sink(to)
    order = catch_up_order(log, name, sink, why="restored", is_empty=is_empty, leave_out=leave_out)
    begun = find_unfinished(log, order)
    plan = (
        planned_catch_up(begun) if begun else planned(place, to, name, is_empty=is_empty, leave_out=leave_out, log=log)
    )
    assert isinstance(sink, TransactionalSink)
    return catch_up(log, order, plan, sink, delivery=Delivery(sink, **delivery), take_over=TakeOver.IF_GONE)


def planned(
    place: Place, to: object, name: str = "a", *, log: Log | None = None, is_empty: bool = False, leave_out: Any = ()
) -> CatchUpPlan:
    return plan_catch_up(log or log_on(place.wal), name, as_sink(to), is_empty=is_empty, leave_out=leave_out)


def outcomes(place: Place) -> list[str]:
    return [change.outcome for change in changes_of(log_on(place.wal), "a", "a")]


def holder(place: Place) -> str:
    """The sink of the newest catch-up."""
    return holder_name(read_changes(log_on(place.wal), "a")[-1])


def ended(place: Place) -> str:
    """End the newest catch-up. Returns the name of its sink."""
    name = holder(place)
    end_roles(place.wal)
    retire(log_on(place.wal), name, drop_pending=0, take_over=TakeOver.IF_GONE, why="")
    end_roles(place.wal)
    return name


def goes_on(place: Place, target: Target, through: int, *, rows: Any = lambda _: ROWS) -> None:
    """A live query goes on, and every row is there once."""
    place.stream(place.open({"a": Forgetful(target)}), through)
    end_roles(place.wal)
    assert target.rows == rows_of(*(rows(batch) for batch in range(through + 1)))


def collected(place: Place, through: int) -> None:
    """The batches up to this one were collected."""
    log_on(place.wal).raise_low_water(through)
    for batch_id in range(through + 1):
        names = place.wal.list(paths.batch(batch_id), recursive=True)
        place.wal.delete([*(f"{paths.batch(batch_id)}/{name}" for name in names), paths.marker("a", batch_id)])


def skipped(place: Place, batch_id: int, rows: tuple[int, ...] | None) -> None:
    """As if the sink had skipped a batch."""
    path = paths.marker("a", batch_id)
    marker = log_on(place.wal).require(Marker, path)
    before = log_on(place.wal).require(Marker, paths.marker("a", batch_id - 1))
    place.wal.delete([path])
    changed = msgspec.structs.replace(
        marker,
        skipped=True,
        skipped_rows=rows,
        last_delivered_batch=before.last_delivered_batch,
        last_delivered_rows=before.last_delivered_rows,
    )
    place.wal.create(path, encode(changed))


# --- what is sent


@pytest.mark.parametrize("lost", range(1, 4 * BATCH_COMMITS))
def test_a_target_gets_exactly_what_it_lost_and_the_live_query_goes_on(lost: int) -> None:
    target = Target()
    place = delivered(target)
    target.forget(lost)
    rows = len(target.rows)

    done = caught_up(place, Forgetful(target))

    assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)
    assert (done.rows, done.through, done.rejected) == (32 - rows, 3, 0)
    assert done.batches == -(-lost // BATCH_COMMITS)
    assert Check(place.wal, comparisons=[AgainstTarget(Forgetful(target), "a")]).run() == []
    goes_on(place, target, 5)


def test_the_plan_shows_each_batch_with_its_rows_and_creates_nothing() -> None:
    target = Target()
    place = delivered(target)
    target.forget(7)
    objects = place.wal.list("", recursive=True)

    plan = planned(place, Forgetful(target))

    assert plan.batches == ((2, 3), (3, 8))
    assert (plan.rows, plan.through, plan.position, plan.is_behind) == (11, 3, "batch 2, row 5", True)
    assert plan.bytes > 0
    assert (plan.target, plan.registered, plan.target_is_registered) == ("Forgetful", "Forgetful", True)
    assert place.wal.list("", recursive=True) == objects


def test_a_target_that_lacks_nothing_has_an_empty_plan() -> None:
    target = Target()
    place = delivered(target)

    plan = planned(place, Forgetful(target))

    assert (plan.batches, plan.is_behind, plan.rows) == ((), False, 0)
    assert caught_up(place, Forgetful(target)).batches == 0


def test_a_sink_that_has_delivered_nothing_has_an_empty_plan() -> None:
    place = Place(rows=lambda _: ROWS)
    list(place.query().batches(place.open({"a": Forgetful(Target())}), 1))

    plan = planned(place, Forgetful(Target()))

    assert (plan.batches, plan.through, plan.position) == ((), -1, "nothing")
    end_roles(place.wal)
    assert caught_up(place, Forgetful(Target())).batches == 0


def test_a_renamed_sink_is_caught_up_under_its_present_name() -> None:
    target = Target()
    place = delivered(target)
    rename(log_on(place.wal), "a", "b", take_over=TakeOver.IF_GONE)
    target.forget(7)

    assert caught_up(place, Forgetful(target), name="b").rows == 11


def test_rows_are_sent_at_a_bounded_rate() -> None:
    target = Target()
    place = delivered(target)
    target.forget(10)
    log = log_on(place.wal)
    began_s = log.runtime.monotonic_s()

    caught_up(place, Forgetful(target), log=log, rows_per_s=4)

    assert log.runtime.monotonic_s() - began_s >= 2


def test_a_record_tells_who_did_what_and_the_sink_that_held_the_batches_is_retired() -> None:
    target = Target()
    place = delivered(target)
    target.forget(7)
    caught_up(place, Forgetful(target))

    [record] = read_changes(log_on(place.wal), "a")
    assert (record.verb, record.why, record.plan["batches"]) == ("catch-up", "restored", [[2, 3], [3, 8]])
    [change] = changes_of(log_on(place.wal), "a", "a")
    command = "wal-sink catch-up WAL --name a --to Forgetful --why restored"
    assert (change.outcome, change.command) == ("done", command)
    assert paths.RETIRED in place.wal.list(f"sinks/{holder(place)}")


def test_other_sinks_with_the_same_target_are_named() -> None:
    target = Target()
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Forgetful(target), "b": Forgetful(target), "c": Recorder(), "d": Forgetful(target)})
    place.stream(run, 1)
    end_roles(place.wal)
    retire(log_on(place.wal), "d", drop_pending=0, take_over=TakeOver.IF_GONE)

    assert planned(place, Forgetful(target)).others == ("b",)


def test_a_batch_of_more_slots_than_a_marker_names_is_sent_from_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wal_sink.protocol.progress.MOST_LAST_DELIVERED_SLOTS", 1)
    target = Target()
    rows = [[1], [1, 2], [1]]
    place = delivered(target, 2, rows=lambda batch: rows[batch])
    target.commits = [*target.commits[:1], target.commits[2]]

    assert planned(place, Forgetful(target)).batches == ((1, 1), (2, 1))
    caught_up(place, Forgetful(target))
    assert target.rows == rows_of(*rows)


def test_terms_that_the_wal_lost_are_outrun() -> None:
    place, target = half()
    target.commits = [
        replace(each, entry=LedgerEntry(each.entry.term + 50, each.entry.position)) for each in target.commits
    ]

    caught_up(place, Forgetful(target))

    goes_on(place, target, 4)


# --- killed, and what runs beside it


def half() -> tuple[Place, Target]:
    target = Target()
    place = delivered(target)
    target.forget(7)
    return place, target


def test_killed_at_any_request_the_same_command_completes_it_and_no_row_is_doubled() -> None:
    places = killed_everywhere(
        remade(half), lambda each: each[0].wal, lambda log, each: caught_up(each[0], Forgetful(each[1]), log=log)
    )
    for place, target in places:
        faults = {each.fault for each in Check(place.wal, comparisons=[AgainstTarget(Forgetful(target), "a")]).run()}
        assert faults <= {Fault.TARGET_BEHIND}
        caught_up(place, Forgetful(target))
        assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)
        assert outcomes(place)[-1] == "done"
        assert "unfinished" not in outcomes(place)
        assert Check(place.wal, comparisons=[AgainstTarget(Forgetful(target), "a")]).run() == []
        goes_on(place, target, 4)


def test_a_live_query_in_the_unfinished_state_loses_and_doubles_nothing() -> None:
    """It refuses as long as rows are missing, and names the command."""
    places = killed_everywhere(
        remade(half), lambda each: each[0].wal, lambda log, each: caught_up(each[0], Forgetful(each[1]), log=log)
    )
    seen = set()
    for place, target in places:
        before, refused = target.rows, None
        try:
            place.stream(place.open({"a": Forgetful(target)}), 5)
        except HistoryError as error:
            seen.add("named" if "wal-sink catch-up WAL --name SINK --to TARGET" in str(error) else str(error))
            refused = target.rows
        else:
            assert target.rows == rows_of(*[ROWS] * 6)
            seen.add("went on")
        assert refused is None or refused == before
        end_roles(place.wal)
        caught_up(place, Forgetful(target))
        goes_on(place, target, 6)
    assert seen == {"named", "went on"}


@pytest.mark.parametrize("event", ["write", "wrote"])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_target_that_is_gone_at_any_write_is_completed_by_the_same_command(event: str, number: int) -> None:
    place, target = half()
    target.met.clear()
    target.happens(event, number, raising(PermanentError("down")))

    with pytest.raises(DeliveryError, match="down"):
        caught_up(place, Forgetful(target))
    assert outcomes(place) == ["unfinished"]

    caught_up(place, Forgetful(target))
    goes_on(place, target, 4)


def test_a_target_that_fails_for_a_moment_is_tried_again() -> None:
    place, target = half()
    target.met.clear()
    target.happens("wrote", 2, raising(RetryLaterError("busy")))

    caught_up(place, Forgetful(target))

    goes_on(place, target, 4)


def test_a_target_that_forgets_a_slot_of_an_earlier_batch_meanwhile_is_not_taken_for_whole() -> None:
    target = Target()
    rows = [[1, 1], [1, 1], [1], [1]]
    place = delivered(target, rows=lambda batch: rows[batch])
    target.commits = target.commits[:2]
    target.met.clear()
    target.happens("wrote", 4, lambda: target.forget(1, slot=1))

    with pytest.raises(HistoryError, match="batch 1 was delivered and marked, but the target holds batch 0, row 1"):
        caught_up(place, Forgetful(target))

    assert outcomes(place) == ["unfinished"]


def test_a_process_that_serves_the_sink_is_refused_before_anything_is_written() -> None:
    target = Target()
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Forgetful(target)}), 3)
    target.forget(7)
    objects = place.wal.list("", recursive=True)

    with pytest.raises(HeldError, match="is running on this machine"):
        caught_up(place, Forgetful(target))

    assert place.wal.list("", recursive=True) == objects


def test_a_query_that_starts_meanwhile_ends_it_and_then_refuses() -> None:
    place, target = half()
    target.met.clear()
    target.happens("wrote", 2, lambda: claim(log_on(place.wal), paths.committer_role("a")))

    with pytest.raises(FencedError, match="a newer process took over"):
        caught_up(place, Forgetful(target))
    end_roles(place.wal)
    with pytest.raises(HistoryError, match="catch-up"):
        place.stream(place.open({"a": Forgetful(target)}), 4)
    end_roles(place.wal)

    caught_up(place, Forgetful(target))
    goes_on(place, target, 5)


def test_a_chunk_that_an_older_process_sends_late_is_refused_by_the_ledger() -> None:
    place, target = half()
    late = target.commits[-1]
    caught_up(place, Forgetful(target))
    known = target.entry(late.slot)
    assert known is not None
    assert known.term > late.entry.term


def stopped_half_way() -> tuple[Place, Target]:
    """A target that was restored, and a catch-up of it that failed at its second chunk."""
    place, target = half()
    target.met.clear()
    target.happens("write", 2, raising(PermanentError("down")))
    with pytest.raises(DeliveryError):
        caught_up(place, Forgetful(target))
    return place, target


def test_a_catch_up_keeps_its_batches_until_it_is_done_or_ended() -> None:
    place, target = stopped_half_way()
    end_roles(place.wal)

    held = log_on(place.wal).require(SinkRecord, paths.sink(holder(place)))
    assert (held.first_batch, held.is_holder) == (2, True)
    name = ended(place)

    assert paths.RETIRED in place.wal.list(f"sinks/{name}")
    assert outcomes(place) == ["ended"]
    caught_up(place, Forgetful(target))
    assert outcomes(place) == ["ended", "done"]
    goes_on(place, target, 4)


def test_another_command_is_refused_while_a_catch_up_is_unfinished() -> None:
    place, target = stopped_half_way()
    end_roles(place.wal)

    with pytest.raises(HeldError, match=r"wal-sink catch-up WAL --name a --to Forgetful.*sinks retire WAL catch-up-"):
        caught_up(place, Forgetful(target), is_empty=True)
    ended(place)
    caught_up(place, Forgetful(target), is_empty=True)
    goes_on(place, target, 4)


def test_no_run_serves_the_sink_of_an_unfinished_catch_up_and_its_warning_names_the_ways_out() -> None:
    place, target = stopped_half_way()
    end_roles(place.wal)
    name = holder(place)

    with pytest.raises(ConfigError, match=rf"'{name}' of .* belongs to a catch-up"):
        place.open({"a": Forgetful(target), name: Recorder()})
    log = log_on(place.wal)
    said = describe_unserved(log, next(sink for sink in read_names(log).sinks if sink.name == name))
    assert f"same command (wal-sink sinks list WAL), or end it: wal-sink sinks retire WAL {name}" in said
    its = next(sink for sink in read_health(WalFacts(place.wal), SparkCommit(5, "")).sinks if sink.is_holder)
    assert (its.lag_s, its.behind_spark, its.pending.batches) == (None, None, 0)
    assert "wal-sink sinks list" in its.lag_note
    assert its.keeps_back > 0
    assert not its.is_late(1.0)


def test_ending_a_catch_up_ends_the_process_that_still_sends() -> None:
    place, target = half()
    target.met.clear()
    target.happens("wrote", 2, lambda: claim(log_on(place.wal), paths.committer_role(holder(place))))

    with pytest.raises(FencedError):
        caught_up(place, Forgetful(target))


def test_batches_that_were_deleted_just_before_they_were_held_end_it() -> None:
    place, target = half()

    def collect(what: str, where: str) -> None:
        if what == "before create" and where.startswith("sinks/catch-up-") and where.endswith(paths.SINK_RECORD):
            collected(place, 2)

    with pytest.raises(ConfigError, match=r"batches 2 to 2 were deleted in the meantime.*Repeat the command"):
        caught_up(place, Forgetful(target), log=log_on(place.wal, collect))
    assert outcomes(place) == ["ended"]

    with pytest.raises(ConfigError, match=r"--leave-out 2$"):
        caught_up(place, Forgetful(target))


def test_low_water_that_rises_past_batches_which_are_held_deletes_nothing_of_them() -> None:
    """A collection that looked at the sinks before raises it, looks again, and finds that they are held."""
    place, target = half()

    def rise(what: str, where: str) -> None:
        if what == "after create" and where.startswith("sinks/catch-up-") and where.endswith(paths.SINK_RECORD):
            log_on(place.wal).raise_low_water(2)

    caught_up(place, Forgetful(target), log=log_on(place.wal, rise))

    assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)


def test_batches_that_are_deleted_though_they_were_held_end_it_by_name() -> None:
    """For example by a life-cycle rule of the bucket."""
    place, target = stopped_half_way()
    collected(place, 2)

    with pytest.raises(ConfigError, match="batch 2 was deleted from the log"):
        caught_up(place, Forgetful(target))


def test_a_target_that_was_restored_once_more_is_not_taken_for_the_planned_one() -> None:
    place, target = stopped_half_way()
    target.forget(8)

    with pytest.raises(ConfigError, match="was restored again to an older state"):
        caught_up(place, Forgetful(target))

    ended(place)
    caught_up(place, Forgetful(target))
    goes_on(place, target, 4)


# --- dead letters


def test_rows_that_lie_in_dead_letters_are_not_sent_again() -> None:
    target = Target(bad=frozenset({(2, 0, 1), (3, 0, 3), (3, 1, 0)}))
    place = delivered(target, on_rejected="dead_letter")
    target.bad = frozenset()
    target.forget(7)

    done = caught_up(place, Forgetful(target))

    assert set(rows_of(ROWS, ROWS, ROWS, ROWS)) - set(target.rows) == {(2, 0, 1), (3, 0, 3), (3, 1, 0)}
    assert max(Counter(target.rows).values()) == 1
    assert (done.rows_in_letters, done.rejected) == (3, 0)


def test_rows_that_are_refused_now_end_it_or_become_dead_letters() -> None:
    place, target = half()
    target.bad = frozenset({(3, 0, 0)})

    with pytest.raises(DeliveryError, match="rejected 1 row"):
        caught_up(place, Forgetful(target))
    done = caught_up(place, Forgetful(target), on_rejected="dead_letter")

    assert (done.rejected, done.rows_in_letters) == (1, 1)
    assert Check(place.wal).run() == []


# --- bounds


def test_requests_of_a_plan_and_of_a_run_are_bounded() -> None:
    """Three reads a batch for a plan, which is made twice, and for a batch that is sent a few requests more."""

    def requests(batches: int) -> int:
        target = Target()
        place = delivered(target, batches, rows=lambda _: [1])
        target.commits = target.commits[:1]
        count: list[str] = []
        caught_up(place, Forgetful(target), log=log_on(place.wal, lambda what, _: count.append(what)))
        return sum(what.startswith("before") for what in count)

    assert requests(30) - requests(20) == 10 * 10


def test_no_secret_of_a_target_reaches_the_wal() -> None:
    class Secret(Forgetful):
        def describe(self) -> str:
            return "postgresql://ada:s3cret@db/shop"

    place, target = half()

    plan = planned(place, Secret(target))
    assert plan.target_is_registered is False
    caught_up(place, Secret(target))
    assert "s3cret" not in str([place.wal.read(each) for each in place.wal.list("", recursive=True)])


@pytest.mark.parametrize("seed", range(25))
def test_any_history_with_any_kills_ends_with_each_row_once(seed: int) -> None:
    """Batches of any width, a backup of any moment, and processes that die at any request or any call of the target."""
    random = Random(seed)
    rows = [[random.randrange(1, 6) for _ in range(random.randrange(4))] for _ in range(7)]
    rows[0] = rows[0] or [1]
    target = Target()
    place = delivered(target, 5, rows=lambda batch: rows[batch])
    target.forget(random.randrange(1, len(target.commits)))
    for _ in range(random.randrange(4)):
        _killed(place, target, random)
    caught_up(place, Forgetful(target))

    assert target.rows == rows_of(*rows[:6])
    goes_on(place, target, 6, rows=lambda batch: rows[batch])


def _killed(place: Place, target: Target, random: Random) -> None:
    """A process that dies after some requests, or that loses its target."""
    left = random.randrange(1, 60)

    def die(_what: str, _where: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash

    target.met.clear()
    target.due = {}
    if random.random() < 0.5:
        target.happens(random.choice(["write", "wrote"]), random.randrange(1, 8), raising(PermanentError("down")))
    with suppress(Crash, DeliveryError):
        caught_up(place, Forgetful(target), log=log_on(place.wal, die))
    target.due = {}
    end_roles(place.wal)

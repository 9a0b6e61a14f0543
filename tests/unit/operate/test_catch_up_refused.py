"""`catch-up`: what it refuses, and batches that cannot be sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.house.log import Marker, OlderSlots, TakeOver, encode, paths
from tests.house.operate import read_changes, retire
from tests.house.sinks import Chunk, LedgerEntry, Rejected
from tests.support.forgetting import Forgetful, Target, raising, rows_of
from tests.support.repairs import end_roles, killed_everywhere, log_on, remade
from tests.support.small_run import Place, Recorder
from tests.unit.operate.test_catch_up import (
    BATCH_COMMITS,
    ROWS,
    caught_up,
    collected,
    delivered,
    ended,
    goes_on,
    half,
    holder,
    planned,
    skipped,
)
from wal_sink import PermanentError, idempotent
from wal_sink.errors import ConfigError, CorruptError, DeliveryError, HistoryError
from wal_sink.settings import Delivery


class Named(Forgetful):
    """One table of a database whose tables share a ledger."""

    def __init__(self, target: Target, table: str, tables: set[str]) -> None:
        super().__init__(target)
        self.table, self.tables = table, tables

    def commit(self, chunk: Chunk) -> Rejected | None:
        self.tables.add(self.table)
        return super().commit(chunk)

    def has_table(self) -> bool:
        return self.table in self.tables

    def describe(self) -> str:
        return f"table {self.table}"


# --- refused


def test_a_sink_whose_target_keeps_no_ledger_is_refused_with_the_way() -> None:
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder(), "b": idempotent(Recorder())}), 1)
    end_roles(place.wal)

    with pytest.raises(
        ConfigError,
        match=r"is plain, not transactional.*have some of their rows twice.*wal-sink drain --name NEW --start-from N",
    ):
        planned(place, Recorder())
    with pytest.raises(
        ConfigError, match=r"is idempotent, not transactional.*ignores the keys that it knows: serve the target under"
    ):
        planned(place, idempotent(Recorder()), "b")


def test_a_target_of_another_kind_an_unknown_and_a_retired_sink_are_refused() -> None:
    place, target = half()

    with pytest.raises(ConfigError, match="is a plain target, but sink 'a' is a transactional one"):
        planned(place, Recorder())
    with pytest.raises(ConfigError, match="has no sink 'x'; it has 'a'"):
        planned(place, Forgetful(target), "x")
    caught_up(place, Forgetful(target))
    target.forget(7)
    with pytest.raises(ConfigError, match="retired"):
        planned(place, Forgetful(target), holder(place))
    retire(log_on(place.wal), "a", drop_pending=0, take_over=TakeOver.IF_GONE)
    with pytest.raises(ConfigError, match="retired"):
        planned(place, Forgetful(target))


def test_the_sink_of_an_unfinished_catch_up_is_refused() -> None:
    place, target = half()
    target.met.clear()
    target.happens("write", 2, raising(PermanentError("down")))
    with pytest.raises(DeliveryError):
        caught_up(place, Forgetful(target))

    with pytest.raises(ConfigError, match=r"belongs to a catch-up\. Complete it with its own command"):
        planned(place, Forgetful(target), holder(place))


def test_a_ledger_that_holds_nothing_is_no_empty_target_unless_the_user_says_so() -> None:
    target = Target()
    place = delivered(target)
    target.commits = []

    with pytest.raises(ConfigError, match=r"holds no position of sink 'a'.*ledger was not restored.*--empty"):
        planned(place, Forgetful(target))

    assert caught_up(place, Forgetful(target), is_empty=True).rows == 32
    goes_on(place, target, 4)


def test_a_ledger_whose_table_is_gone_is_refused() -> None:
    target, tables = Target(), set[str]()
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Named(target, "orders", tables)}), 3)
    end_roles(place.wal)
    target.forget(7)
    planned(place, Named(target, "orders", tables))

    with pytest.raises(ConfigError, match="but the table does not exist"):
        planned(place, Named(target, "orders", set()))


def test_a_target_that_is_ahead_or_of_another_history_is_refused() -> None:
    target = Target()
    place = delivered(target)
    last = target.commits[-1]

    def moved(**changes: Any) -> None:
        position = replace(last.entry.position, **changes)
        target.commits[-1] = replace(last, entry=LedgerEntry(last.entry.term, position))

    moved(batch_id=9)
    with pytest.raises(HistoryError, match=r"is ahead, at batch 9, row 3"):
        planned(place, Forgetful(target))
    moved(segment_id="other", rows=2)
    with pytest.raises(HistoryError, match="not the target of this sink, or it has another history"):
        planned(place, Forgetful(target))


def test_a_batch_that_was_under_way_is_no_sign_of_a_target_that_is_ahead() -> None:
    target = Target()
    place = delivered(target)
    run = place.open({"a": Forgetful(target)})
    list(place.query().batches(run, 5))
    target.met.clear()
    target.happens("write", 3, raising(PermanentError("down")))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    end_roles(place.wal)

    assert planned(place, Forgetful(target)).batches == ()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_ledger_of_two_moments_is_refused(slot: int) -> None:
    """Only one slot went back: the rows of its segments in between would be passed over."""
    target = Target()
    place = delivered(target)
    target.forget(2 * BATCH_COMMITS, slot=slot)
    if slot == 1:
        target.forget(1, slot=0)

    with pytest.raises(
        HistoryError, match=r"slot . is at .* and lacks rows of batch .*mixes states of different times"
    ):
        planned(place, Forgetful(target))


def test_a_ledger_of_two_moments_is_found_by_its_wide_batch_though_that_was_collected() -> None:
    target = Target()
    rows = [[1, 1, 1], [1], [1], [1]]
    place = delivered(target, rows=lambda batch: rows[batch])
    collected(place, 1)
    target.forget(1, slot=2)
    target.forget(1, slot=0)

    with pytest.raises(HistoryError, match="slot 2 is at nothing and lacks rows of batch 0"):
        planned(place, Forgetful(target))


def test_a_target_that_gives_no_answer_is_refused() -> None:
    class Silent(Forgetful):
        def positions(self, slots: Any) -> Any:
            raise PermanentError(f"no answer about {slots}")

    place, target = half()

    with pytest.raises(DeliveryError, match="no answer"):
        planned(place, Silent(target))


def test_a_target_that_got_rows_by_another_sink_since_is_refused() -> None:
    place, target = half()
    place.open({"b": Delivery(Forgetful(target), start_from="earliest")}).deliver_all()
    end_roles(place.wal)

    with pytest.raises(
        ConfigError, match=r"sink 'b' .* also delivered batch .*could come twice.*Restore the target again"
    ):
        planned(place, Forgetful(target))


def test_another_sink_of_the_target_that_has_no_later_rows_does_not_matter() -> None:
    target = Target()
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Forgetful(target), "b": Forgetful(target)}), 1)
    end_roles(place.wal)
    retire(log_on(place.wal), "b", drop_pending=0, take_over=TakeOver.IF_GONE)
    place.stream(place.open({"a": Forgetful(target)}), 3)
    end_roles(place.wal)
    target.forget(7)

    assert planned(place, Forgetful(target)).batches == ((2, 3), (3, 8))


def test_a_batch_whose_release_was_lost_is_named() -> None:
    place, target = half()
    place.wal.delete([paths.release(3)])

    with pytest.raises(CorruptError, match=r"0000000000000000003/release\.json is gone"):
        planned(place, Forgetful(target))


def test_another_table_of_the_same_database_does_not_matter() -> None:
    target, tables = Target(), set[str]()
    place = Place(rows=lambda _: ROWS)
    sinks = {"a": Named(target, "orders", tables), "b": Named(target, "customers", tables), "c": Recorder()}
    place.stream(place.open(sinks), 3)
    end_roles(place.wal)
    target.commits = [each for each in target.commits if "/a/" not in each.slot or each.entry.position.batch_id < 2]

    assert planned(place, Named(target, "orders", tables)).batches == ((2, 8), (3, 8))


# --- batches that cannot be sent


def test_batches_that_were_collected_are_named_and_left_out_only_if_the_user_says_so() -> None:
    target = Target()
    place = delivered(target, 5)
    target.forget(5 * BATCH_COMMITS + 1)
    collected(place, 2)

    with pytest.raises(ConfigError, match=r"batches 0-2 were deleted from the log.*newer backup.*add --leave-out 0-2$"):
        caught_up(place, Forgetful(target))
    with pytest.raises(ConfigError, match=r"--leave-out 0-2$"):
        caught_up(place, Forgetful(target), leave_out=[1])
    with pytest.raises(ConfigError, match=r"--leave-out: batch 3 of .* can be sent"):
        caught_up(place, Forgetful(target), leave_out=[0, 1, 2, 3])
    assert read_changes(log_on(place.wal), "a") == []

    done = caught_up(place, Forgetful(target), leave_out=[0, 1, 2])

    assert (done.batches, done.rows) == (3, 24)
    assert Counter(batch for batch, _, _ in target.rows) == {0: 7, 3: 8, 4: 8, 5: 8}
    place.stream(place.open({"a": Forgetful(target)}), 6)
    assert Counter(batch for batch, _, _ in target.rows)[6] == 8


def test_a_single_collected_batch_is_named() -> None:
    target = Target()
    place = delivered(target)
    target.forget(3 * BATCH_COMMITS)
    collected(place, 1)

    with pytest.raises(ConfigError, match=r"batches 0-1 were deleted"):
        planned(place, Forgetful(target))
    target.forget(4)
    with pytest.raises(ConfigError, match=r"batches 0-1 were deleted"):
        planned(place, Forgetful(target))


def test_a_batch_of_which_the_log_keeps_only_the_records_proves_that_it_is_complete() -> None:
    """Low water is past it, and its objects are not deleted yet."""
    target = Target()
    place = delivered(target)
    target.forget(2 * BATCH_COMMITS)
    log_on(place.wal).raise_low_water(1)

    assert planned(place, Forgetful(target)).batches == ((2, 8), (3, 8))
    target.forget(1)
    with pytest.raises(ConfigError, match="batch 1 was deleted from the log"):
        planned(place, Forgetful(target))


def wide() -> tuple[Place, Target]:
    """The only batch with three segments was collected, and the target lacks it."""
    rows = [[1], [1, 1, 1], [1], [1]]
    target = Target()
    place = delivered(target, rows=lambda batch: rows[batch])
    target.commits = target.commits[:1]
    collected(place, 1)
    return place, target


def test_slots_that_only_batches_left_out_used_are_moved_forward_so_that_the_sink_goes_on() -> None:
    place, target = wide()

    caught_up(place, Forgetful(target), leave_out=[0, 1])

    assert [row[0] for row in target.rows] == [0, 2, 3]
    place.rows = lambda _: [1]
    place.stream(place.open({"a": Forgetful(target)}), 4)
    assert [row[0] for row in target.rows] == [0, 2, 3, 4]


def test_a_catch_up_killed_at_any_request_leaves_out_no_more_than_the_user_said() -> None:
    places = killed_everywhere(
        remade(wide),
        lambda each: each[0].wal,
        lambda log, each: caught_up(each[0], Forgetful(each[1]), log=log, leave_out=[0, 1]),
    )
    for place, target in places:
        caught_up(place, Forgetful(target), leave_out=[0, 1])
        place.rows = lambda _: [1]
        place.stream(place.open({"a": Forgetful(target)}), 4)
        assert [row[0] for row in target.rows] == [0, 2, 3, 4]


def within() -> tuple[Place, Target]:
    """The backup was made within batch 1: slot 1 has two of its five rows. Batches 0 and 1 were collected."""
    rows = [[1, 5], [1, 5], [1], [1]]
    target = Target()
    place = delivered(target, rows=lambda batch: rows[batch])
    at = [(commit.slot[-2:], commit.entry.position.batch_id, commit.entry.position.rows) for commit in target.commits]
    target.commits = target.commits[: at.index(("/1", 1, 2)) + 1]
    collected(place, 1)
    return place, target


def test_a_slot_within_a_batch_that_is_left_out_is_moved_to_its_end() -> None:
    place, target = within()

    done = caught_up(place, Forgetful(target), leave_out=[1])

    assert (done.rows, done.through) == (2, 3)
    lost = {(1, 1, 2), (1, 1, 3), (1, 1, 4)}
    assert set(target.rows) == set(rows_of([1, 5], [1, 5], [1], [1])) - lost
    assert not planned(place, Forgetful(target)).is_behind
    place.rows = lambda _: [1, 1]
    place.stream(place.open({"a": Forgetful(target)}), 4)
    assert set(target.rows) == set(rows_of([1, 5], [1, 5], [1], [1], [1, 1])) - lost


def test_a_slot_of_batches_left_out_is_moved_once_if_killed_at_any_request() -> None:
    places = killed_everywhere(
        remade(within),
        lambda each: each[0].wal,
        lambda log, each: caught_up(each[0], Forgetful(each[1]), log=log, leave_out=[1]),
    )
    for place, target in places:
        caught_up(place, Forgetful(target), leave_out=[1])
        assert not planned(place, Forgetful(target)).is_behind
        assert Counter(target.rows)[2, 0, 0] == Counter(target.rows)[3, 0, 0] == 1


def test_a_catch_up_that_was_ended_after_its_last_row_is_completed_by_another() -> None:
    place, target = wide()
    target.met.clear()
    target.happens("write", 3, raising(PermanentError("down")))
    with pytest.raises(DeliveryError, match="a chunk without rows"):
        caught_up(place, Forgetful(target), leave_out=[0, 1])
    ended(place)

    plan = planned(place, Forgetful(target), leave_out=[0, 1])
    assert (plan.batches, plan.is_behind, plan.left_out) == ((), True, ("0-1",))
    caught_up(place, Forgetful(target), leave_out=[0, 1])

    assert not planned(place, Forgetful(target)).is_behind


def test_a_catch_up_with_nothing_left_to_send_is_refused() -> None:
    target = Target()
    rows = [[1], [1], [], []]
    place = delivered(target, rows=lambda batch: rows[batch])
    target.commits = target.commits[:1]
    collected(place, 1)

    with pytest.raises(ConfigError, match="there is nothing to send"):
        caught_up(place, Forgetful(target), leave_out=[0, 1])


def test_a_skipped_batch_stays_skipped() -> None:
    target = Target()
    place = delivered(target)
    skipped(place, 2, (0, 0))
    target.commits = [each for each in target.commits if each.entry.position.batch_id < 1]

    plan = planned(place, Forgetful(target))
    assert (plan.batches, plan.skipped) == (((1, 8), (3, 8)), ("2",))
    caught_up(place, Forgetful(target))

    assert Counter(batch for batch, _, _ in target.rows) == {0: 8, 1: 8, 3: 8}
    assert planned(place, Forgetful(target)).batches == ()


def test_a_skipped_batch_of_which_the_target_had_rows_is_named() -> None:
    target = Target()
    place = delivered(target)
    skipped(place, 2, None)
    target.commits = [each for each in target.commits if each.entry.position.batch_id < 1]

    with pytest.raises(ConfigError, match="batch 2: skipped by this sink, and nobody knows which of the rows"):
        planned(place, Forgetful(target))
    caught_up(place, Forgetful(target), leave_out=[2])
    assert Counter(batch for batch, _, _ in target.rows) == {0: 8, 1: 8, 3: 8}


@pytest.mark.parametrize("had", [(2, 0), (0, 2), (4, 2), (5, 3), (5, 0)])
@pytest.mark.parametrize("there", range(6))
def test_of_a_skipped_batch_the_target_gets_what_it_had_when_that_was_skipped(had: tuple[int, int], there: int) -> None:
    target = Target()
    place = delivered(target)
    skipped(place, 2, had)
    held = {(2, segment, row) for segment, rows in enumerate(had) for row in range(rows)}
    of_it = [each for each in target.commits if each.entry.position.batch_id == 2 and set(each.rows) <= held]
    target.commits = [each for each in target.commits if each.entry.position.batch_id < 2] + of_it[:there]

    caught_up(place, Forgetful(target))

    assert target.rows == sorted([*rows_of(ROWS, ROWS), *held, *((3, *row[1:]) for row in rows_of(ROWS))])
    assert planned(place, Forgetful(target)).batches == ()
    place.stream(place.open({"a": Forgetful(target)}), 4)
    assert Counter(batch for batch, _, _ in target.rows)[4] == 8


def test_a_target_at_a_skipped_batch_begins_behind_it() -> None:
    target = Target()
    place = delivered(target)
    skipped(place, 2, (2, 0))
    held = [each for each in target.commits if each.entry.position.batch_id < 2]
    target.commits = [*held, next(each for each in target.commits if each.entry.position.batch_id == 2)]

    assert planned(place, Forgetful(target)).batches == ((3, 8),)


def test_a_skipped_batch_is_no_sign_of_two_moments() -> None:
    target = Target()
    place = delivered(target, rows=lambda batch: [1, 1] if batch < 2 else [1])
    skipped(place, 1, (0, 0))
    newest = log_on(place.wal).require(Marker, paths.marker("a", 3))
    place.wal.delete([paths.marker("a", 3)])
    older = (OlderSlots(batch_id=0, rows=(1,)),)
    place.wal.create(paths.marker("a", 3), encode(msgspec.structs.replace(newest, last_delivered_older=older)))
    target.commits = [each for each in target.commits if each.entry.position.batch_id in {0, 2}]

    assert planned(place, Forgetful(target)).batches == ((3, 1),)

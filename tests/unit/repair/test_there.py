"""`replay` to a transactional target: the positions of which sinks count, and which rows are not there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.forgetting import Forgetful, Target, rows_of
from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.repair.test_resend import ROWS, delivered, replayed
from wal_sink import PermanentError
from wal_sink.errors import ConfigError, DeliveryError
from wal_sink.recovery.sink_changes import retire
from wal_sink.repair.giving_up import give_up
from wal_sink.repair.journal import read_journal
from wal_sink.repair.resend_plan import plan_resend
from wal_sink.replay import DeadLetters
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected, as_sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.wal.holders import TakeOver
from wal_sink_backends.sql import SqlSink


class Breaking(Forgetful):
    """It is down from the n-th chunk of batch 1 on."""

    def __init__(self, target: Target, after: int) -> None:
        super().__init__(target)
        self.left = after

    def commit(self, chunk: Chunk) -> Rejected | None:
        if chunk.batch_id == 1 and self.left == 0:
            raise PermanentError("down")
        self.left -= chunk.batch_id == 1
        return super().commit(chunk)


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


def twice(target: Target) -> list[object]:
    return [row for row, count in Counter(target.rows).items() if count > 1]


# --- rows without a marker


def test_rows_of_a_replay_that_was_given_up_count() -> None:
    place, target = delivered(), Target()
    with pytest.raises(DeliveryError):
        replayed(place, Breaking(target, after=2), [1])
    sent = len(target.rows)
    assert 0 < sent < 8
    give_up(log_on(place.wal), 1, why="x")

    done = replayed(place, Forgetful(target), [1])

    assert twice(target) == []
    assert (done.rows_sent, done.rows_there) == (8 - sent, sent)
    assert len(target.rows) == 8


def test_rows_of_a_batch_that_a_retired_sink_began_count() -> None:
    target = Target()
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Forgetful(target)}), 0)
    run = place.open({"a": Breaking(target, after=2)})
    list(place.query().batches(run, 3))
    with pytest.raises(DeliveryError):
        run.deliver_next(run.committers[0])
    end_roles(place.wal)
    retire(log_on(place.wal), "a", drop_pending=5, take_over=TakeOver.IF_GONE)

    replayed(place, Forgetful(target), [1])

    assert twice(target) == []
    assert target.rows == rows_of(ROWS, ROWS)


# --- another table of the same database


def test_another_table_of_the_database_is_refused_by_name_with_the_ways_out() -> None:
    target, tables = Target(), set[str]()
    place = delivered(to=Named(target, "orders", tables))
    other = Named(target, "orders_new", tables)

    with pytest.raises(ConfigError, match=r"'a' \(table orders\).*--again.*--ledger-of"):
        replayed(place, other, [0, 1])
    assert read_journal(log_on(place.wal)) == []

    assert replayed(place, other, [0, 1], again=True).rows_sent == 16


def test_a_sink_of_another_table_beside_the_own_one_does_not_count_if_the_user_says_so() -> None:
    target, tables = Target(), set[str]()
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Named(target, "orders", tables), "b": Named(target, "customers", tables)})
    place.stream(run, 1)
    end_roles(place.wal)
    target.commits = [commit for commit in target.commits if "/a/" not in commit.slot]
    orders = Named(target, "orders", tables)

    with pytest.raises(ConfigError, match=r"'b' \(table customers\).*--ledger-of a"):
        replayed(place, orders, [0, 1])
    assert replayed(place, orders, [0, 1], ledger_of=["a"]).rows_sent == 16
    with pytest.raises(ConfigError, match="has no transactional sink 'x'"):
        replayed(place, orders, [0, 1], ledger_of=["x"])


def test_a_sink_that_has_no_position_there_is_not_refused() -> None:
    target, tables = Target(), set[str]()
    place = delivered(to=Named(Target(), "orders", tables))

    assert replayed(place, Named(target, "elsewhere", tables), [0, 1]).rows_sent == 16
    assert replayed(place, Named(target, "elsewhere", tables), [0, 1]).rows_there == 16


def test_positions_before_the_batches_do_not_count() -> None:
    target, tables = Target(), set[str]()
    place = delivered(through=1, to=Named(target, "orders", tables))
    run = place.open({"b": Delivery(Recorder(), start_from="next")})
    place.stream(run, 3)
    end_roles(place.wal)

    assert replayed(place, Named(target, "other", tables), [2, 3]).rows_sent == 16


def test_a_dropped_table_is_refused() -> None:
    target, tables = Target(), set[str]()
    place = delivered(to=Named(target, "orders", tables))
    tables.clear()

    with pytest.raises(ConfigError, match=r"table orders.*does not exist.*--again"):
        replayed(place, Named(target, "orders", tables), [0, 1])
    assert read_journal(log_on(place.wal)) == []
    assert replayed(place, Named(target, "orders", tables), [0, 1], again=True).rows_sent == 16


def test_a_table_that_is_dropped_while_the_replay_is_interrupted_is_refused_too() -> None:
    target, tables = Target(), set[str]()
    place = delivered(to=Named(target, "orders", tables))

    class Dropping(Named):
        looks = 0

        def has_table(self) -> bool:
            self.looks += 1
            return self.looks == 1

    with pytest.raises(ConfigError, match=r"does not exist.*give this repair up"):
        replayed(place, Dropping(target, "orders", tables), [0, 1])


def test_a_database_with_a_ledger_for_all_its_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    place = delivered(to=SqlSink(url, "orders"))

    with pytest.raises(ConfigError, match=r"'a' \(SqlSink\(.*'orders'"):
        replayed(place, SqlSink(url, "orders_new"), [0, 1, 2, 3])
    assert replayed(place, SqlSink(url, "orders"), [0, 1]).rows_there == 16
    sink = SqlSink(url, "orders_new")
    with pytest.raises(RuntimeError, match="not open"):
        sink.has_table()
    assert replayed(place, sink, [0, 1, 2, 3], again=True).rows_sent == 32


def test_a_wal_without_transactional_sinks_asks_nothing() -> None:
    class Silent(Forgetful):
        def positions(self, slots: object) -> object:  # type: ignore[override]
            raise PermanentError(f"no answer about {slots}")

    plan = plan_resend(log_on(delivered().wal), [1], Silent(Target()), name="", again=False)
    assert (plan.batches, plan.rows, plan.counted) == ((1,), 8, ())


# --- rows in dead letters


def test_refused_rows_stay_dead_letters_and_do_not_count_as_there() -> None:
    target = Target(bad=frozenset({(1, 0, 1)}))
    place = delivered(to=Forgetful(target), on_rejected="dead_letter")
    target.bad = frozenset()
    sink = Forgetful(target)

    plan = plan_resend(log_on(place.wal), [1], sink, name="", again=False)
    done = replayed(place, sink, [1])

    assert (plan.dead_letter_rows, plan.staying_rows, plan.staying_in) == (0, 1, ("a",))
    assert (done.rows_sent, done.rows_there, done.rows_in_letters) == (0, 7, 1)
    assert (1, 0, 1) not in target.rows

    DeadLetters(log_on(place.wal), name="a").replay(sink)
    end_roles(place.wal)
    again = replayed(place, sink, [1])
    assert (again.rows_there, again.rows_in_letters) == (8, 0)
    assert (1, 0, 1) in target.rows


def test_with_again_refused_rows_are_sent_too() -> None:
    target = Target(bad=frozenset({(1, 0, 1)}))
    place = delivered(to=Forgetful(target), on_rejected="dead_letter")
    target.bad = frozenset()

    plan = plan_resend(log_on(place.wal), [1], Forgetful(target), name="", again=True)

    assert (plan.dead_letter_rows, plan.staying_rows, plan.staying_in) == (1, 0, ())
    assert replayed(place, Forgetful(target), [1], again=True).rows_in_letters == 0
    assert (1, 0, 1) in target.rows


def test_a_row_that_another_sink_delivered_is_there_although_one_refused_it() -> None:
    target = Target(bad=frozenset({(1, 0, 1)}))
    place = delivered(to=Forgetful(target), on_rejected="dead_letter")
    target.bad = frozenset()
    target.commits = []
    replayed(place, Forgetful(target), [1])
    held = [commit for commit in target.commits if "/replay-1/" in commit.slot]
    assert len({row for commit in held for row in commit.rows}) == 8

    assert replayed(place, Forgetful(target), [1]).rows_in_letters == 0


def test_batches_without_rows_are_planned_without_a_question() -> None:
    place = Place(rows=lambda _: [])
    place.stream(place.open({"a": Forgetful(Target())}), 1)
    end_roles(place.wal)

    plan = plan_resend(log_on(place.wal), [0], as_sink(Forgetful(Target())), name="", again=False)

    assert (plan.rows, plan.counted) == (0, ("a",))

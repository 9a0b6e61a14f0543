"""Change streams of `SqlSink` on SQLite: the newest version of each key is there, whatever the order of chunks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Chunk, Position, Rejected
from tests.support.change_history import KEY, NEWER_BY, Change, Model, Row, deliveries, history, table_of
from tests.support.chunks import chunk
from tests.support.sql_chunks import opened
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.settings import Delivery
from wal_sink.testing import crash_matrix
from wal_sink_backends.sql.base.dialect import LEDGER
from wal_sink_backends.sql.sink import SqlSink

DELETED = "wal_sink_deleted_flights"
ROWS = "SELECT shop, id, file, pos, note FROM flights ORDER BY 1, 2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


def query(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def rows_in(path: Path, more: str = "") -> list[Row]:
    return sorted(Row(*values) for values in query(path, f"SELECT shop, id, file, pos, note{more} FROM flights"))


def sink_to(path: Path, **options: Any) -> SqlSink:
    given = {"mode": "upsert", "key": KEY, "newer_by": NEWER_BY, "operation": "op", **options}
    return SqlSink(f"sqlite:///{path}", "flights", **given)


def change(op: str, pos: int, value: str | None = None, *, number: int = 1, file: str = "a") -> Change:
    return Change("x", number, file, pos, op, value)


def sent(*events: Change, batch: int = 0, slot: str = "wal/default/0", after: Position | None = None) -> Chunk:
    rows = table_of(events)
    return chunk(rows, batch=batch, segment=f"{batch}-{slot[-1]}", slot=slot, after=after)


def write_each(sink: SqlSink, *parts: Sequence[Change]) -> None:
    """Write parts as segments of one batch."""
    for number, events in enumerate(parts):
        assert sink.write(sent(*events, slot=f"wal/default/{number}")) is None


@pytest.mark.parametrize("seed", range(10))
def test_a_change_stream_ends_as_its_model(path: Path, seed: int) -> None:
    model = Model()
    with opened(sink_to(path)) as sink:
        for one, events in deliveries(seed, history(seed, per_id=2)):
            assert sink.write(one) is None
            model.apply(events)
    assert rows_in(path) == model.rows


@pytest.mark.parametrize("seed", range(10))
def test_a_change_stream_that_marks_ends_as_its_model(path: Path, seed: int) -> None:
    model = Model(mark=True)
    with opened(sink_to(path, operation=None, delete_when="gone", on_delete="mark")) as sink:
        for one, events in deliveries(seed, history(seed, per_id=2), flag="gone"):
            assert sink.write(one) is None
            model.apply(events)
    assert rows_in(path, ", gone") == model.rows


class _Killed(BaseException):
    """The process dies at a statement."""


def test_a_kill_at_any_statement_leaves_the_change_stream_as_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    class Dying(sqlite3.Connection):
        def execute(self, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise _Killed
            return super().execute(*arguments)

    def connect(*arguments: Any, **options: Any) -> Any:
        return Dying(*arguments, **options)

    model, chunks = Model(), list(deliveries(3, history(3, keys=3, changes=14), batches=3))
    for _, events in chunks:
        model.apply(events)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", connect)
        moment, left = 1, 0
        while left <= 0:
            moment += 13
            path, left = tmp_path / f"{moment}.db", moment
            for _ in range(2):
                try:
                    with opened(sink_to(path)) as sink:
                        for one, _ in chunks:
                            assert sink.write(one) is None
                except _Killed:
                    continue
                break
            assert rows_in(path) == model.rows, moment
    assert moment > 200


@pytest.mark.parametrize("late", [True, False])
def test_of_equal_versions_in_two_segments_the_delete_wins(path: Path, late: bool) -> None:
    both = [[change("d", 5)], [change("u", 5, "stays not")]]
    with opened(sink_to(path)) as sink:
        write_each(sink, [change("c", 1)], *(reversed(both) if late else both))
    assert query(path, ROWS) == []


def test_of_equal_versions_in_two_segments_the_first_row_stays(path: Path) -> None:
    with opened(sink_to(path)) as sink:
        write_each(sink, [change("u", 5, "first")], [change("u", 5, "second")])
    assert query(path, ROWS) == [("x", 1, "a", 5, "first")]


def test_a_snapshot_read_after_a_delete_brings_no_row_back(path: Path) -> None:
    """risingwave#26860: a row that a snapshot reads later does not replace a newer change."""
    with opened(sink_to(path)) as sink:
        write_each(sink, [change("d", 5)], [change("r", 0, "read", file=""), change("r", 0, "read", number=2, file="")])
    assert query(path, ROWS) == [("x", 2, "", 0, "read")]


def test_both_events_of_a_changed_key_arrive_in_any_order(path: Path) -> None:
    """clickhouse-sink-connector#9, materialize#6553: a changed key leaves no old row, and loses no new one."""
    with opened(sink_to(path)) as sink:
        write_each(sink, [change("c", 1, "old")], [change("c", 2, "new", number=2)], [change("d", 2)], [change("u", 1)])
    assert query(path, ROWS) == [("x", 2, "a", 2, "new")]


def test_a_row_of_a_change_stream_that_cannot_be_applied_is_rejected(path: Path) -> None:
    rows = [change("d", 9), change("t", 9), change("c", 9, number=2), change("c", 9, number=3)]
    table = table_of(rows)
    table = table.set_column(1, "id", pa.array([1, 1, None, 3]))
    table = table.set_column(3, "pos", pa.array([9, 9, 9, None], pa.int64()))
    with opened(sink_to(path)) as sink:
        assert sink.write(sent(change("c", 1, "old"))) is None
        assert sink.write(chunk(table, segment="b", slot="wal/default/1")) == Rejected(
            {
                1: "operation 't' is unknown, expected c, r, u, d",
                2: "column 'id' of the change stream is NULL",
                3: "column 'pos' of the change stream is NULL",
            }
        )
    assert query(path, f"SELECT count(*) FROM {DELETED}") == [(0,)]
    assert query(path, ROWS) == [("x", 1, "a", 1, "old")]


def test_deletes_are_kept_for_some_batches_and_older_batches_are_refused(path: Path) -> None:
    """Those of a new sink, of a letter, and of a catch-up whose position was set back."""
    after = None
    with opened(sink_to(path, deletes_kept=3)) as sink:
        assert sink.write(sent(change("d", 5, number=9), slot="another/default/0")) is None
        for batch in range(6):
            one = sent(change("d", 5, number=batch), batch=batch, after=after)
            assert sink.write(one) is None
            after = one.position
        assert query(path, f"SELECT id, wal_sink_batch, wal_sink_wal FROM {DELETED} ORDER BY 1") == [
            (3, 3, "wal"),
            (4, 4, "wal"),
            (5, 5, "wal"),
            (9, 0, "another"),  # whose batches have other numbers
        ]
        refusal = "deletes are remembered from batch 3 on, so rows of batch 2 might bring deleted rows back"
        for slot in ("wal/other/0", "wal/default/0/2/letter"):
            with pytest.raises(PermanentError, match=refusal):
                sink.write(sent(change("u", 1), batch=2, slot=slot))
            assert sink.write(sent(change("u", 1, number=3), batch=3, slot=slot)) is None
        query(path, f"DELETE FROM {LEDGER} WHERE slot = 'wal/default/0'")
        with pytest.raises(PermanentError, match=refusal):
            sink.write(sent(change("u", 1), batch=2))
        assert sink.write(sent(change("u", 1), batch=0, slot="anotherwal/default/0")) is None
    assert query(path, ROWS) == [("x", 1, "a", 1, None)]


def test_a_delete_of_a_late_batch_is_kept_as_long_as_the_newest_batch(path: Path) -> None:
    with opened(sink_to(path, deletes_kept=3)) as sink:
        assert sink.write(sent(batch=7)) is None
        assert sink.write(sent(change("d", 5), batch=5, slot="wal/default/0/5/letter")) is None
    assert query(path, f"SELECT id, wal_sink_batch FROM {DELETED}") == [(1, 7)]


def test_marks_need_no_memory_and_leave_the_other_columns(path: Path) -> None:
    """kafka-connect-jdbc#443, dlt#4165: a deleted row stays with a mark, and keeps the values that it had."""
    query(path, "CREATE TABLE flights (id INT PRIMARY KEY, pos INT, name TEXT NOT NULL, gone BOOLEAN)")
    options = {"operation": None, "delete_when": "gone", "on_delete": "mark", "key": "id", "newer_by": "pos"}

    def rows(*given: tuple[int, int, str | None, bool]) -> pa.Table:
        columns = zip(*given, strict=True)
        return pa.table(dict(zip(("id", "pos", "name", "gone"), columns, strict=True)))

    with opened(sink_to(path, **options)) as sink:
        assert sink.write(chunk(rows((1, 5, "one", False), (2, 5, "two", False)), segment="a")) is None
        assert (
            sink.write(chunk(rows((1, 5, None, True), (2, 4, None, True)), segment="b", slot="wal/default/1")) is None
        )
        missing = chunk(rows((3, 1, None, True)), segment="c", slot="wal/default/2")
        assert sink.write(missing) == Rejected({0: "NOT NULL constraint failed: flights.name"})
    assert query(path, "SELECT * FROM flights") == [(1, 5, "one", 1), (2, 5, "two", 0)]
    assert query(path, f"SELECT name FROM sqlite_master WHERE name = '{DELETED}'") == []


def test_the_flag_does_not_come_to_rows_that_are_there(path: Path) -> None:
    """It would be NULL in them, and `WHERE NOT gone` would hide them."""
    query(path, "CREATE TABLE flights (id INT PRIMARY KEY, pos INT)")
    marks = {"operation": None, "delete_when": "gone", "on_delete": "mark", "key": "id", "newer_by": "pos"}
    with opened(sink_to(path, evolve="add", **marks)) as sink, pytest.raises(PermanentError, match="no column 'gone'"):
        sink.write(chunk(pa.table({"id": [1], "pos": [1], "gone": [False]})))


@pytest.mark.parametrize("name", ["shop", "SHOP"])
def test_keys_are_equal_as_the_column_has_them(path: Path, name: str) -> None:
    query(path, f"CREATE TABLE flights ({name} TEXT COLLATE NOCASE PRIMARY KEY, pos INT, value TEXT)")
    with opened(sink_to(path, key="shop", newer_by="pos")) as sink:
        for number, (shop, pos, op) in enumerate([("a", 1, "c"), ("A", 5, "d"), ("a", 3, "u"), ("b", 1, "c")]):
            rows = pa.table({"shop": [shop], "pos": [pos], "op": [op], "value": ["x"]})
            assert sink.write(chunk(rows, segment=str(number), slot=f"wal/default/{number}")) is None
    assert query(path, "SELECT shop FROM flights") == [("b",)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TRIGGER picky BEFORE DELETE ON flights BEGIN SELECT RAISE(IGNORE); END", "the table kept 0 of 1 rows"),
        ("CREATE TABLE bookings (s, i, FOREIGN KEY (s, i) REFERENCES flights (shop, id))", "FOREIGN KEY constraint"),
    ],
)
def test_a_delete_that_the_table_refuses_is_rejected(path: Path, statement: str, reason: str) -> None:
    with opened(sink_to(path)) as sink:
        assert sink.write(sent(change("c", 1), change("c", 1, number=2))) is None
        query(path, statement)
        if "bookings" in statement:
            query(path, "INSERT INTO bookings VALUES ('x', 1)")
        deletes = [change("d", 5, number=7), change("d", 5)]
        found = sink.write(sent(*deletes, slot="wal/default/1"))
        assert found is not None
        assert list(found.reasons) == [1]
        assert found.reasons[1].startswith(reason)
        assert sink.write(sent(*deletes, slot="wal/default/1").without([1])) is None  # it finds no row: no drop
    assert query(path, "SELECT id FROM flights ORDER BY 1") == [(1,), (2,)]


def test_a_table_of_deletes_that_is_missing_is_refused(path: Path) -> None:
    with opened(sink_to(path)) as sink:
        first = sent(change("c", 1))
        assert sink.write(first) is None
    findings = [finding.found for finding in sink_to(path).examine(first.table.schema)]
    assert [text.partition(": ")[2] for text in findings[1:]] == [
        "the table takes the columns shop, id, file, pos, note",
        "the table takes the columns shop, id, file, pos, wal_sink_batch, wal_sink_wal",
    ]
    query(path, f"DROP TABLE {DELETED}")
    second = sent(change("u", 2), batch=1, after=first.position)
    with opened(sink_to(path)) as sink, pytest.raises(PermanentError, match="of remembered deletes is gone"):
        sink.write(second)
    with opened(sink_to(path, create_table=False)) as sink, pytest.raises(PermanentError, match="Create it as docs"):
        sink.write(second)
    with opened(sink_to(path, recreated_table="accept")) as sink:
        assert sink.write(second) is None


def test_what_a_change_stream_needs(path: Path) -> None:
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"newer_by": None}, "needs key and newer_by"),
        ({"deletes_kept": 0}, "deletes_kept=0"),
        ({"delete_when": "gone"}, "pass one of them"),
        ({"newer_by": ("pos", "pos")}, "expected names of columns"),
    ]
    for wrong, fact in wrongs:
        with pytest.raises(ConfigError, match=fact):
            sink_to(path, **wrong)
    with pytest.raises(ConfigError, match="expected at most 63 bytes, found 67"):
        SqlSink("postgresql://db/shop", "t" * 50, mode="upsert", key="id", newer_by="at", operation="op")
    with opened(sink_to(path)) as sink, pytest.raises(PermanentError, match="column 'op' of the change stream"):
        sink.write(chunk(table_of([change("c", 1)]).drop_columns(["op"])))
    assert sink_to(path).max_concurrency == 1


def test_no_disturbance_loses_or_repeats_a_change(tmp_path: Path) -> None:
    numbers = iter(range(10**6))

    def make_sink(path: Path) -> Delivery:
        return Delivery(
            SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="pos", operation="op")
        )

    def rows_in(path: Path) -> list[dict[str, Any]]:
        if not query(path, "SELECT 1 FROM sqlite_master WHERE name = 'flights'"):
            return []
        return [{"id": id_, "pos": pos, "op": "c"} for id_, pos in query(path, "SELECT id, pos FROM flights")]

    tables = [pa.table({"id": ids, "pos": ids, "op": ["c"] * len(ids)}) for ids in ([0, 1, 2, 3], [4, 5])]
    matrix = crash_matrix(
        make_sink, rows_in, lambda: tmp_path / f"{next(numbers)}.db", tables=tables, every=23, each_line=False
    ).check()
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0

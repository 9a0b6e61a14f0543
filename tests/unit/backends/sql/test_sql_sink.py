"""`SqlSink` on SQLite: rows and ledger move together or not at all, whichever process is killed or late.

What every transactional sink must do is tested in `tests/contract/test_backends.py`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import pickle
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.refusals import unrefused
from tests.support.side_by_side import side_by_side
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import ConfigError, FencedError, PermanentError
from wal_sink.settings import Delivery
from wal_sink.testing import crash_matrix
from wal_sink_backends.sql.base.dialect import LEDGER
from wal_sink_backends.sql.sink import SqlSink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def sink(path: Path) -> Iterator[SqlSink]:
    yield from opened(SqlSink(f"sqlite:///{path}", "flights"))


def opened(sink: SqlSink) -> Iterator[SqlSink]:
    sink.open(CONTEXT)
    yield sink
    sink.close()


def query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as connection:
        return connection.execute(statement).fetchall()


def stored(path: Path, columns: str = "id") -> list[tuple[Any, ...]]:
    return query(path, f"SELECT {columns} FROM flights ORDER BY 1")


def test_columns_that_differ_in_a_letter_beyond_ascii_are_two(sink: SqlSink, path: Path) -> None:
    """SQLite folds ASCII only. Text in the column of the other one's type would lose its zeros."""
    query(path, 'CREATE TABLE flights ("Ä" INTEGER, "ä" TEXT, id INTEGER)')
    with pytest.raises(PermanentError, match=r"column 'Ä' is declared 'INTEGER'\. This type would alter text"):
        sink.write(chunk(pa.table({"Ä": ["007"], "id": [1]})))
    assert sink.write(chunk(pa.table({"ä": ["007"], "ID": [1]}))) is None
    assert stored(path, '"ä", id') == [("007", 1)]


def test_a_ledger_that_takes_two_slots_for_one_is_refused(sink: SqlSink, path: Path) -> None:
    sink.write(chunk(ids(1), slot="wal/Orders/0"))
    query(path, f"ALTER TABLE {LEDGER} RENAME TO older")
    columns = "slot TEXT PRIMARY KEY COLLATE NOCASE, term INTEGER, batch_id INTEGER, segment_id TEXT, rows INTEGER"
    query(path, f"CREATE TABLE {LEDGER} ({columns})")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"INSERT INTO {LEDGER} SELECT * FROM older")
    with pytest.raises(PermanentError, match=r"found a row for slot 'wal/Orders/0', expected one of .*wal/orders/0"):
        sink.write(chunk(ids(1), slot="wal/orders/0"))


def test_positions_of_more_slots_than_a_statement_takes(sink: SqlSink) -> None:
    slots = [f"wal/default/{number}" for number in range(1_200)]
    for number in (0, 499, 500, 1199):
        sink.write(chunk(ids(number), slot=slots[number]))
    connection: Any = sink._connection
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    found = sink.positions(slots)
    assert len(statements) == 3
    assert list(found) == slots
    held = {slot: position for slot, position in found.items() if position is not None}
    assert held == {slots[number]: Position(slots[number], 0, 1, "a") for number in (0, 499, 500, 1199)}
    assert sink.positions([]) == {}
    assert len(statements) == 3


def test_even_a_repeat_of_a_lower_term_is_refused(sink: SqlSink) -> None:
    sink.write(chunk(ids(1), term=7))
    with pytest.raises(
        FencedError, match="a process with term 7 has already written to this slot, but the term of this process is 6"
    ):
        sink.write(chunk(ids(1), term=6))


def test_a_chunk_less_rejected_rows_is_written(sink: SqlSink, path: Path) -> None:
    sink.write(chunk(ids(1, 2, 3)).without([0]))
    assert stored(path) == [(2,), (3,)]
    assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")


def test_a_chunk_without_rows_still_moves_the_ledger(sink: SqlSink) -> None:
    sink.write(chunk(ids(1)).without([0]))
    assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")


def test_the_position_outlives_the_connection(sink: SqlSink, path: Path) -> None:
    sink.write(chunk(ids(1)))
    sink.close()
    for reopened in opened(pickle.loads(pickle.dumps(sink))):  # noqa: S301 - as Spark does
        assert reopened.last(SLOT) == Position(SLOT, 0, 1, "a")
        reopened.write(chunk(ids(1)))
    assert stored(path) == [(1,)]


def test_refused_rows_are_named_and_leave_neither_rows_nor_position(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (id INTEGER CHECK (id < 3))")
    reason = "CHECK constraint failed: id < 3"
    assert sink.write(chunk(ids(5, 1, 3, 2))) == Rejected({0: reason, 2: reason})
    assert stored(path) == []
    assert sink.last(SLOT) is None
    assert sink.write(chunk(ids(5, 1, 3, 2)).without([0, 2])) is None
    assert stored(path) == [(1,), (2,)]
    assert sink.last(SLOT) == Position(SLOT, 0, 4, "a")


@pytest.mark.parametrize(
    ("declared", "values", "reason"),
    [
        ("INTEGER NOT NULL", pa.array([1, None]), "NOT NULL constraint failed: flights.id"),
        ("BIGINT PRIMARY KEY", pa.array([1, 1]), "UNIQUE constraint failed: flights.id"),
        ("INTEGER", pa.array([1, 2**64 - 1], pa.uint64()), "SQLite cannot hold a value: Python int too large"),
        ("TEXT", pa.array(["a", "x" * 2000]), "string or blob too big"),
    ],
    ids=["NULL", "a key that is there", "a number out of range", "a text too long"],
)
def test_whatever_a_row_is_refused_for_it_is_named(
    sink: SqlSink, path: Path, declared: str, values: Any, reason: str
) -> None:
    query(path, f"CREATE TABLE flights (id {declared})")
    connection: Any = sink._connection
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    rejected = sink.write(chunk(pa.table({"id": values})))
    assert isinstance(rejected, Rejected)
    assert list(rejected.reasons) == [1]
    assert rejected.reasons[1].startswith(reason)
    assert stored(path) == []


def test_what_a_trigger_refuses_is_a_row_too(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (id INTEGER)")
    query(path, trigger("ABORT"))
    assert sink.write(chunk(ids(1, 2, 3))) == Rejected({1: "no twos"})


@pytest.mark.parametrize("bad", [None, 2], ids=["a constraint", "a trigger"])
def test_a_table_that_undoes_the_whole_transaction_ends_the_delivery(
    sink: SqlSink, path: Path, bad: int | None
) -> None:
    """The savepoints are gone then, and the rows that follow would be committed one by one."""
    query(path, "CREATE TABLE flights (id INTEGER NOT NULL ON CONFLICT ROLLBACK)")
    query(path, trigger("ROLLBACK"))
    with pytest.raises(PermanentError, match=r"rolls back the whole transaction .* Change ROLLBACK to ABORT"):
        sink.write(chunk(ids(1, bad, 3)))
    assert stored(path) == []
    assert sink.last(SLOT) is None


@pytest.mark.parametrize(
    "definition", ["id INTEGER UNIQUE ON CONFLICT IGNORE", "id INTEGER NOT NULL ON CONFLICT IGNORE", "id INTEGER"]
)
def test_a_row_that_a_table_drops_silently_is_rejected_unless_it_may(
    sink: SqlSink, path: Path, caplog: pytest.LogCaptureFixture, definition: str
) -> None:
    query(path, f"CREATE TABLE flights ({definition})")
    if definition == "id INTEGER":
        query(path, trigger("IGNORE").replace("IGNORE, 'no twos'", "IGNORE"))
    bad = None if "NOT NULL" in definition else 1 if "UNIQUE" in definition else 2
    rejected = sink.write(chunk(ids(1, bad, 3)))
    assert rejected == Rejected({1: DROPPED})
    assert stored(path) == []
    assert sink.last(SLOT) is None
    with caplog.at_level("INFO"):
        for allowing in opened(SqlSink(f"sqlite:///{path}", "flights", may_drop_rows=True)):
            assert allowing.write(chunk(ids(1, bad, 3))) is None
    assert stored(path) == [(1,), (3,)]
    (told,) = [record.getMessage() for record in caplog.records if "may_drop_rows" in record.getMessage()]
    assert told.startswith("batch 0, chunk a-0-3: table 'flights' in sqlite:///")
    assert told.endswith(": the table kept 2 of 3 rows, as may_drop_rows allows")


@pytest.mark.parametrize("newer_by", [None, "at"], ids=["upsert", "newer_by"])
@pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
def test_a_row_of_an_upsert_that_a_trigger_ignores_is_rejected(path: Path, when: str, newer_by: str | None) -> None:
    query(path, "CREATE TABLE flights (id INTEGER NOT NULL PRIMARY KEY, at INTEGER, mark INTEGER)")
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by=newer_by)):
        sink.write(chunk(pa.table({"id": [1, 2, 3], "at": [5, 5, None], "mark": [1, 1, 1]})))
        ignores = f"CREATE TRIGGER picky BEFORE {when} ON flights WHEN NEW.mark = 2 BEGIN SELECT RAISE(IGNORE); END"
        query(path, ignores)
        again = pa.table({"id": [1, 2, 2, 3, 4], "at": [6, 5, 5, 4, 1], "mark": [3, 2, 1, 3, 3]})
        assert sink.write(chunk(again, first=3)) == Rejected({1: DROPPED})
        assert sink.write(chunk(again, first=3).without([1])) is None
        if newer_by:  # it would not have replaced anything
            assert sink.write(chunk(pa.table({"id": [1], "at": [1], "mark": [2]}), first=8)) is None
    assert query(path, "SELECT id, mark FROM flights ORDER BY id") == [(1, 3), (2, 1), (3, 3), (4, 3)]


def test_a_key_that_a_wider_index_finds_is_no_row_ignored(path: Path) -> None:
    """The row that is older than the stored one is not found by the column's own collation."""
    query(path, "CREATE TABLE flights (id TEXT NOT NULL, at INTEGER)")
    query(path, "CREATE UNIQUE INDEX own ON flights (id COLLATE NOCASE)")
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="at")):
        sink.write(chunk(pa.table({"id": ["A", "b"], "at": [5, 5]})))
        assert sink.write(chunk(pa.table({"id": ["a", "B"], "at": [4, 6]}), first=2)) is None
    assert query(path, "SELECT id, at FROM flights ORDER BY id") == [("A", 5), ("b", 6)]


@pytest.mark.parametrize(
    ("definition", "left"),
    [
        ("id INTEGER UNIQUE on conflict /* quietly */ replace", [(None,), (1,)]),
        ("id INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 7", [(1,), (1,), (7,)]),
        ("id INTEGER /* not ON CONFLICT REPLACE */, 'ON CONFLICT REPLACE' INTEGER", [(None,), (1,), (1,)]),
    ],
)
def test_a_table_that_replaces_rows_or_nulls_is_warned_of(
    sink: SqlSink, path: Path, caplog: pytest.LogCaptureFixture, definition: str, left: list[tuple[int | None]]
) -> None:
    """The table was made to: nothing is refused, and SQLite tells neither which rows it deleted nor how many."""
    query(path, f"CREATE TABLE flights ({definition})")
    assert sink.write(chunk(ids(1, None, 1))) is None
    assert query(path, "SELECT id FROM flights ORDER BY 1") == left
    told = [record.getMessage() for record in caplog.records if "is made with" in record.getMessage()]
    assert [text.startswith("table 'flights' of ") for text in told] == ([] if "'" in definition else [True])


def test_a_repeated_key_with_nothing_to_update_is_no_row_ignored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query(path, "CREATE TABLE flights (id INTEGER NOT NULL PRIMARY KEY)")
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id")):
        sink.write(chunk(ids(1, 2)))
        sink.write(chunk(ids(2, 3), first=2))
    assert stored(path) == [(1,), (2,), (3,)]
    assert not [record for record in caplog.records if "kept" in record.getMessage()]


def test_no_disturbance_loses_or_repeats_a_row_where_some_are_refused(tmp_path: Path) -> None:
    """Whether it is in the table or a dead letter."""
    numbers = itertools.count()

    def new_target() -> Path:
        path = tmp_path / f"{next(numbers)}.db"
        query(path, "CREATE TABLE flights (id INTEGER CHECK (id % 3 <> 1))")
        return path

    def make_sink(path: Path) -> Delivery:
        return Delivery(SqlSink(f"sqlite:///{path}", "flights"), on_rejected="dead_letter")

    def rows_in(path: Path) -> list[dict[str, Any]]:
        return [{"id": row} for (row,) in stored(path)]

    matrix = crash_matrix(
        make_sink, rows_in, new_target, tables=[ids(0, 1, 2, 3), ids(4, 5)], every=11, each_line=False
    ).check()
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0


DROPPED = (
    "the table kept 0 of 1 rows and gave no error: a trigger or the definition of the table drops rows. If this is "
    "intended, pass may_drop_rows=True"
)


def trigger(how: str) -> str:
    return f"CREATE TRIGGER picky BEFORE INSERT ON flights WHEN NEW.id = 2 BEGIN SELECT RAISE({how}, 'no twos'); END"


def test_upsert_replaces_rows_of_the_same_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A chunk that holds a key twice is warned of once, since nobody knows which row is newer."""
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key=("id",))):
        sink.write(chunk(pa.table({"id": [2, 3], "late": [1, 9]})))
        assert not caplog.records
        sink.write(chunk(pa.table({"id": [1, 2, 1], "late": [5, 6, 7]}), first=2))
        sink.write(chunk(pa.table({"id": [2, 2], "late": [7, 8]}), first=5))
    assert stored(path, "id, late") == [(1, 7), (2, 8), (3, 9)]
    assert ["several rows at once have one key" in record.getMessage() for record in caplog.records] == [True]


def test_keys_that_arrow_does_not_compare_are_upserted(path: Path) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id")):
        sink.write(chunk(pa.table({"id": [[1], [1]], "late": [5, 6]})))
    assert stored(path, "id, late") == [("[1]", 6)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 2, 10]),
        (pa.float64(), [-1.5, 0.5, math.nan]),
        (pa.date32(), [dt.date(999, 1, 1), dt.date(2023, 1, 1), dt.date(2023, 1, 2)]),
        (pa.timestamp("us", "UTC"), [0, 1, 2_000_000]),
    ],
    ids=str,
)
def test_only_a_newer_row_replaces(path: Path, caplog: pytest.LogCaptureFixture, kind: Any, values: list[Any]) -> None:
    """sqrl#85: an older row that comes late does not replace a newer one. NULL is the oldest, an equal row replaces;
    within a chunk as between two.
    """
    old, new, newest = values

    def rows(*of: tuple[str, Any, int]) -> pa.Table:
        names, versions, marks = zip(*of, strict=True)
        return pa.table({"at": pa.array(versions, kind), "id": names, "mark": marks})

    first = rows(("older", new, 1), ("equal", new, 1), ("newer", new, 1), ("null", new, 1), ("was null", None, 1))
    second = rows(("older", old, 2), ("equal", new, 2), ("newer", newest, 2), ("null", None, 2), ("was null", old, 2))
    within = rows(("in", newest, 1), ("in", old, 2), ("in", None, 3), ("nulls", None, 1), ("nulls", None, 2))
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="at")):
        for number, table in enumerate([first, second, within]):
            assert sink.write(chunk(table, first=5 * number)) is None
    assert dict(query(path, "SELECT id, mark FROM flights")) == {
        "older": 1,
        "equal": 2,
        "newer": 2,
        "null": 1,
        "was null": 2,
        "in": 1,
        "nulls": 2,
    }
    assert not [record for record in caplog.records if "kept" in record.getMessage()]


@pytest.mark.parametrize(
    "values",
    [
        *(
            pa.array(["a"]),
            pa.array([Decimal("1.5")]),
            pa.array([1], pa.duration("us")),
            pa.array([1], pa.time64("us")),
        ),
        *(pa.array([1], pa.timestamp("ms")), pa.array([True]), pa.array([[1]])),
    ],
    ids=lambda some: str(some.type),
)
def test_what_sqlite_keeps_as_text_tells_no_age(path: Path, values: Any) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="at")):
        with pytest.raises(
            PermanentError, match=r"newer_by column 'at' is .* Cast the column to a number or a timestamp"
        ):
            sink.write(chunk(pa.table({"id": [1], "at": values})))


def test_a_year_of_five_digits_tells_no_age_in_sqlite(path: Path) -> None:
    days = pa.array([0, 10**7, None, -(10**6)], pa.date32())
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="at")):
        rejected = sink.write(chunk(pa.table({"id": range(4), "at": days})))
        assert isinstance(rejected, Rejected)
        assert list(rejected.reasons) == [1, 3]
        assert rejected.reasons[1].startswith("newer_by column 'at' is beyond the years 0000 to 9999: +")


def test_an_age_in_another_form_is_not_compared(path: Path) -> None:
    """Letter by letter, 23:00 as `datetime()` writes it precedes 09:00 as the sink does."""
    query(path, "CREATE TABLE flights (id INTEGER PRIMARY KEY, at TIMESTAMP, more TEXT)")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO flights VALUES (1, datetime('2024-01-01 23:00:00'), 'newer')")
    older = pa.table(
        {"id": [1], "at": pa.array([dt.datetime(2024, 1, 1, 9, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))}
    )
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id", newer_by="at")):
        with pytest.raises(PermanentError, match=r"of the form '0000-00-00 00:00:00', but the query sends '0000.*Z'"):
            sink.write(chunk(older))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE flights SET at = strftime('%Y-%m-%dT%H:%M:%f000Z', at)")
        assert sink.write(chunk(older)) is None
    assert stored(path, "id, at, more") == [(1, "2024-01-01T23:00:00.000000Z", "newer")]


def test_an_expression_that_fails_for_a_row_refuses_it(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (id INTEGER, more TEXT CHECK (json_extract(more, '$.a') = 1))")
    rows = pa.table({"id": [1, 2, 3], "more": ['{"a": 1}', "{", '{"a": 1}']})
    assert sink.write(chunk(rows)) == Rejected({1: "malformed JSON"})
    with pytest.raises(PermanentError, match="malformed JSON"):
        sink.write(chunk(rows.slice(1, 1)))


def test_upsert_of_key_columns_only(path: Path) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key=("id",))):
        sink.write(chunk(ids(1, 1, 2)))
    assert stored(path) == [(1,), (2,)]


def test_upsert_refuses_a_missing_key(path: Path) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key=("no",))):
        rejected = Rejected({1: "key column 'no' is NULL"})
        assert sink.write(chunk(pa.table({"no": pa.array(["a", None, "b"])}))) == rejected
        with pytest.raises(PermanentError, match="key column 'no' is not among"):
            sink.write(chunk(ids(1)))


def test_upsert_rejects_null_in_a_lone_integer_key(path: Path) -> None:
    """SQLite would make up a key, and another one for each repetition."""
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id")):
        assert sink.write(chunk(ids(1, None, 2))) == Rejected({1: "key column 'id' is NULL"})
        assert sink.last(SLOT) is None
        assert sink.write(chunk(ids(1, None, 2)).without([1])) is None
    assert stored(path) == [(1,), (2,)]


def test_append_rejects_null_where_sqlite_would_put_a_rowid(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (Id integer PRIMARY KEY)")
    assert sink.write(chunk(ids(7))) is None
    rejected = sink.write(chunk(ids(None, 8), first=1))
    assert rejected == Rejected({0: "column 'id' is NULL, but the database would replace the NULL"})
    assert stored(path) == [(7,)]
    assert sink.write(chunk(ids(None, 8), first=1).without([0])) is None
    assert stored(path) == [(7,), (8,)]


def test_append_keeps_null_in_any_other_column(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (id BIGINT, part INTEGER, PRIMARY KEY (part, id))")
    sink.write(chunk(pa.table({"id": pa.array([None], pa.int64()), "part": [1]})))
    assert stored(path, "id, part") == [(None, 1)]


@pytest.mark.parametrize("key", [(), ("name",)])
def test_text_that_is_no_utf8_is_rejected(path: Path, key: tuple[str, ...]) -> None:
    """As a Spark string may be: Arrow does not look when it gets the bytes."""
    offsets = pa.array([0, 2, 5, 6], pa.int32()).buffers()[1]
    names: Any = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"ok\xed\xa0\x80\xff")])
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert" if key else "append", key=key)):
        rejected = sink.write(chunk(pa.table({"name": names})))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {1, 2}
        assert "column 'name' holds bytes that are not UTF-8" in rejected.reasons[1]
        assert sink.last(SLOT) is None
        assert sink.write(chunk(pa.table({"name": names})).without([1, 2])) is None
    assert stored(path, "name") == [("ok",)]


@pytest.mark.parametrize("key", [(), ("id",)])
@pytest.mark.parametrize(
    "table",
    [
        pa.Table.from_arrays([pa.array([1]), pa.array([None], pa.int64())], ["id", "id"]),
        pa.table({}),
        pa.table({"id": [1], "ID": [2]}),
    ],
    ids=["one name twice", "no columns", "names that differ in case"],
)
def test_columns_that_no_table_has_are_refused_for_good(path: Path, key: tuple[str, ...], table: pa.Table) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert" if key else "append", key=key)):
        with pytest.raises(PermanentError, match="expected columns with names that differ"):
            sink.write(chunk(table))


def test_a_sink_opens_after_it_failed_to_on_another_thread(path: Path) -> None:
    sink = SqlSink(f"sqlite:///{path}", "flights", busy_timeout_s=0.05)
    for one in opened(SqlSink(f"sqlite:///{path}", "others")):
        one.write(chunk(ids(1)))
    query(path, f"DROP TABLE {LEDGER}")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sink.open(CONTEXT)
        other.execute("ROLLBACK")
    positions: list[Position | None] = []

    def again() -> None:
        sink.open(CONTEXT)
        sink.write(chunk(ids(1)))
        positions.append(sink.last(SLOT))

    thread = threading.Thread(target=again)
    thread.start()
    thread.join()
    assert positions == [Position(SLOT, 0, 1, "a")]
    sink.open(CONTEXT)  # in place of the other thread's connection
    assert sink.last(SLOT) == positions[0]
    sink.close()


def test_upsert_into_a_table_without_unique_index(path: Path) -> None:
    query(path, "CREATE TABLE flights (id INTEGER)")
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key="id")):
        with pytest.raises(PermanentError, match="does not match any PRIMARY KEY or UNIQUE constraint"):
            sink.write(chunk(ids(1)))


def test_a_missing_table(path: Path) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", create_table=False)):
        with pytest.raises(PermanentError, match=r"this table does not exist\. Create it, or pass create_table=True"):
            sink.write(chunk(ids(1)))
        assert sink.last(SLOT) is None


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ("CREATE VIEW flights AS SELECT 1 AS id", "flights is a view"),
        ("CREATE VIRTUAL TABLE flights USING fts5(id)", "flights is a virtual table"),
    ],
)
def test_other_kinds_of_tables_are_refused(sink: SqlSink, path: Path, definition: str, told: str) -> None:
    """A view with a trigger takes rows, and keeps none."""
    query(path, definition)
    if "VIEW" in definition:
        query(path, "CREATE TRIGGER gone INSTEAD OF INSERT ON flights BEGIN SELECT 1; END")
    with pytest.raises(PermanentError, match=told):
        sink.write(chunk(pa.table({"id": ["1"]})))
    assert sink.last(SLOT) is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [("main.flights", "Write table='flights', or create"), ('"flights"', "without the quotes, or create")],
)
def test_a_name_that_reads_like_a_schema_and_a_table_makes_none(path: Path, name: str, advice: str) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", name)):
        with pytest.raises(PermanentError, match=f"no table has exactly the name .*{advice}"):
            sink.write(chunk(ids(1)))
        quoted = name.replace('"', '""')
        query(path, f'CREATE TABLE "{quoted}" (id INTEGER)')
        assert sink.write(chunk(ids(1))) is None


def test_a_table_that_was_altered_is_described_again(sink: SqlSink, path: Path) -> None:
    sink.write(chunk(pa.table({"id": [b"x"]})))
    query(path, "DROP TABLE flights")
    query(path, "CREATE TABLE flights (id TEXT)")
    with pytest.raises(PermanentError, match=r"column 'id' is declared 'TEXT'\. This type would alter"):
        sink.write(chunk(pa.table({"id": [b"x"]}), first=1))
    query(path, "DROP TABLE flights")
    with pytest.raises(
        PermanentError, match="the table no longer exists, and the rows that this process wrote to it are lost"
    ):
        sink.write(chunk(pa.table({"id": [b"x"]}), first=1))


def slot(ordinal: int) -> str:
    return f"{SLOT.rpartition('/')[0]}/{ordinal}"


@pytest.mark.parametrize("ordinal", [0, 1], ids=["the first segment", "a new segment"])
def test_a_table_that_is_gone_is_not_made_again_by_a_new_process_either(path: Path, ordinal: int) -> None:
    """Before: the earlier rows were missing without a word. The second case: no slot but segment 0's tells it."""
    after = Position(SLOT, 0, 2, "a")
    for first in opened(SqlSink(f"sqlite:///{path}", "flights")):
        first.write(chunk(ids(1, 2)))
    query(path, "DROP TABLE flights")
    later = chunk(ids(3), batch=1, segment="b", slot=slot(ordinal), after=after if ordinal == 0 else None)

    for second in opened(SqlSink(f"sqlite:///{path}", "flights")):
        with pytest.raises(PermanentError, match=r"the table is gone, but .* rows up to batch 0\. Restore the table\."):
            second.write(later)
    assert query(path, "SELECT name FROM sqlite_master WHERE name = 'flights'") == []

    for accepting in opened(SqlSink(f"sqlite:///{path}", "flights", recreated_table="accept")):
        assert accepting.write(later) is None
    assert stored(path) == [(3,)]


def test_recreated_table_is_refuse_or_accept() -> None:
    wrong: Any = "yes"
    with pytest.raises(ConfigError, match="recreated_table='yes': expected one of 'refuse', 'accept'"):
        SqlSink("sqlite:////data/shop.db", "t", recreated_table=wrong)


def test_a_missing_column(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (Nr INTEGER)")
    with pytest.raises(PermanentError, match=r"no column 'id', only \['nr'\]"):
        sink.write(chunk(ids(1)))


def test_column_names_ignore_case_as_sqlite_does(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE flights (ID INTEGER, extra TEXT DEFAULT 'x')")
    sink.write(chunk(ids(1)))
    assert stored(path, "id, extra") == [(1, "x")]
    with pytest.raises(PermanentError, match="names that differ"):
        sink.write(chunk(pa.table({"id": [1], "Id": [2]}), first=1))


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("INTEGER", pa.array(["007"])),
        ("DECIMAL(38, 18)", pa.array([Decimal("1.50")], pa.decimal128(38, 18))),
        ("TEXT", pa.array([1])),
        ("INT", pa.array([1.5])),
        ("TEXT", pa.array([b"x"])),
    ],
)
def test_a_column_that_would_alter_values_is_refused(sink: SqlSink, path: Path, declared: str, values: Any) -> None:
    query(path, f"CREATE TABLE flights (id {declared})")
    with pytest.raises(PermanentError, match=r"column 'id' is declared .* This type would alter"):
        sink.write(chunk(pa.table({"id": values})))


def test_a_schema_that_changes_midway_is_checked_again(sink: SqlSink) -> None:
    sink.write(chunk(ids(1)))
    with pytest.raises(PermanentError, match="no column 'more'"):
        sink.write(chunk(pa.table({"id": [2], "more": ["x"]}), first=1))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([2**63 - 1, -(2**63), None]), [2**63 - 1, -(2**63), None]),
        (pa.array([0.1, math.inf, -math.inf, None], pa.float32()), [0.1, math.inf, -math.inf, None]),
        (pa.array([1.5, math.nan]), [1.5, "NaN"]),
        (pa.array([True, False, None]), [1, 0, None]),
        (pa.array(["007", "", None]), ["007", "", None]),
        (
            pa.array([Decimal("1.50"), Decimal("1E-18")], pa.decimal128(38, 18)),
            ["1.500000000000000000", "0." + "0" * 17 + "1"],
        ),
        (pa.array([dt.date(2013, 1, 2), dt.date(1, 1, 1)]), ["2013-01-02", "0001-01-01"]),
        (pa.array([0], pa.timestamp("us", "Europe/Paris")), ["1970-01-01T00:00:00.000000Z"]),
        (pa.array([1_500_000], pa.duration("us")), ["PT1.5S"]),
        (pa.array([b"\0\xff", None]), [b"\0\xff", None]),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        (pa.nulls(1), [None]),
    ],
    ids=str,
)
def test_types(sink: SqlSink, path: Path, values: Any, wanted: list[Any]) -> None:
    sink.write(chunk(pa.table({"v": values})))
    assert query(path, "SELECT v FROM flights ORDER BY rowid") == [(value,) for value in wanted]


def test_nested_values_are_json_text(sink: SqlSink, path: Path) -> None:
    values = [{"a": [1, None], "b": {"c": "x"}}, None]
    sink.write(chunk(pa.table({"v": pa.array(values)})))
    found = query(path, "SELECT v FROM flights ORDER BY rowid")
    assert [None if text is None else json.loads(text) for (text,) in found] == values


def test_rows_refused_before_the_table_was_there_leave_none(sink: SqlSink, path: Path) -> None:
    rejected = sink.write(chunk(pa.table({"id": pa.array([2**64 - 1], pa.uint64())})))
    assert rejected == Rejected({0: "SQLite cannot hold a value: Python int too large to convert to SQLite INTEGER"})
    assert query(path, "SELECT name FROM sqlite_master WHERE name = 'flights'") == []


def test_names_are_quoted(path: Path) -> None:
    name = 'a"b; DROP TABLE x; --'
    for sink in opened(SqlSink(f"sqlite:///{path}", name, mode="upsert", key=(name,))):
        sink.write(chunk(pa.table({name: [1], "select": [2], "a.b": [3], "ü ?": [4]})))
        sink.write(chunk(pa.table({name: [1], "select": [5], "a.b": [6], "ü ?": [7]}), first=1))
    quoted = name.replace('"', '""')
    assert query(path, f'SELECT * FROM "{quoted}"') == [(1, 5, 6, 7)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_look_undoes_the_transaction_in_which_a_process_was_killed_and_changes_nothing_else(
    path: Path, tmp_path: Path, mode: str
) -> None:
    """Otherwise no start would come past its look: only a connection that may write undoes it."""
    (tmp_path / "left").mkdir()
    left = tmp_path / "left" / path.name
    with closing(sqlite3.connect(path, isolation_level=None)) as killed:
        killed.execute(f"PRAGMA journal_mode = {mode}")
        killed.execute("CREATE TABLE flights (id INTEGER)")
        killed.execute("INSERT INTO flights VALUES (1)")
        killed.execute("PRAGMA cache_size = 1")  # pages reach the file before the commit
        killed.execute("BEGIN IMMEDIATE")
        killed.executemany("INSERT INTO flights VALUES (?)", ((row,) for row in range(20_000)))
        for file in path.parent.glob(f"{path.name}*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, left.parent)
        killed.execute("ROLLBACK")
    assert len(list(left.parent.iterdir())) == 2, "the file, and what undoes or completes it"

    found = SqlSink(f"sqlite:///{left}", "flights").examine(pa.schema({"id": pa.int64()}))

    assert [finding.level for finding in found] == ["OK", "OK"]
    with closing(sqlite3.connect(left)) as connection:
        assert connection.execute("SELECT id FROM flights").fetchall() == [(1,)]
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_a_locked_database_may_be_tried_again(path: Path) -> None:
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights", busy_timeout_s=0.05)):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                sink.write(chunk(ids(1)))
        sink.write(chunk(ids(1)))
    assert stored(path) == [(1,)]


def test_a_full_disk_may_be_tried_again(sink: SqlSink, path: Path) -> None:
    sink.write(chunk(ids(0)))
    connection: Any = sink._connection
    connection.execute("PRAGMA max_page_count = 8")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        sink.write(chunk(ids(*range(1, 100_000)), first=1))
    connection.execute("PRAGMA max_page_count = 1000000")
    sink.write(chunk(ids(*range(1, 100_000)), first=1))
    assert query(path, "SELECT count(*), count(DISTINCT id) FROM flights") == [(100_000, 100_000)]


def test_a_foreign_key_is_checked_row_by_row(sink: SqlSink, path: Path) -> None:
    """SQLite checks none unless a connection says so."""
    query(path, "CREATE TABLE planes (id INTEGER PRIMARY KEY)")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO planes VALUES (1), (2)")
    query(path, "CREATE TABLE flights (id INTEGER REFERENCES planes (id))")
    reason = "FOREIGN KEY constraint failed"
    assert sink.write(chunk(ids(1, 9, 2, None, 8))) == Rejected({1: reason, 4: reason})
    assert stored(path) == []


def test_an_sqlite_without_foreign_keys_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Without:
        """A connection of such a build: the pragma answers nothing."""

        def execute(self, statement: str) -> Without:
            assert statement.startswith("PRAGMA foreign_keys")
            return self

        def fetchone(self) -> None:
            return None

    dialect: Any = SqlSink(f"sqlite:///{path}", "flights")._dialect
    dialect._enforce_foreign_keys(Without())
    assert "this SQLite was built without foreign keys, so it does not check foreign keys" in caplog.text


def test_a_column_that_needs_a_value_and_gets_none_is_refused_before_a_row_is_written(
    sink: SqlSink, path: Path
) -> None:
    query(
        path, "CREATE TABLE flights (id INTEGER PRIMARY KEY NOT NULL, n INTEGER NOT NULL DEFAULT 0, must TEXT NOT NULL)"
    )
    with pytest.raises(PermanentError, match=r"column 'must' of flights needs a value, but has no default"):
        sink.write(chunk(ids(1)))


def test_a_ledger_that_a_trigger_keeps_from_moving_is_refused(sink: SqlSink, path: Path) -> None:
    query(path, f"CREATE TRIGGER t BEFORE INSERT ON {LEDGER} BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(PermanentError, match=r"of wal_sink_ledger: 0 rows moved, expected 1"):
        sink.write(chunk(ids(1)))
    assert query(path, "SELECT * FROM sqlite_master WHERE name = 'flights'") == []


def test_a_deferred_foreign_key_ends_the_delivery(sink: SqlSink, path: Path) -> None:
    query(path, "CREATE TABLE planes (id INTEGER PRIMARY KEY)")
    query(path, "CREATE TABLE flights (id INTEGER REFERENCES planes (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(PermanentError, match="FOREIGN KEY constraint failed"):
        sink.write(chunk(ids(9)))
    assert stored(path) == []
    assert sink.last(SLOT) is None


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_file_of_others_keeps_its_journal_mode(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE theirs (id INTEGER)")
    for sink in opened(SqlSink(f"sqlite:///{path}", "flights")):
        assert sink.write(chunk(ids(1))) is None
        connection: Any = sink._connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (2 if mode == "wal" else 3,)
    assert query(path, "PRAGMA journal_mode") == [(mode,)]


def test_a_file_made_here_has_a_write_ahead_log(sink: SqlSink, path: Path) -> None:
    assert sink.write(chunk(ids(1))) is None
    assert query(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(PermanentError, match="not a database"):
        SqlSink(f"sqlite:///{path}", "flights").open(CONTEXT)


def test_another_machine_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SqlSink(f"sqlite:///{path}", "flights")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(PermanentError, match='where="driver"'):
        sink.open(CONTEXT)
    assert not path.exists()


def test_a_relative_path_counts_from_where_the_sink_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = SqlSink("sqlite:///rel.db", "flights")
    monkeypatch.chdir("/")
    for made in opened(sink):
        made.write(chunk(ids(1)))
    assert stored(tmp_path / "rel.db") == [(1,)]


def test_arguments_that_cannot_work() -> None:
    def make(url: str, arguments: dict[str, Any]) -> None:
        given: dict[str, Any] = {"table": "flights"} | arguments
        SqlSink(url, **given)

    cases: list[tuple[Any, ...]] = [
        ("oracle://me:hunter2@db/x", {}, "cannot reach 'oracle' databases"),
        ("sqlite://", {}, "expected sqlite:///relative.db"),
        ("sqlite:///:memory:", {}, "expected sqlite:///relative.db"),
        ("sqlite://user:hunter2@host?key=hunter2", {}, "^sqlite://host: expected sqlite:///relative.db"),
        ("rows.db", {}, "expected sqlite:///file.db"),
        ("sqlite:///{env}.db", {}, r"url='sqlite:///\{env\}.db': expected no braces"),
        ("sqlite:///x.db", {"table": "{day}"}, r"table='\{day\}': expected no braces"),
        ("sqlite:///x.db", {"mode": "replace"}, "expected one of 'append', 'upsert'"),
        ("sqlite:///x.db", {"mode": "upsert"}, "expected key columns"),
        ("sqlite:///x.db", {"key": ("id",)}, "expected key columns"),
        ("sqlite:///x.db", {"table": LEDGER}, "other than wal_sink_ledger"),
        ("sqlite:///x.db", {"busy_timeout_s": 0}, "expected a number of seconds"),
        (
            "postgresql://h/x",
            {"schema": "s" * 64},
            r"^'s+' has 64 bytes; expected at most 63 in the name of a database or schema",
        ),
        (
            f"postgresql://h/{'d' * 64}",
            {},
            r"^'d+' has 64 bytes; expected at most 63 in the name of a database or schema",
        ),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_repr_names_the_target(path: Path) -> None:
    sink = SqlSink(f"sqlite:///{path}", "flights", mode="upsert", key=("id",))
    assert repr(sink) == f"SqlSink('sqlite:///{path}', 'flights', mode='upsert', key=('id',))"


def test_two_senders_of_one_chunk_write_it_once(path: Path) -> None:
    """A zombie and the newer process, or a call that was left behind and its repetition."""

    def send() -> None:
        for sink in opened(SqlSink(f"sqlite:///{path}", "flights")):
            for batch in range(20):
                before = Position(SLOT, batch - 1, 1, f"s{batch - 1}") if batch else None
                sink.write(chunk(ids(batch), batch=batch, segment=f"s{batch}", after=before))

    side_by_side(4, send)
    assert stored(path) == [(batch,) for batch in range(20)]


def test_an_sqlite_file_has_one_writer_and_a_server_any_number(tmp_path: Path) -> None:
    assert SqlSink(f"sqlite:///{tmp_path / 'x.db'}", "t").max_concurrency == 1
    assert SqlSink("postgresql://db/shop", "t").max_concurrency is None

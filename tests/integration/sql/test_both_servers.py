"""`SqlSink` on PostgreSQL and MariaDB alike: which rows and tables are refused, and what types become."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import LedgerEntry, Position, Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, USER, DatabaseServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from wal_sink.errors import FencedError, HistoryError, PermanentError
from wal_sink_backends.sql.sink import SqlSink

UTC = dt.UTC
AT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


def test_rows_and_ledger(server: DatabaseServer, database: str) -> None:
    sink = sink_to(server, database)
    with opened(sink):
        assert sink.last(SLOT) is None
        assert sink.write(chunk(ids(1, 2))) is None
        assert sink.write(chunk(ids(1, 2))) is None
        assert sink.write(chunk(ids(3), first=2, term=4)) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
        with pytest.raises(
            FencedError,
            match="a process with term 4 has already written to this slot, but the term of this process is 3",
        ):
            sink.write(chunk(ids(4), first=3, term=3))
        with pytest.raises(HistoryError, match="segment a, but the chunk is of segment b"):
            sink.write(chunk(ids(4), segment="b", term=5))
    assert stored(server, database) == [(1,), (2,), (3,)]
    assert server.query(database, "SELECT * FROM wal_sink_ledger") == [(SLOT, 4, 0, "a", 3)]


def test_positions_of_many_slots_are_as_few_statements_as_the_server_takes(
    server: DatabaseServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [f"wal/default/{number}" for number in range(2_500)]
    with opened(sink_to(server, database)) as sink:
        for number in (0, 999, 1000, 2499):
            sink.write(chunk(ids(number), slot=slots[number]))
        session: Any = type(sink._connection)
        statements: list[str] = []
        execute = session.execute

        def counted(self: Any, statement: str, *values: Any) -> Any:
            statements.append(statement)
            return execute(self, statement, *values)

        monkeypatch.setattr(session, "execute", counted)
        found = sink.positions(slots)
        questions = [one for one in statements if "wal_sink_ledger" in one]
        assert len(questions) == (1 if isinstance(server, PostgresqlServer) else 3)
        assert len(statements) == len(questions) + 2  # BEGIN and COMMIT
        assert list(found) == slots
        held = {slot: position for slot, position in found.items() if position is not None}
        assert held == {slots[number]: Position(slots[number], 0, 1, "a") for number in (0, 999, 1000, 2499)}
        statements.clear()
        assert sink.positions([]) == {}
        assert statements == []


def test_upsert_replaces_rows_of_the_same_key_and_the_last_one_wins(server: DatabaseServer, database: str) -> None:
    key = pa.array(["x", "y", "x", "X", "x "])
    sink = sink_to(server, database, mode="upsert", key=["name"])
    changed = pa.table({"name": ["y", "z"], "late": [8, 9]})
    write(sink, chunk(pa.table({"name": key, "late": [5, 6, 7, 1, 2]})), chunk(changed, first=5))
    found = set(server.query(database, "SELECT name, late FROM flights"))
    assert found == {("x", 7), ("X", 1), ("x ", 2), ("y", 8), ("z", 9)}


def test_upsert_of_key_columns_only(server: DatabaseServer, database: str) -> None:
    assert write(sink_to(server, database, mode="upsert", key="id"), chunk(ids(1, 1, 2))) == [None]
    assert stored(server, database) == [(1,), (2,)]


def test_upsert_rejects_rows_without_a_key(server: DatabaseServer, database: str) -> None:
    sink = sink_to(server, database, mode="upsert", key=("id",))
    with opened(sink):
        assert sink.write(chunk(ids(1, None, 2))) == Rejected({1: "key column 'id' is NULL"})
        assert sink.last(SLOT) is None
        assert sink.write(chunk(ids(1, None, 2)).without([1])) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
    assert stored(server, database) == [(1,), (2,)]


def test_upsert_needs_a_unique_index_of_its_key(server: DatabaseServer, database: str) -> None:
    as_owner(server, database, "CREATE TABLE flights (id BIGINT)")
    with pytest.raises(PermanentError, match=r"no unique or exclusion constraint|needs a primary key or unique index"):
        write(sink_to(server, database, mode="upsert", key="id"), chunk(ids(1)))


def test_rows_that_break_a_constraint_are_rejected_by_number(server: DatabaseServer, database: str) -> None:
    sink = sink_to(server, database)
    with opened(sink):
        sink.write(chunk(ids(-1)))
        server.query(database, "ALTER TABLE flights ADD CONSTRAINT small CHECK (id < 100), ADD UNIQUE (id)")
        rows = ids(*range(10), 100, *range(10, 30), 5, 101, 30)
        rejected = sink.write(chunk(rows, first=1))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {10, 31, 32}
        assert "small" in rejected.reasons[10]
        assert "uplicate" in rejected.reasons[31]
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
        assert stored(server, database) == [(-1,)]
        assert sink.write(chunk(rows, first=1).without([10, 31, 32])) is None
    assert stored(server, database) == [(row,) for row in range(-1, 31)]


def test_a_foreign_key_is_checked_row_by_row(server: DatabaseServer, database: str) -> None:
    statements = (
        "CREATE TABLE planes (id BIGINT PRIMARY KEY)",
        "INSERT INTO planes VALUES (1), (2)",
        "CREATE TABLE flights (id BIGINT, FOREIGN KEY (id) REFERENCES planes (id))",
    )
    as_owner(server, database, *statements)
    assert [set(one.reasons) for one in write(sink_to(server, database), chunk(ids(1, 9, 2, 8))) if one] == [{1, 3}]
    assert stored(server, database) == []


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("INTEGER", pa.array(["007"])),
        ("NUMERIC(38,2)", pa.array([Decimal("1.505")], pa.decimal128(38, 18))),
        ("VARCHAR(20)", pa.array([1])),
        ("INTEGER", pa.array([1.5])),
        ("REAL", pa.array([1])),
        ("VARCHAR(20)", pa.array([b"x"])),
        ("DATE", pa.array([0], pa.timestamp("us"))),
        ("DATE", pa.array(["2013-01-01"])),
    ],
    ids=str,
)
def test_a_column_that_would_alter_values_is_refused(
    server: DatabaseServer, database: str, declared: str, values: Any
) -> None:
    server.query(database, f"CREATE TABLE flights (id {declared})")
    with pytest.raises(PermanentError, match=r"column 'id' is declared .* This type would alter"):
        write(sink_to(server, database), chunk(pa.table({"id": values})))


def test_values_that_a_narrower_column_cannot_hold_are_rejected(server: DatabaseServer, database: str) -> None:
    statement = "CREATE TABLE flights (id SMALLINT, name VARCHAR(3))"
    as_owner(server, database, statement)
    table = pa.table({"id": [1, 2**15, 3, 4], "name": ["abc", "abc", "abcd", "äöü"]})
    (rejected,) = write(sink_to(server, database), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}


def test_a_missing_column_or_table(server: DatabaseServer, database: str) -> None:
    with pytest.raises(PermanentError, match=r"this table does not exist\. Create it, or pass create_table=True"):
        write(sink_to(server, database, create_table=False), chunk(ids(1)))
    server.query(database, "CREATE TABLE flights (nr BIGINT)")
    with pytest.raises(PermanentError, match=r"no column 'id', only \['nr'\]"):
        write(sink_to(server, database), chunk(ids(1)))


def test_a_wrong_password_is_permanent_and_does_not_show(
    server: DatabaseServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "hunter2")
    with pytest.raises(PermanentError, match=f"opening {server.scheme}://127.0.0.1:{server.port}/{database}") as caught:
        write(sink_to(server, database), chunk(ids(1)))
    assert "hunter2" not in str(caught.value)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(PermanentError, match=f"variable {PASSWORD_VARIABLE} is not set"):
        write(sink_to(server, database), chunk(ids(1)))


# Types.

BOTH: list[tuple[Any, list[Any]]] = [
    (pa.array([2**63 - 1, -(2**63), None]), [2**63 - 1, -(2**63), None]),
    (pa.array([127, -128, None], pa.int8()), [127, -128, None]),
    (pa.array([0.1, -1.5, None], pa.float32()), [0.1, -1.5, None]),
    (pa.array([0.1, 1e300, 5e-324, -0.0]), [0.1, 1e300, 5e-324, -0.0]),
    (pa.array([Decimal("1.50"), Decimal("-1E-18")], pa.decimal128(38, 18)), [Decimal("1.50"), Decimal("-1E-18")]),
    (pa.array(["ü\n\"'\\\t\r\b", "\\N", "", "\\.", "%s", None]), ["ü\n\"'\\\t\r\b", "\\N", "", "\\.", "%s", None]),
    (pa.array(["x", None]).dictionary_encode(), ["x", None]),
    (pa.array([b"\0\xff'\\", b"", None]), [b"\0\xff'\\", b"", None]),
    (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.array([1_700_000_000_123_456], pa.timestamp("us")), [AT.replace(tzinfo=None)]),
    (pa.nulls(1), [None]),
]


@pytest.mark.parametrize(("values", "wanted"), BOTH, ids=lambda some: str(getattr(some, "type", "")))
def test_types(server: DatabaseServer, database: str, values: Any, wanted: list[Any]) -> None:
    assert write(sink_to(server, database), chunk(pa.table({"n": range(len(values)), "v": values}))) == [None]
    found = [value for _, value in stored(server, database, "n, v")]
    assert [type(value) for value in found] == [type(value) for value in wanted]
    assert found == [pytest.approx(value, rel=1e-15) if isinstance(value, float) else value for value in wanted]


def test_booleans_instants_and_nested_values(server: DatabaseServer, database: str) -> None:
    nested = [{"a": [1, None], "b": {"c": 'x"\\'}}, None]
    instants = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "Europe/Paris"))
    table = pa.table({"n": [0, 1], "b": [True, None], "t": instants, "s": pa.array(nested)})
    write(sink_to(server, database), chunk(table))
    first, second = stored(server, database, "n, b, t, s")
    assert second == (1, None, None, None)
    assert first[1] == 1
    assert first[2].replace(tzinfo=first[2].tzinfo or UTC) == AT
    assert (json.loads(first[3]) if isinstance(first[3], str) else first[3]) == nested[0]


def test_rows_are_not_committed_without_their_position(server: DatabaseServer, database: str) -> None:
    """As where the ledger's row cannot be seen: an update that meets nothing is no error to a database."""
    with opened(sink_to(server, database)) as sink:
        connection, dialect = sink._connected(), sink._dialect
        entry = LedgerEntry(1, Position(SLOT, 0, 2, "a"))
        told = f"slot '{SLOT}' of wal_sink_ledger: 0 rows moved, expected 1"
        with pytest.raises(PermanentError, match=told), dialect.transaction(connection):
            dialect.move_ledger(connection, entry)
        with dialect.transaction(connection):
            dialect.lock(connection, SLOT, 1)
            dialect.move_ledger(connection, entry)
            dialect.move_ledger(connection, entry)
        assert sink.last(SLOT) == entry.position


def test_a_password_in_the_url_works_and_does_not_show(server: DatabaseServer, database: str) -> None:
    sink = SqlSink(server.url(database, password=True), "flights")
    assert write(sink, chunk(ids(1))) == [None]
    assert PASSWORD not in repr(sink)
    assert USER not in repr(sink)

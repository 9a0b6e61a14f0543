"""`SqlSink` on PostgreSQL and MariaDB: what types become, which rows and tables are refused, who may do what."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.databases import PASSWORD, PASSWORD_VARIABLE, USER, MariadbServer, PostgresqlServer, Server
from tests.sql_chunks import SLOT, chunk, ids, opened
from wal_sink.chunk import Chunk, Position
from wal_sink.errors import ConfigError, DivergentReplay, FencedError, PermanentError
from wal_sink.sink import Rejected
from wal_sink_backends.sql import SqlSink

UTC = dt.UTC
AT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database(server: Server) -> str:
    return server.new_database()


@pytest.fixture
def pg(postgresql: PostgresqlServer) -> str:
    return postgresql.new_database()


@pytest.fixture
def maria(mariadb: MariadbServer) -> str:
    return mariadb.new_database()


def sink_to(server: Server, database: str, table: str = "flights", **options: Any) -> SqlSink:
    return SqlSink(server.url(database), table, password_env=PASSWORD_VARIABLE, **options)


def write(sink: SqlSink, *chunks: Chunk) -> list[Rejected | None]:
    with opened(sink):
        return [sink.write(one) for one in chunks]


def stored(server: Server, database: str, columns: str = "id") -> list[tuple[Any, ...]]:
    return server.query(database, f"SELECT {columns} FROM flights ORDER BY 1")


def as_owner(server: Server, database: str, *statements: str) -> None:
    """As the user the sink connects as, where tables have owners."""
    for statement in statements:
        if isinstance(server, PostgresqlServer):
            server.query(database, f"SET ROLE {USER}")
        server.query(database, statement)
        if isinstance(server, PostgresqlServer):
            server.query(database, "RESET ROLE")


# Both.


def test_rows_and_ledger(server: Server, database: str) -> None:
    sink = sink_to(server, database)
    with opened(sink):
        assert sink.last(SLOT) is None
        assert sink.write(chunk(ids(1, 2))) is None
        assert sink.write(chunk(ids(1, 2))) is None
        assert sink.write(chunk(ids(3), first=2, term=4)) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
        with pytest.raises(FencedError, match="term 4 has written, this sender's is 3"):
            sink.write(chunk(ids(4), first=3, term=3))
        with pytest.raises(DivergentReplay, match="segment a, the chunk is of segment b"):
            sink.write(chunk(ids(4), segment="b", term=5))
    assert stored(server, database) == [(1,), (2,), (3,)]
    assert server.query(database, "SELECT * FROM wal_sink_ledger") == [(SLOT, 4, 0, "a", 3)]


def test_upsert_replaces_rows_of_the_same_key_and_the_last_one_wins(server: Server, database: str) -> None:
    key = pa.array(["x", "y", "x", "X", "x "])
    sink = sink_to(server, database, mode="upsert", key=["name"])
    changed = pa.table({"name": ["y", "z"], "late": [8, 9]})
    write(sink, chunk(pa.table({"name": key, "late": [5, 6, 7, 1, 2]})), chunk(changed, first=5))
    found = set(server.query(database, "SELECT name, late FROM flights"))
    assert found == {("x", 7), ("X", 1), ("x ", 2), ("y", 8), ("z", 9)}


def test_upsert_of_key_columns_only(server: Server, database: str) -> None:
    assert write(sink_to(server, database, mode="upsert", key="id"), chunk(ids(1, 1, 2))) == [None]
    assert stored(server, database) == [(1,), (2,)]


def test_upsert_rejects_rows_without_a_key(server: Server, database: str) -> None:
    sink = sink_to(server, database, mode="upsert", key=("id",))
    with opened(sink):
        assert sink.write(chunk(ids(1, None, 2))) == Rejected({1: "key column 'id' is NULL"})
        assert sink.last(SLOT) is None
        assert sink.write(chunk(ids(1, None, 2)).without([1])) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
    assert stored(server, database) == [(1,), (2,)]


def test_upsert_needs_a_unique_index_of_its_key(server: Server, database: str) -> None:
    as_owner(server, database, "CREATE TABLE flights (id BIGINT)")
    with pytest.raises(PermanentError, match=r"no unique or exclusion constraint|needs a primary key or unique index"):
        write(sink_to(server, database, mode="upsert", key="id"), chunk(ids(1)))


def test_rows_that_break_a_constraint_are_rejected_by_number(server: Server, database: str) -> None:
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


def test_a_foreign_key_is_checked_row_by_row(server: Server, database: str) -> None:
    statements = (
        "CREATE TABLE planes (id BIGINT PRIMARY KEY)",
        "INSERT INTO planes VALUES (1), (2)",
        "CREATE TABLE flights (id BIGINT, FOREIGN KEY (id) REFERENCES planes (id))",
    )
    as_owner(server, database, *statements)
    assert [set(one.reasons) for one in write(sink_to(server, database), chunk(ids(1, 9, 2, 8))) if one] == [{1, 3}]
    assert stored(server, database) == []


def test_every_row_may_be_refused(server: Server, database: str) -> None:
    sink = sink_to(server, database)
    with opened(sink):
        sink.write(chunk(ids(1)))
        server.query(database, "ALTER TABLE flights ADD CONSTRAINT small CHECK (id < 100)")
        rejected = sink.write(chunk(ids(*range(100, 164)), first=1))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == set(range(64))


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
def test_a_column_that_would_alter_values_is_refused(server: Server, database: str, declared: str, values: Any) -> None:
    server.query(database, f"CREATE TABLE flights (id {declared})")
    with pytest.raises(PermanentError, match=r"column 'id' is declared .* which would alter"):
        write(sink_to(server, database), chunk(pa.table({"id": values})))


def test_values_that_a_narrower_column_cannot_hold_are_rejected(server: Server, database: str) -> None:
    statement = "CREATE TABLE flights (id SMALLINT, name VARCHAR(3))"
    as_owner(server, database, statement)
    table = pa.table({"id": [1, 2**15, 3, 4], "name": ["abc", "abc", "abcd", "äöü"]})
    (rejected,) = write(sink_to(server, database), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}


def test_text_that_is_no_utf8_is_rejected(server: Server, database: str) -> None:
    """As a Spark string may be: Arrow does not look when it gets the bytes."""
    offsets = pa.array([0, 2, 5, 6], pa.int32()).buffers()[1]
    texts: Any = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"ok\xed\xa0\x80\xff")])
    (rejected,) = write(sink_to(server, database), chunk(pa.table({"name": texts})))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}
    assert "column 'name' holds bytes that are no UTF-8" in rejected.reasons[1]


def test_a_table_with_a_column_that_must_have_a_value(server: Server, database: str) -> None:
    server.query(database, "CREATE TABLE flights (id BIGINT, must INTEGER NOT NULL)")
    with pytest.raises(PermanentError, match=r"column 'must' .*needs a value and has no default"):
        write(sink_to(server, database), chunk(ids(1)))


def test_a_missing_column_or_table(server: Server, database: str) -> None:
    with pytest.raises(PermanentError, match="no such table; create it, or pass create_table=True"):
        write(sink_to(server, database, create_table=False), chunk(ids(1)))
    server.query(database, "CREATE TABLE flights (nr BIGINT)")
    with pytest.raises(PermanentError, match=r"no column 'id', only \['nr'\]"):
        write(sink_to(server, database), chunk(ids(1)))


def test_a_wrong_password_is_permanent_and_does_not_show(
    server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "hunter2")
    with pytest.raises(PermanentError, match=f"opening {server.scheme}://127.0.0.1:{server.port}/{database}") as caught:
        write(sink_to(server, database), chunk(ids(1)))
    assert "hunter2" not in str(caught.value)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(PermanentError, match=f"variable {PASSWORD_VARIABLE} is not set"):
        write(sink_to(server, database), chunk(ids(1)))


def test_a_missing_database_is_permanent(server: Server) -> None:
    with pytest.raises(PermanentError, match="nowhere"):
        write(sink_to(server, "nowhere"), chunk(ids(1)))


def test_a_password_in_the_url_works_and_does_not_show(server: Server, database: str) -> None:
    sink = SqlSink(server.url(database, password=True), "flights")
    assert write(sink, chunk(ids(1))) == [None]
    assert PASSWORD not in repr(sink)
    assert USER not in repr(sink)


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
def test_types(server: Server, database: str, values: Any, wanted: list[Any]) -> None:
    assert write(sink_to(server, database), chunk(pa.table({"n": range(len(values)), "v": values}))) == [None]
    found = [value for _, value in stored(server, database, "n, v")]
    assert [type(value) for value in found] == [type(value) for value in wanted]
    assert found == [pytest.approx(value, rel=1e-15) if isinstance(value, float) else value for value in wanted]


def test_booleans_instants_and_nested_values(server: Server, database: str) -> None:
    nested = [{"a": [1, None], "b": {"c": 'x"\\'}}, None]
    instants = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "Europe/Paris"))
    table = pa.table({"n": [0, 1], "b": [True, None], "t": instants, "s": pa.array(nested)})
    write(sink_to(server, database), chunk(table))
    first, second = stored(server, database, "n, b, t, s")
    assert second == (1, None, None, None)
    assert first[1] == 1
    assert first[2].replace(tzinfo=first[2].tzinfo or UTC) == AT
    assert (json.loads(first[3]) if isinstance(first[3], str) else first[3]) == nested[0]


# PostgreSQL.


def test_postgresql_types_by_name(postgresql: PostgresqlServer, pg: str) -> None:
    table = pa.table(
        {
            "a": pa.array([1], pa.int8()),
            "b": pa.array([1], pa.int32()),
            "c": pa.array([1], pa.int64()),
            "d": pa.array([1], pa.float32()),
            "e": pa.array([Decimal(1)], pa.decimal128(10, 2)),
            "f": pa.array([0], pa.timestamp("us", "UTC")),
            "g": pa.array([0], pa.duration("us")),
            "h": pa.array([[1]]),
            "i": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    write(sink_to(postgresql, pg), chunk(table))
    found = postgresql.query(
        pg,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'flights'::regclass AND attnum > 0",
    )
    assert [name for (name,) in found] == [
        *("smallint", "integer", "bigint", "real", "numeric(10,2)"),
        *("timestamp with time zone", "interval", "jsonb", "numeric(20,0)"),
    ]
    assert stored(postgresql, pg, "i") == [(2**64 - 1,)]


def test_postgresql_keeps_what_is_no_number_and_far_years(postgresql: PostgresqlServer, pg: str) -> None:
    numbers = pa.array([math.nan, math.inf, -math.inf])
    years = pa.array([-719_529, 10**8, 0], pa.date32())
    instants = pa.array([-62_198_755_200_000_000, 900_000_000_000_000_000, -1], pa.timestamp("us", "UTC"))
    durations = pa.array([-93_784_500_000, 2**62, 0], pa.duration("us"))
    table = pa.table({"n": range(3), "x": numbers, "d": years, "t": instants, "i": durations})
    assert write(sink_to(postgresql, pg), chunk(table)) == [None]
    as_text = "n, x::text, d::text, (t AT TIME ZONE 'UTC')::text, extract(epoch FROM i)::text"
    assert stored(postgresql, pg, as_text) == [
        (0, "NaN", "0002-12-31 BC", "0002-01-01 00:00:00 BC", "-93784.500000"),
        (1, "Infinity", "275760-09-13", str(np.datetime64(9 * 10**11, "s")).replace("T", " "), "4611686018427.387904"),
        (2, "-Infinity", "1970-01-01", "1969-12-31 23:59:59.999999", "0.000000"),
    ]


def test_postgresql_rejects_what_its_types_cannot_hold(postgresql: PostgresqlServer, pg: str) -> None:
    table = pa.table(
        {
            "name": ["a\0b", "ok", "ok", "ok"],
            "at": pa.array([0, -(2**63) + 1, 0, 0], pa.timestamp("us")),
            "doc": pa.array([["x"], ["x"], ["\0"], ["x"]]),
        }
    )
    (rejected,) = write(sink_to(postgresql, pg), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {0, 1, 2}
    assert "'name' holds a NUL character" in rejected.reasons[0]
    assert "out of range" in rejected.reasons[1]


def test_postgresql_columns_that_read_text(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TYPE mood AS ENUM ('fine', 'bad')",
        "CREATE DOMAIN code AS varchar(3) CHECK (value ~ '^[A-Z]+$')",
        "CREATE TABLE flights (id uuid, feels mood, code code, doc jsonb)",
    )
    one = "5e9f0f6e-0000-4000-8000-00000000fa4e"
    table = pa.table(
        {"id": [one, "no", one], "feels": ["fine", "fine", "so so"], "code": ["ABC"] * 3, "doc": ["[1]"] * 3}
    )
    (rejected,) = write(sink_to(postgresql, pg), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}
    assert write(sink_to(postgresql, pg), chunk(table).without([1, 2])) == [None]


def test_postgresql_deferred_constraints_name_their_rows_too(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    (rejected,) = write(sink_to(postgresql, pg), chunk(ids(1, 2, 1)))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {2}


def test_postgresql_a_refusal_that_no_single_row_explains_is_permanent(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint)",
        "CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF (SELECT count(*) FROM added) > 2 THEN RAISE 'too many at once'; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER few AFTER INSERT ON flights REFERENCING NEW TABLE AS added EXECUTE FUNCTION few()",
    )
    with pytest.raises(PermanentError, match="refused as a whole, though each row alone is taken: too many at once"):
        write(sink_to(postgresql, pg), chunk(ids(1, 2, 3)))
    assert stored(postgresql, pg) == []


def test_postgresql_an_unlogged_table_is_refused(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE UNLOGGED TABLE flights (id bigint)")
    with pytest.raises(PermanentError, match="flights is UNLOGGED"):
        write(sink_to(postgresql, pg), chunk(ids(1)))


def test_postgresql_schema_and_names_with_anything_in_them(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, 'CREATE SCHEMA "a%s ""b"')
    sink = sink_to(postgresql, pg, 'weird %s "table', schema='a%s "b', mode="upsert", key="k%s")
    assert write(sink, chunk(pa.table({"k%s": [1, 1], 'v"': [2, 3]}))) == [None]
    assert postgresql.query(pg, 'SELECT * FROM "a%s ""b"."weird %s ""table"') == [(1, 3)]
    with opened(sink):
        assert sink.last(SLOT) == Position(SLOT, 0, 2, "a")


def test_postgresql_with_the_least_rights(postgresql: PostgresqlServer, pg: str) -> None:
    """INSERT on the table, and SELECT, INSERT and UPDATE on a ledger that somebody else made."""
    postgresql.query(pg, "ALTER SCHEMA public OWNER TO admin")
    postgresql.query(pg, "CREATE TABLE flights (id bigint)")
    with pytest.raises(PermanentError, match="no ledger yet, and this user may not make it") as caught:
        write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)))
    ddl, grant = str(caught.value).partition("run: ")[2].split("; ")
    for statement in (ddl, grant.replace("this user", USER)):
        postgresql.query(pg, statement)
    with pytest.raises(PermanentError, match="permission denied for table flights"):
        write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)))
    postgresql.query(pg, f"GRANT INSERT ON flights TO {USER}")
    assert write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)), chunk(ids(2), first=1)) == [None, None]
    assert stored(postgresql, pg) == [(1,), (2,)]


def test_postgresql_upserts_with_the_least_rights(postgresql: PostgresqlServer, pg: str) -> None:
    write(sink_to(postgresql, pg, "other"), chunk(ids(1), slot="other"))
    postgresql.query(pg, "ALTER SCHEMA public OWNER TO admin")
    postgresql.query(pg, "CREATE TABLE flights (id bigint PRIMARY KEY, late bigint)")
    postgresql.query(pg, f"GRANT SELECT, INSERT, UPDATE ON flights TO {USER}")
    sink = sink_to(postgresql, pg, mode="upsert", key="id", create_table=False)
    assert write(sink, chunk(pa.table({"id": [1, 1], "late": [2, 3]}))) == [None]
    assert stored(postgresql, pg, "id, late") == [(1, 3)]


def test_postgresql_commits_are_durable_whatever_the_role_has_set(postgresql: PostgresqlServer, pg: str) -> None:
    postgresql.query("postgres", f"ALTER ROLE {USER} IN DATABASE {pg} SET synchronous_commit = off")
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint, how text DEFAULT current_setting('synchronous_commit'), "
        "level text DEFAULT current_setting('transaction_isolation'))",
    )
    postgresql.query("postgres", f"ALTER ROLE {USER} IN DATABASE {pg} SET default_transaction_isolation = serializable")
    write(sink_to(postgresql, pg), chunk(ids(1)))
    assert stored(postgresql, pg, "id, how, level") == [(1, "on", "read committed")]


# MariaDB.


def test_mariadb_rejects_numbers_it_cannot_hold(mariadb: MariadbServer, maria: str) -> None:
    table = pa.table({"v": pa.array([1.5, math.nan, math.inf, None])})
    (rejected,) = write(sink_to(mariadb, maria), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}
    assert "column 'v' is nan" in rejected.reasons[1]


def test_mariadb_rejects_years_beyond_its_calendar(mariadb: MariadbServer, maria: str) -> None:
    (rejected,) = write(sink_to(mariadb, maria), chunk(pa.table({"d": pa.array([0, 10**8], pa.date32())})))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1}


def test_mariadb_tables_without_transactions_are_refused(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id BIGINT) ENGINE=Aria")
    with pytest.raises(PermanentError, match="flights is kept by Aria, which has no transactions"):
        write(sink_to(mariadb, maria), chunk(ids(1)))


def test_mariadb_a_second_unique_index_would_replace_other_rows(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (nr INT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, other BIGINT)")
    table = pa.table({"id": [1, 2], "other": [7, 7]})
    write(sink_to(mariadb, maria, mode="upsert", key="id"), chunk(table))
    mariadb.query(maria, "ALTER TABLE flights ADD UNIQUE second (other, nr), ADD UNIQUE third (other, id)")
    with pytest.raises(PermanentError, match="unique index 'third' is not that of the key"):
        write(sink_to(mariadb, maria, mode="upsert", key="id"), chunk(table, first=2))


def test_mariadb_null_where_it_would_put_a_value_of_its_own_is_rejected(mariadb: MariadbServer, maria: str) -> None:
    as_owner(mariadb, maria, "CREATE TABLE flights (Id BIGINT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(6) NOT NULL)")
    instants = pa.array([3_000_000, 1_000_000, None, 2_000_000], pa.timestamp("us", "UTC"))
    rows = chunk(pa.table({"id": [7, None, 8, 9], "at": instants}))
    (rejected,) = write(sink_to(mariadb, maria), rows)
    reason = "column '{}' is NULL, which the database would replace"
    assert rejected == Rejected({1: reason.format("id"), 2: reason.format("at")})
    assert stored(mariadb, maria) == []
    assert write(sink_to(mariadb, maria), rows.without([1, 2])) == [None]
    assert stored(mariadb, maria) == [(7,), (9,)]


def test_mariadb_an_enum_would_take_the_text_of_a_number_for_a_place(mariadb: MariadbServer, maria: str) -> None:
    as_owner(mariadb, maria, "CREATE TABLE flights (name ENUM('a', 'b'))")
    with pytest.raises(PermanentError, match=r"column 'name' is declared \"enum\('a','b'\)\", which would alter text"):
        write(sink_to(mariadb, maria), chunk(pa.table({"name": ["2"]})))


def test_mariadb_a_row_larger_than_the_server_takes_is_rejected(mariadb: MariadbServer, maria: str) -> None:
    """The server of the tests takes 4 MiB at once; what comes in several statements is one transaction all the same."""
    sink = sink_to(mariadb, maria)
    with opened(sink):
        texts = ["x" * (3 << 20), "y" * (5 << 20), "z" * (2 << 20), "w"]
        rejected = sink.write(chunk(pa.table({"v": texts})))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {1}
        assert sink.write(chunk(pa.table({"v": texts})).without([1])) is None
    assert mariadb.query(maria, "SELECT count(*), sum(length(v)) FROM flights") == [(3, (5 << 20) + 1)]


def test_mariadb_values_are_strict_whatever_the_server_is(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(2))")
    mariadb.query("mysql", "SET GLOBAL sql_mode = ''")
    try:
        (rejected,) = write(sink_to(mariadb, maria), chunk(pa.table({"id": [0, 1], "name": ["ab", "abc"]})))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {1}
        write(sink_to(mariadb, maria), chunk(pa.table({"id": [0], "name": ["ab"]})))
    finally:
        mariadb.query("mysql", "SET GLOBAL sql_mode = DEFAULT")
    assert stored(mariadb, maria, "id, name") == [(0, "ab")]


def test_mariadb_with_the_least_rights(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id BIGINT)")
    mariadb.query(maria, f"REVOKE ALL ON {maria}.* FROM {USER}@'%'")
    mariadb.query(maria, f"GRANT INSERT ON {maria}.flights TO {USER}@'%'")
    with pytest.raises(PermanentError, match="no ledger yet, and this user may not make it") as caught:
        write(sink_to(mariadb, maria, create_table=False), chunk(ids(1)))
    ddl, grant = str(caught.value).partition("run: ")[2].split("; ")
    for statement in (ddl, grant.replace("this user", f"{USER}@'%'")):
        mariadb.query(maria, statement)
    assert write(sink_to(mariadb, maria, create_table=False), chunk(ids(1)), chunk(ids(2), first=1)) == [None, None]
    assert stored(mariadb, maria) == [(1,), (2,)]


# Arguments.


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        ("postgresql://me:hunter2@db:x/shop", {}, "expected host:port"),
        ("postgresql://me:hunter2@db/shop?sslmod=off", {}, "unknown options sslmod; known are application_name"),
        ("postgresql://me:hunt?er2@db/shop", {}, "as %2F, %3F and %40"),
        ("postgresql://me:hunt/er2@db/shop", {}, "as %2F, %3F and %40"),
        ("me:hunter2@db/shop", {}, "cannot reach '\\?' databases"),
        ("postgresql://me:hunter2@db/shop", {"password_env": "X"}, "give one of them"),
        ("postgresql://db/shop", {"table": "t" * 64}, "at most 63 bytes"),
        ("postgresql://db/shop", {"schema": ""}, "expected the name of a schema"),
        ("postgresql://db/shop", {"statement_timeout_s": 0}, "statement_timeout_s=0: expected a number"),
        ("mariadb://me:hunter2@db", {}, "expected one host and a database"),
        ("mariadb://a,b/shop", {}, "expected one host and a database"),
        ("mysql://db/shop?sslmode=off", {}, "unknown options sslmode; known are read_default_file"),
        ("mysql://db/shop?ssl_disabled=no", {}, "expected ssl_disabled=true"),
        ("sqlite:///x.db", {"schema": "s"}, "neither schema nor password_env"),
    ],
)
def test_arguments_that_cannot_work(url: str, arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"table": "flights"} | arguments
    with pytest.raises(ConfigError, match=message) as caught:
        SqlSink(url, **given)
    assert "hunt" not in str(caught.value)

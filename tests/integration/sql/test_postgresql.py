"""`SqlSink` on PostgreSQL: its types, constraints, schemas, rights and settings."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import USER, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from wal_sink.errors import PermanentError


def test_types_by_name(postgresql: PostgresqlServer, pg: str) -> None:
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


def test_keeps_what_is_no_number_and_far_years(postgresql: PostgresqlServer, pg: str) -> None:
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


def test_values_that_postgresql_cannot_hold_are_rejected(postgresql: PostgresqlServer, pg: str) -> None:
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


def test_columns_that_read_text(postgresql: PostgresqlServer, pg: str) -> None:
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


def test_lists_of_scalars_into_arrays(postgresql: PostgresqlServer, pg: str) -> None:
    """Each value comes back through psycopg; a row with an element that is refused is refused."""
    lists: dict[str, tuple[str, Any]] = {
        "t": ("text[]", pa.array([["a", 'b,"c', None, "\\\n{}", "NULL", ""], [], None, ["\0"]])),
        "i": ("integer[]", pa.array([[1, None], [], None, [2]], pa.list_(pa.int64()))),
        "b": ("bytea[]", pa.array([[b"\0\xff\\"], [], None, [b""]])),
        "d": ("numeric[]", pa.array([[Decimal("1.50")], [], None, []], pa.list_(pa.decimal128(9, 2)))),
        "s": ("timestamptz[]", pa.array([[0], [], None, [1]], pa.list_(pa.timestamp("us", "UTC")))),
        "f": ("float8[]", pa.array([[math.inf, -0.5], [], None, []])),
        "e": ("mood[]", pa.array([["fine"], [], None, ["bad"]])),
        "w": ("words", pa.array([["a", "b"], [], None, []])),
    }
    made = ", ".join(f"{name} {declared}" for name, (declared, _) in lists.items())
    as_owner(
        postgresql,
        pg,
        "CREATE TYPE mood AS ENUM ('fine', 'bad')",
        "CREATE DOMAIN words AS text[]",
        f"CREATE TABLE flights (id int, {made})",
    )
    table = pa.table({"id": range(4)} | {name: array for name, (_, array) in lists.items()})
    sent = chunk(table)
    assert write(sink_to(postgresql, pg), sent) == [
        Rejected({3: "column 't' holds a NUL character, but a text of PostgreSQL cannot hold this character"})
    ]
    assert write(sink_to(postgresql, pg), sent.without([3])) == [None]
    found = stored(postgresql, pg, "id, t, i, b, d, s, f, e::text[], w")
    assert found == [tuple(row.values()) for row in table.slice(0, 3).to_pylist()]


@pytest.mark.parametrize("declared", ["json[]", "jsonb[]", "xml", "cidr"])
def test_a_column_that_would_alter_a_value_is_refused(postgresql: PostgresqlServer, pg: str, declared: str) -> None:
    as_owner(postgresql, pg, f"CREATE TABLE flights (v {declared})")
    values = pa.array([["{}"]]) if declared.endswith("[]") else pa.array(["10"])
    with pytest.raises(PermanentError, match="This type would alter"):
        write(sink_to(postgresql, pg), chunk(pa.table({"v": values})))


def test_domains_have_the_type_below_them(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TYPE mood AS ENUM ('fine', 'bad')",
        "CREATE DOMAIN feels AS mood",
        "CREATE DOMAIN short AS varchar(3)",
        "CREATE DOMAIN code AS short CHECK (value ~ '^[A-Z]+$')",
        "CREATE DOMAIN rough AS numeric(5,1)",
        "CREATE DOMAIN rougher AS rough",
        "CREATE TABLE flights (id bpchar, feels feels, code code, n rougher)",
    )
    table = pa.table({"id": ["a  ", "b", "c"], "feels": ["fine"] * 3, "code": ["ABC", "ABCD", "a"]})
    (rejected,) = write(sink_to(postgresql, pg), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}
    assert write(sink_to(postgresql, pg), chunk(table).without([1, 2])) == [None]
    assert stored(postgresql, pg, "id, feels, code") == [("a  ", "fine", "ABC")]
    with pytest.raises(PermanentError, match=r"column 'n' is declared 'numeric\(5,1\)'"):
        write(sink_to(postgresql, pg), chunk(pa.table({"n": [Decimal("1.25")]}), first=3))


def test_a_domain_that_needs_a_value_and_gets_none_is_refused(postgresql: PostgresqlServer, pg: str) -> None:
    """COPY would leave NULL in it."""
    as_owner(
        postgresql,
        pg,
        "CREATE DOMAIN must AS text NOT NULL",
        "CREATE DOMAIN below AS must",
        "CREATE DOMAIN zero AS int NOT NULL DEFAULT 0",
        "CREATE TABLE flights (id bigint, n zero, m zero NOT NULL, v below)",
    )
    with pytest.raises(PermanentError, match="column 'v' of flights needs a value"):
        write(sink_to(postgresql, pg), chunk(ids(1)))
    as_owner(postgresql, pg, "ALTER TABLE flights DROP v")
    assert write(sink_to(postgresql, pg), chunk(ids(1))) == [None]
    assert stored(postgresql, pg, "*") == [(1, 0, 0)]


def test_deferred_constraints_name_their_rows_too(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    (rejected,) = write(sink_to(postgresql, pg), chunk(ids(1, 2, 1)))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {2}


def test_a_refusal_that_no_single_row_explains_is_permanent(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint)",
        "CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF (SELECT count(*) FROM added) > 2 THEN RAISE 'too many at once'; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER few AFTER INSERT ON flights REFERENCING NEW TABLE AS added EXECUTE FUNCTION few()",
    )
    with pytest.raises(
        PermanentError, match="the chunk was refused as a whole, although each row alone was accepted: too many at once"
    ):
        write(sink_to(postgresql, pg), chunk(ids(1, 2, 3)))
    assert stored(postgresql, pg) == []


@pytest.mark.parametrize(
    "fails",
    [
        "ASSERT NEW.id <> 2, 'no twos';",
        "IF NEW.id = 2 THEN RAISE no_data_found USING MESSAGE = 'no twos'; END IF;",
        "IF NEW.id = 2 THEN RAISE too_many_rows USING MESSAGE = 'no twos'; END IF;",
    ],
)
def test_whatever_a_trigger_raises_for_a_row_is_about_the_row(
    postgresql: PostgresqlServer, pg: str, fails: str
) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint)",
        f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {fails} RETURN NEW; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION no()",
    )
    assert write(sink_to(postgresql, pg), chunk(ids(1, 2, 3))) == [Rejected({1: "no twos"})]


def test_an_unlogged_table_is_refused(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE UNLOGGED TABLE flights (id bigint)")
    with pytest.raises(PermanentError, match="flights is UNLOGGED"):
        write(sink_to(postgresql, pg), chunk(ids(1)))


def test_schema_and_names_with_anything_in_them(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, 'CREATE SCHEMA "a%s ""b"')
    sink = sink_to(postgresql, pg, 'weird %s "table', schema='a%s "b', mode="upsert", key="k%s")
    assert write(sink, chunk(pa.table({"k%s": [1, 1], 'v"': [2, 3]}))) == [None]
    assert postgresql.query(pg, 'SELECT * FROM "a%s ""b"."weird %s ""table"') == [(1, 3)]
    with opened(sink):
        assert sink.last(SLOT) == Position(SLOT, 0, 2, "a")


def test_with_the_least_rights(postgresql: PostgresqlServer, pg: str) -> None:
    """INSERT on the table, and SELECT, INSERT and UPDATE on a ledger that somebody else made."""
    postgresql.query(pg, "ALTER SCHEMA public OWNER TO admin")
    postgresql.query(pg, "CREATE TABLE flights (id bigint)")
    with pytest.raises(
        PermanentError, match="ledger does not exist yet, and this user has no right to create it"
    ) as caught:
        write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)))
    ddl, grant = str(caught.value).partition("Run as another user: ")[2].split("; ")
    for statement in (ddl, grant.replace("this user", USER)):
        postgresql.query(pg, statement)
    with pytest.raises(PermanentError, match="permission denied for table flights"):
        write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)))
    postgresql.query(pg, f"GRANT INSERT ON flights TO {USER}")
    assert write(sink_to(postgresql, pg, create_table=False), chunk(ids(1)), chunk(ids(2), first=1)) == [None, None]
    assert stored(postgresql, pg) == [(1,), (2,)]


def test_upserts_with_the_least_rights(postgresql: PostgresqlServer, pg: str) -> None:
    write(sink_to(postgresql, pg, "other"), chunk(ids(1), slot="other"))
    postgresql.query(pg, "ALTER SCHEMA public OWNER TO admin")
    postgresql.query(pg, "CREATE TABLE flights (id bigint PRIMARY KEY, late bigint)")
    postgresql.query(pg, f"GRANT SELECT, INSERT, UPDATE ON flights TO {USER}")
    sink = sink_to(postgresql, pg, mode="upsert", key="id", create_table=False)
    assert write(sink, chunk(pa.table({"id": [1, 1], "late": [2, 3]}))) == [None]
    assert stored(postgresql, pg, "id, late") == [(1, 3)]


def test_no_search_path_leads_rows_or_ledger_elsewhere(postgresql: PostgresqlServer, pg: str) -> None:
    """The default path begins with a schema of the user's name, which anybody may make while a query runs."""
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        as_owner(postgresql, pg, f"CREATE SCHEMA {USER}", f"CREATE TABLE {USER}.flights (id bigint)")
        as_owner(postgresql, pg, f"CREATE TABLE {USER}.wal_sink_ledger (LIKE public.wal_sink_ledger INCLUDING ALL)")
        sink.write(chunk(ids(2), first=1))
    with opened(sink_to(postgresql, pg)) as sink:
        assert sink.last(SLOT) == Position(SLOT, 0, 2, "a")
    assert postgresql.query(pg, "SELECT id FROM public.flights ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("found", ["flights", "wal_sink_ledger"])
def test_a_table_that_only_a_search_path_finds_needs_its_schema(
    postgresql: PostgresqlServer, pg: str, found: str
) -> None:
    as_owner(postgresql, pg, f"CREATE SCHEMA {USER}", f"CREATE TABLE {USER}.{found} (id bigint)")
    with pytest.raises(PermanentError, match=f"the search path of this user leads to the schema '{USER}'"):
        write(sink_to(postgresql, pg), chunk(ids(1)))
    write(sink_to(postgresql, pg, schema="public"), chunk(ids(1)))
    write(sink_to(postgresql, pg), chunk(ids(2), first=1))
    assert postgresql.query(pg, "SELECT id FROM public.flights ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_row_level_security(postgresql: PostgresqlServer, pg: str, mode: str) -> None:
    """It refuses COPY, and takes INSERT. A row against a policy is refused like any other."""
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint PRIMARY KEY, note text)",
        "ALTER TABLE flights ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE flights FORCE ROW LEVEL SECURITY",
        "CREATE POLICY p ON flights USING (id <> 2) WITH CHECK (id <> 2)",
    )
    sink = sink_to(postgresql, pg, mode=mode, key="id" if mode == "upsert" else ())
    rows = ids(1, 2, 3).append_column("note", pa.array(["a\tb", "", None]))
    (rejected,) = write(sink, chunk(rows))
    assert isinstance(rejected, Rejected)
    assert list(rejected.reasons) == [1]
    assert "row-level security" in rejected.reasons[1]
    write(sink, chunk(rows.take([0, 2])))
    assert stored(postgresql, pg, "id, note") == [(1, "a\tb"), (3, None)]


def test_commits_are_durable_whatever_the_role_has_set(postgresql: PostgresqlServer, pg: str) -> None:
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


@pytest.mark.parametrize("declared", ["jsonb", "document"])
def test_a_document_that_would_lose_a_key_is_rejected(postgresql: PostgresqlServer, pg: str, declared: str) -> None:
    """jsonb keeps the last of two equal keys, and no error tells of the others."""
    as_owner(postgresql, pg, "CREATE DOMAIN document AS jsonb", f"CREATE TABLE flights (n int, doc {declared})")
    texts = [
        *('{"a": 1, "b": {"a": 1}}', '{"a": 1, "a": 2}', '[{"x": {"k": 1, "\\u006b": 2}}]', None, '"a"'),
        *("[" * 50_000 + "]" * 50_000, "{'a': 1}", '{"a": 1e400, "b": 12345678901234567890.123}'),
    ]
    table = pa.table({"n": pa.array(range(len(texts)), pa.int32()), "doc": texts})
    with opened(sink_to(postgresql, pg)) as sink:
        rejected = sink.write(chunk(table))
        assert isinstance(rejected, Rejected)
        assert rejected.reasons == {
            1: "column 'doc' repeats the key 'a', but jsonb would keep only the last value of this key",
            2: "column 'doc' repeats the key 'k', but jsonb would keep only the last value of this key",
            5: "column 'doc' is nested too deeply: it cannot be searched for repeated keys",
            6: rejected.reasons[6],
        }
        assert rejected.reasons[6].startswith("column 'doc' is not JSON: Expecting property name")
        assert sink.write(chunk(table).without(list(rejected.reasons))) is None
    assert stored(postgresql, pg, "n") == [(0,), (3,), (4,), (7,)]


def test_json_and_text_keep_a_repeated_key(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (a json, b text)")
    text = '{"a": 1, "a": 2}'
    assert write(sink_to(postgresql, pg), chunk(pa.table({"a": [text], "b": [text]}))) == [None]
    assert stored(postgresql, pg, "a::text, b") == [(text, text)]

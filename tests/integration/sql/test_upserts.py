"""Upserts of `SqlSink` on servers: writers with shared keys, and which of two rows with one key stays."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import DatabaseServer, MariadbServer, PostgresqlServer
from tests.support.side_by_side import side_by_side
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.mariadb.order import FOLDED, folded

KEYS, CHUNKS = 400, 6
JANUARY = dt.datetime(2023, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("text", "collation"),
    [
        (None, None),
        ("Key {}", "utf8mb4_general_ci"),
        ("Key {}", "utf8mb4_german2_ci"),
        ("Schlüssel_{}", "latin1_german1_ci"),
        ("Clé {}", "utf8mb4_unicode_520_ci"),
    ],
)
def test_writers_with_shared_keys_do_not_block_one_another_for_ever(
    server: DatabaseServer, database: str, text: str | None, collation: str | None
) -> None:
    """Rows in the order of their keys are locked in the same order by all: no deadlock."""
    limits = {"busy_timeout_s": PATIENCE_S, "statement_timeout_s": 2 * PATIENCE_S}
    options: dict[str, Any] = {"mode": "upsert", "key": "id", **limits}
    kind = "VARCHAR(20)" if text else "BIGINT"
    own = f" CHARACTER SET {collation.partition('_')[0]} COLLATE {collation}" if collation else ""
    ci = own if isinstance(server, MariadbServer) else ""
    as_owner(server, database, f"CREATE TABLE flights (id {kind}{ci} PRIMARY KEY, late BIGINT)")
    deadlocks: list[Exception] = []
    numbers = itertools.count()

    def send() -> None:
        number = next(numbers)
        order = random.Random(number)
        slot, before = f"wal/default/{number}", None
        with opened(sink_to(server, database, **options)) as sink:
            for batch in range(CHUNKS):
                keys: list[Any] = [text.format(key) if text else key for key in range(KEYS)]
                order.shuffle(keys)
                rows = pa.table({"id": keys, "late": [number] * KEYS})
                one = chunk(rows, batch=batch, segment=f"{number}-{batch}", slot=slot, after=before)
                while True:
                    try:
                        sink.write(one)
                    except (psycopg.errors.DeadlockDetected, pymysql.err.OperationalError) as error:
                        deadlocks.append(error)
                    else:
                        break
                before = Position(slot, batch, KEYS, f"{number}-{batch}")

    side_by_side(4, send)
    assert [str(one) for one in deadlocks] == []
    assert server.query(database, "SELECT count(*), count(DISTINCT late) FROM flights") == [(KEYS, 1)]


@pytest.mark.parametrize("collation", FOLDED)
def test_texts_that_a_collation_takes_for_equal_are_ordered_as_equal(
    mariadb: MariadbServer, maria: str, collation: str
) -> None:
    """Otherwise the first of two rows with one key might be put last. Every text of two printable ASCII characters."""
    charset = collation.partition("_")[0]
    mariadb.query(maria, f"CREATE TABLE texts (c CHAR(2) CHARACTER SET {charset} COLLATE {collation})")
    pairs = [a + b for a in map(chr, range(33, 127)) for b in map(chr, range(32, 127))]
    escaped = ",".join("('" + pair.replace("\\", "\\\\").replace("'", "''") + "')" for pair in pairs)
    mariadb.query(maria, f"INSERT INTO texts VALUES {escaped}")
    groups = mariadb.query(maria, "SELECT group_concat(hex(c)) FROM texts GROUP BY c")
    assert len(groups) > 1000
    for (group,) in groups:
        texts = [bytes.fromhex(text).decode() for text in group.split(",")]
        assert len({folded(text) for text in texts}) == 1, texts


@pytest.mark.parametrize(
    "collation", ["utf8mb4_german2_ci", "utf8mb4_uca1400_as_cs", "latin1_german1_ci", "utf8mb4_unicode_nopad_ci"]
)
def test_rows_are_ordered_as_the_server_has_it(mariadb: MariadbServer, maria: str, collation: str) -> None:
    """Of any length, and behind a column that is ordered here. The rows of one key stay in their order."""
    some, charset = random.Random(collation), collation.partition("_")[0]
    letters = "aAbBzZäÄöß é'\\-_0" + ("" if charset == "latin1" else "中😀")
    texts = ["".join(some.choices(letters, k=some.randrange(1, 60))) for _ in range(300)]
    texts += ["a", "A", "ä", "ae", "a ", "A  "] * 3
    days = [some.randrange(3) for _ in texts]
    mariadb.query(
        maria,
        f"CREATE TABLE flights (n INT, day BIGINT, id VARCHAR(60) CHARACTER SET {charset} COLLATE {collation}, "
        "UNIQUE (day, id))",
    )
    table = pa.table({"n": pa.array(range(len(texts)), pa.int32()), "day": days, "id": texts})
    with opened(sink_to(mariadb, maria, mode="upsert", key=("day", "id"))) as sink:
        dialect, connection = sink._dialect, sink._connected()
        encoded = dialect.encode(connection, table, ("day", "id"), {})
        found = dialect.in_key_order(connection, encoded, table, ("day", "id"), {"id": collation})
        assert sink.write(chunk(table)) is None
    mariadb.query(maria, "CREATE TABLE plain LIKE flights")
    mariadb.query(maria, "ALTER TABLE plain DROP KEY day")
    quoted = ",".join(f"({n}, {days[n]}, {connection.quoted(text)})" for n, text in enumerate(texts))
    mariadb.query(maria, f"INSERT INTO plain VALUES {quoted}")
    ordered = mariadb.query(maria, "SELECT n FROM plain ORDER BY day, id, n")
    assert list(found.numbers) == [n for (n,) in ordered]
    assert found.values == [encoded.values[n] for n in found.numbers]
    last = mariadb.query(maria, "SELECT max(n) FROM plain GROUP BY day, id ORDER BY 1")
    assert mariadb.query(maria, "SELECT n FROM flights ORDER BY 1") == last


def test_mysql_is_not_asked(mariadb: MariadbServer, maria: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL cannot run here. Printable ASCII of a known collation is ordered, other texts are left as they are."""
    with opened(sink_to(mariadb, maria)) as sink:
        dialect, connection = sink._dialect, sink._connected()
        monkeypatch.setattr(connection, "is_mariadb", False)
        monkeypatch.setattr(connection, "execute", None)
        for texts, collation, order in (
            (["b", "A", "a", "B "], "utf8mb4_general_ci", [1, 2, 0, 3]),
            (["b", "é", "a"], "utf8mb4_general_ci", [0, 1, 2]),
            (["b", "a"], "utf8mb4_0900_ai_ci", [0, 1]),
            (["b", "a"], "utf8mb4_0900_bin", [1, 0]),
        ):
            table = pa.table({"id": texts})
            encoded = dialect.encode(connection, table, ("id",), {})
            found = dialect.in_key_order(connection, encoded, table, ("id",), {"id": collation})
            assert list(found.numbers) == order


def test_texts_that_make_too_large_a_question_are_written_all_the_same(mariadb: MariadbServer, maria: str) -> None:
    """The server of the tests takes 4 MiB at once."""
    as_owner(mariadb, maria, "CREATE TABLE flights (id VARCHAR(600) COLLATE utf8mb4_german2_ci PRIMARY KEY, late INT)")
    texts = [f"{number:06}" + "x" * 590 for number in range(8_000)]
    rows = pa.table({"id": [*texts, "b", "B"], "late": pa.array([*[1] * len(texts), 2, 3], pa.int32())})
    assert write(sink_to(mariadb, maria, mode="upsert", key="id"), chunk(rows)) == [None]
    assert mariadb.query(maria, "SELECT count(*), max(late), count(DISTINCT late) FROM flights") == [(8_001, 3, 2)]


def test_of_texts_that_are_one_key_to_the_column_the_later_wins(mariadb: MariadbServer, maria: str) -> None:
    as_owner(mariadb, maria, "CREATE TABLE flights (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, late INT)")
    sink = sink_to(mariadb, maria, mode="upsert", key="id")
    rows = pa.table({"id": ["b", "a", "B ", "A", "b"], "late": pa.array([1, 2, 3, 4, 5], pa.int32())})
    accents = pa.table({"id": ["é", "z", "e"], "late": pa.array([6, 7, 8], pa.int32())})
    write(sink, chunk(rows), chunk(accents, first=5))
    assert dict(mariadb.query(maria, "SELECT lower(id), late FROM flights")) == {"a": 4, "b": 5, "z": 7, "é": 8}


VERSIONS: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [1, 2, 3]),
    (pa.float64(), [-math.pi, 0.5, 1e300]),
    (pa.decimal128(20, 3), [Decimal("9.999"), Decimal("10.000"), Decimal("100.001")]),
    (pa.timestamp("us"), [JANUARY, JANUARY + dt.timedelta(microseconds=1), JANUARY + dt.timedelta(days=400)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2023, 1, day, tzinfo=dt.UTC) for day in (1, 2, 10)]),
    (pa.date32(), [dt.date(999, 1, 1), dt.date(2023, 1, 1), dt.date(2023, 1, 2)]),
]


@pytest.mark.parametrize(
    ("kind", "values"), VERSIONS, ids=lambda some: str(some) if isinstance(some, pa.DataType) else ""
)
def test_only_a_newer_row_replaces(server: DatabaseServer, database: str, kind: Any, values: list[Any]) -> None:
    old, new, newest = values
    sink = sink_to(server, database, mode="upsert", key="id", newer_by="at")

    def rows(*of: tuple[str, Any, int]) -> pa.Table:
        names, versions, marks = zip(*of, strict=True)
        return pa.table({"at": pa.array(versions, kind), "id": names, "mark": marks})

    first = rows(("older", new, 1), ("equal", new, 1), ("newer", new, 1), ("null", new, 1), ("was null", None, 1))
    second = rows(("older", old, 2), ("equal", new, 2), ("newer", newest, 2), ("null", None, 2), ("was null", old, 2))
    within = rows(("in", newest, 1), ("in", old, 2), ("in", None, 3), ("last", new, 1), ("last", new, 2))
    nulls = rows(("nulls", None, 1), ("nulls", None, 2))
    sent = (chunk(first), chunk(second, first=5), chunk(within, first=10), chunk(nulls, first=15))
    assert write(sink, *sent) == [None] * 4
    assert dict(server.query(database, "SELECT id, mark FROM flights")) == {
        "older": 1,
        "equal": 2,
        "newer": 2,
        "null": 1,
        "was null": 2,
        "in": 1,
        "last": 2,
        "nulls": 2,
    }
    found = dict(server.query(database, "SELECT id, at FROM flights"))
    assert found["older"] == found["equal"]
    assert found["newer"] == found["in"] > found["older"]
    assert found["nulls"] is None


@pytest.mark.parametrize(
    "values",
    [["a"], [b"a"], [True], [[1]], [{"a": 1}], pa.nulls(1)],
    ids=["text", "binary", "boolean", "list", "struct", "void"],
)
def test_a_column_that_tells_no_age_is_refused(server: DatabaseServer, database: str, values: Any) -> None:
    sink = sink_to(server, database, mode="upsert", key="id", newer_by="at")
    with pytest.raises(
        PermanentError, match=r"newer_by column 'at' is .* so their age cannot be compared\. Cast the column"
    ):
        write(sink, chunk(pa.table({"id": [1], "at": values})))
    with pytest.raises(PermanentError, match="newer_by column 'at' is not among the columns"):
        write(sink, chunk(ids(1)))


def test_an_interval_tells_an_age_in_postgresql_only(server: DatabaseServer, database: str) -> None:
    sink = sink_to(server, database, mode="upsert", key="id", newer_by="at")
    one = chunk(pa.table({"id": [1, 1], "at": pa.array([86_400_000_001, 10], pa.duration("us"))}))
    if isinstance(server, PostgresqlServer):
        assert write(sink, one) == [None]
        assert stored(server, database, "extract(day FROM at)::int") == [(1,)]
    else:
        with pytest.raises(PermanentError, match="newer_by column 'at' is duration"):
            write(sink, one)


def test_refused_rows_of_an_ordered_chunk_are_named_by_their_own_numbers(server: DatabaseServer, database: str) -> None:
    as_owner(server, database, "CREATE TABLE flights (id BIGINT PRIMARY KEY, late BIGINT CHECK (late < 100))")
    rows = pa.table({"id": [9, 8, 7, 6, 5, 4, 3, 2, 1], "late": [1, 1, 200, 1, 1, 1, 1, 300, 1]})
    (rejected,) = write(sink_to(server, database, mode="upsert", key="id"), chunk(rows))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {2, 7}


WIDER = {
    "an index of another collation": (
        "CREATE TABLE flights (id text, at bigint, late bigint)",
        "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE UNIQUE INDEX own ON flights (id COLLATE anycase)",
    ),
    "a trigger that alters the key": (
        "CREATE TABLE flights (id text PRIMARY KEY, at bigint, late bigint)",
        "CREATE FUNCTION l() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := lower(NEW.id); RETURN NEW; END $$",
        "CREATE TRIGGER low BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION l()",
    ),
    "the column's own collation": (
        "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE flights (id text COLLATE anycase PRIMARY KEY, at bigint, late bigint)",
    ),
}


@pytest.mark.parametrize("newer_by", [None, "at"])
@pytest.mark.parametrize("statements", WIDER.values(), ids=WIDER)
def test_texts_that_are_one_key_to_the_index_only_are_written_one_after_the_other(
    postgresql: PostgresqlServer, pg: str, statements: tuple[str, ...], newer_by: str | None
) -> None:
    """One statement cannot replace a row twice (SQLSTATE 21000), and the key's type does not tell that it would."""
    as_owner(postgresql, pg, *statements)
    sink = sink_to(postgresql, pg, mode="upsert", key="id", newer_by=newer_by)
    first = pa.table({"id": ["b", "A", "B", "a", "c"], "at": [1, 9, 1, 2, 1], "late": [1, 2, 3, 4, 5]})
    second = pa.table({"id": ["d", "B", "b", "A", "a"], "at": [1, 0, 0, 0, 0], "late": [6, 7, 8, 9, 10]})
    with opened(sink):
        assert sink.write(chunk(first)) is None
        assert sink.write(chunk(second, first=5)) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 10, "a")
    expected = {"a": 2, "b": 3, "c": 5, "d": 6} if newer_by else {"a": 10, "b": 8, "c": 5, "d": 6}
    assert dict(postgresql.query(pg, 'SELECT lower(id COLLATE "C"), late FROM flights')) == expected


def test_a_row_that_meets_that_error_alone_is_rejected(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint PRIMARY KEY, late bigint)",
        "CREATE FUNCTION single() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.id = 2 THEN NEW.late := (SELECT generate_series(1, 2)); END IF; RETURN NEW; END $$",
        "CREATE TRIGGER single BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION single()",
    )
    rows = pa.table({"id": [1, 2, 3], "late": [1, 1, 1]})
    either: tuple[dict[str, Any], ...] = ({}, {"mode": "upsert", "key": "id"})
    for options in either:
        (rejected,) = write(sink_to(postgresql, pg, **options), chunk(rows))
        assert rejected == Rejected({1: "more than one row returned by a subquery used as an expression"})
    assert stored(postgresql, pg) == []

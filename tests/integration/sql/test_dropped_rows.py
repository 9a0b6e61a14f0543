"""Rows that a trigger drops without an error: `SqlSink` compares what a server counted with what it was sent."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import MariadbServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from wal_sink.errors import DeliveryError
from wal_sink.settings import Delivery
from wal_sink.testing import query_into
from wal_sink_backends.sql.mariadb.session import Session

REASON = (
    "the table kept 0 of 1 rows and gave no error: a trigger or the definition of the table drops rows. If this is "
    "intended, pass may_drop_rows=True"
)
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id"}
NEWER: dict[str, Any] = {**UPSERT, "newer_by": "at"}


def trigger(when: str, body: str, *, table: str = "flights", name: str = "picky") -> tuple[str, str]:
    return (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$",
        f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    )


DROPS_TWO = "IF NEW.id = 2 THEN RETURN NULL; END IF;"


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """Rows of id, at and mark."""
    columns = zip(*given, strict=True)
    return pa.table(dict(zip(("id", "at", "mark"), map(list, columns), strict=True)))


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_a_row_that_a_trigger_drops_is_rejected_by_its_number(
    postgresql: PostgresqlServer, pg: str, options: dict[str, Any], partitioned: bool
) -> None:
    partition = "CREATE TABLE part PARTITION OF flights FOR VALUES FROM (0) TO (9)"
    as_owner(
        postgresql,
        pg,
        f"CREATE TABLE flights (id bigint PRIMARY KEY){' PARTITION BY RANGE (id)' if partitioned else ''}",
        *([partition] if partitioned else []),
        *trigger("BEFORE INSERT", DROPS_TWO, table="part" if partitioned else "flights"),
    )
    with opened(sink_to(postgresql, pg, **options)) as sink:
        assert sink.write(chunk(ids(1, 2, 3, 4))) == Rejected({1: REASON})
        assert sink.last(SLOT) is None
        assert stored(postgresql, pg) == []
        assert sink.write(chunk(ids(1, 2, 3, 4)).without([1])) is None
    assert stored(postgresql, pg) == [(1,), (3,), (4,)]


@pytest.mark.parametrize("options", [{}, UPSERT, NEWER], ids=["append", "upsert", "newer_by"])
def test_who_wants_the_trigger_says_so(
    postgresql: PostgresqlServer, pg: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint PRIMARY KEY, at bigint, mark bigint)",
        *trigger("BEFORE INSERT", DROPS_TWO),
    )
    with caplog.at_level(logging.INFO), opened(sink_to(postgresql, pg, may_drop_rows=True, **options)) as sink:
        assert sink.write(chunk(rows((1, 1, 1), (2, 1, 1), (3, 1, 1)))) is None
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
    assert stored(postgresql, pg) == [(1,), (3,)]
    (told,) = [record.getMessage() for record in caplog.records if "kept" in record.getMessage()]
    assert told.startswith("batch 0, chunk a-0-3: table 'flights' in postgresql://")
    assert told.endswith(": the table kept 2 of 3 rows, as may_drop_rows allows")


def test_a_table_whose_trigger_leads_rows_elsewhere_needs_the_option(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint)",
        "CREATE TABLE elsewhere () INHERITS (flights)",
        *trigger("BEFORE INSERT", "INSERT INTO elsewhere VALUES (NEW.id); RETURN NULL;"),
    )
    assert write(sink_to(postgresql, pg), chunk(ids(1, 2))) == [Rejected(dict.fromkeys(range(2), REASON))]
    assert write(sink_to(postgresql, pg, may_drop_rows=True), chunk(ids(1, 2))) == [None]
    assert stored(postgresql, pg) == [(1,), (2,)]


def test_an_update_that_a_trigger_drops_is_rejected(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint PRIMARY KEY, at bigint, mark bigint)",
        *trigger("BEFORE UPDATE", DROPS_TWO),
    )
    for options in (UPSERT, NEWER):
        if options is NEWER:
            postgresql.query(pg, "TRUNCATE flights, wal_sink_ledger")
        with opened(sink_to(postgresql, pg, **options)) as sink:
            assert sink.write(chunk(rows((1, 5, 1), (2, 5, 1), (3, 5, 1), (2, 5, 1), (4, 5, 1)))) is None
            changed = rows((1, 6, 2), (2, 5, 2), (3, 4, 2), (9, None, 9), (4, 6, 3), (4, 6, 4))
            assert sink.write(chunk(changed, first=5)) == Rejected({1: REASON})
            assert sink.write(chunk(changed, first=5).without([1])) is None
        third = 1 if options is NEWER else 2
        assert stored(postgresql, pg, "id, mark") == [(1, 2), (2, 1), (3, third), (4, 4), (9, 9)]


def test_older_and_equal_rows_are_not_dropped_ones(postgresql: PostgresqlServer, pg: str) -> None:
    """Also where PostgreSQL's own trigger leaves out updates that change nothing."""
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id bigint PRIMARY KEY, at bigint, mark json)",
        "CREATE TRIGGER z BEFORE UPDATE ON flights FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    )
    first = rows((1, 5, "[1]"), (2, 5, "[2]"), (3, None, None))
    for options in (UPSERT, NEWER):
        with opened(sink_to(postgresql, pg, **options)) as sink:
            assert sink.write(chunk(first, slot=str(options))) is None
            assert sink.write(chunk(first, slot=str(options), first=3)) is None
    with opened(sink_to(postgresql, pg, **NEWER)) as sink:
        older = rows((1, 4, "[9]"), (2, None, "[9]"), (3, 7, "[7]"), (3, None, "[9]"), (2, 5, "[2]"))
        assert sink.write(chunk(older)) is None
    assert stored(postgresql, pg, "id, at, mark::text") == [(1, 5, "[1]"), (2, 5, "[2]"), (3, 7, "[7]")]


@pytest.mark.parametrize(
    "alters",
    ["NEW.mark := 'x' || NEW.mark;", "NEW.at := NEW.at + 10;", "NEW.at := NEW.at - 10;", "NEW.id := lower(NEW.id);"],
    ids=["a value", "the age up", "the age down", "the key"],
)
def test_rows_that_a_trigger_alters_are_not_dropped_ones(postgresql: PostgresqlServer, pg: str, alters: str) -> None:
    """Though they are not found as they were sent."""
    as_owner(
        postgresql,
        pg,
        "CREATE TABLE flights (id text PRIMARY KEY, at bigint, mark text)",
        *trigger("BEFORE INSERT OR UPDATE", alters),
    )
    with opened(sink_to(postgresql, pg, **NEWER)) as sink:
        assert sink.write(chunk(rows(("A", 50, "1"), ("B", 50, "1"), ("C", 50, "1")))) is None
        mixed = rows(("A", 70, "2"), ("B", 30, "2"), ("D", 70, "2"), ("D", 70, "3"))
        assert sink.write(chunk(mixed, first=3)) is None
    found = {name.upper(): mark[-1] for name, mark in stored(postgresql, pg, "id, mark")}
    assert found == {"A": "2", "B": "1", "C": "1", "D": "3"}


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_a_mariadb_that_counts_fewer_rows_is_not_believed(
    mariadb: MariadbServer, maria: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing known makes it drop a row of an INSERT, but for the word that is put into it here."""
    as_owner(
        mariadb,
        maria,
        "CREATE TABLE marks (mark BIGINT PRIMARY KEY)",
        "INSERT INTO marks VALUES (1)",
        "CREATE TABLE flights (id BIGINT PRIMARY KEY, mark BIGINT, FOREIGN KEY (mark) REFERENCES marks (mark))",
    )
    own = Session.execute

    def ignoring(self: Session, statement: str, values: tuple[Any, ...] | None = None) -> Any:
        return own(self, statement.replace("INSERT INTO", "INSERT IGNORE INTO"), values)

    table = pa.table({"id": [1, 2, 3], "mark": [1, 2, 1]})
    with opened(sink_to(mariadb, maria, **options)) as sink:
        monkeypatch.setattr(Session, "execute", ignoring)
        assert sink.write(chunk(table)) == Rejected({1: REASON})
        assert sink.write(chunk(table).without([1])) is None
    assert stored(mariadb, maria) == [(1,), (3,)]


def test_what_a_mariadb_counts_is_what_it_was_sent(mariadb: MariadbServer, maria: str) -> None:
    """An INSERT that replaces counts two for a row, one for a row that stays as it was; triggers count nothing."""
    as_owner(
        mariadb,
        maria,
        "CREATE TABLE flights (id BIGINT PRIMARY KEY, at BIGINT, mark BIGINT)",
        "CREATE TABLE seen (id BIGINT)",
        "CREATE TRIGGER note BEFORE INSERT ON flights FOR EACH ROW INSERT INTO seen VALUES (NEW.id), (NEW.id)",
    )
    for options in (UPSERT, NEWER):
        with opened(sink_to(mariadb, maria, **options)) as sink:
            for first in (0, 4):
                same = rows((1, 1, 1), (2, 1, 1), (2, 1, 1), (3, None, None))
                assert sink.write(chunk(same, first=first, slot=str(options))) is None
            older = rows((1, 0, 2), (2, None, 2), (1, 0, 3))
            assert sink.write(chunk(older, first=8, slot=str(options))) is None
    assert mariadb.query(maria, "SELECT count(*) FROM flights") == [(3,)]


def test_a_dropped_row_halts_or_becomes_a_dead_letter(
    postgresql: PostgresqlServer, pg: str, caplog: pytest.LogCaptureFixture
) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (id bigint)", *trigger("BEFORE INSERT", DROPS_TWO))
    told = r"batch 0.*SqlSink\('postgresql://.*'flights'.* rejected 1 row; row 1 of the chunk: the table kept 0 of 1 "
    with query_into(sink_to(postgresql, pg)) as query:
        with pytest.raises(DeliveryError, match=f"{told}.*pass may_drop_rows=True\\. Correct the table"):
            query.batch(ids(1, 2))
        query.crash()
    assert stored(postgresql, pg) == []
    with query_into(Delivery(sink_to(postgresql, pg), on_rejected="dead_letter")) as query:
        query.batch(ids(1, 2, 3))
    assert stored(postgresql, pg) == [(1,), (3,)]
    kept = [record.getMessage() for record in caplog.records if "kept as" in record.getMessage()]
    assert [text.partition(", ")[0] for text in kept] == ["sink default: 1 row refused"]


def test_of_a_key_alone_a_row_is_there_or_dropped(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (id bigint PRIMARY KEY)", *trigger("BEFORE INSERT", DROPS_TWO))
    with opened(sink_to(postgresql, pg, **UPSERT)) as sink:
        assert sink.write(chunk(ids(1, 3, 1))) is None
        assert sink.write(chunk(ids(3, 4, 4), first=3)) is None
        assert sink.write(chunk(ids(5, 2, 1), first=6)) == Rejected({1: REASON})
    assert stored(postgresql, pg) == [(1,), (3,), (4,)]

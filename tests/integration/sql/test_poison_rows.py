"""Errors that are in no list, planted for one row of three: the row is refused, or delivery stops, for each dialect."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pymysql
import pytest

from tests.house.sinks import Rejected
from tests.support.chunks import chunk, ids
from tests.support.servers.databases import DatabaseServer, MariadbServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored
from wal_sink.errors import PermanentError

ROWS, STOPS = "about the row", "never about a row"
STOPPING = (PermanentError, psycopg.Error, pymysql.MySQLError)


def plant(server: DatabaseServer, database: str, code: str) -> None:
    """Let a trigger raise this error for row 2."""
    as_owner(server, database, "CREATE TABLE flights (id BIGINT)")
    if isinstance(server, PostgresqlServer):
        raised = f"RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'"
        body = f"BEGIN IF NEW.id = 2 THEN {raised}; END IF; RETURN NEW; END"
        as_owner(server, database, f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        as_owner(server, database, "CREATE TRIGGER g BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION f()")
    else:
        raised = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'planted'"
        server.query(
            database, f"CREATE TRIGGER g BEFORE INSERT ON flights FOR EACH ROW IF NEW.id = 2 THEN {raised}; END IF"
        )


def check(server: DatabaseServer, database: str, expected: str) -> None:
    with opened(sink_to(server, database)) as sink:
        if expected == ROWS:
            rejected = sink.write(chunk(ids(1, 2, 3)))
            assert isinstance(rejected, Rejected)
            assert [(row, reason.partition(" ")[0]) for row, reason in rejected.reasons.items()] == [(1, "planted")]
        else:
            with pytest.raises(STOPPING, match="planted"):
                sink.write(chunk(ids(1, 2, 3)))
        assert stored(server, database) == []
        with pytest.raises(STOPPING, match="planted"):
            sink.write(chunk(ids(2)))  # no other row to try
    assert stored(server, database) == []


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        *((state, ROWS) for state in ("UE001", "09000", "54001", "42501", "0A000", "2F004", "38001")),
        *((state, STOPS) for state in ("08006", "40002", "53100", "53400", "55000", "55P03")),
        *((state, STOPS) for state in ("57014", "57P04", "58030", "XX000", "XX001", "25006")),
    ],
)
def test_postgresql(postgresql: PostgresqlServer, pg: str, state: str, expected: str) -> None:
    plant(postgresql, pg, state)
    check(postgresql, pg, expected)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *((number, ROWS) for number in ("30001", "2013", "2006", "1118", "1365", "1146")),
        *((number, STOPS) for number in ("1205", "1213", "1030", "1114", "1290", "1317", "1927", "1969", "3024")),
    ],
)
def test_mariadb(mariadb: MariadbServer, maria: str, number: str, expected: str) -> None:
    plant(mariadb, maria, number)
    check(mariadb, maria, expected)


def test_a_text_nested_too_deeply(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, "CREATE TABLE flights (id bigint, more json)")
    rows = ids(1, 2, 3).append_column("more", pa.array(["{}", "[" * 20_000 + "]" * 20_000, "1"]))
    with opened(sink_to(postgresql, pg)) as sink:
        assert sink.write(chunk(rows)) == Rejected({1: "stack depth limit exceeded"})


def test_a_row_that_divides_by_zero_and_one_that_is_too_large(mariadb: MariadbServer, maria: str) -> None:
    columns = ",".join(f"c{number} longtext" for number in range(230))
    mariadb.query(maria, f"CREATE TABLE flights (id int, w int AS (10 / (id - 2)) STORED, {columns})")
    texts = {f"c{number}": pa.array(["a", "a", "x" * 39]) for number in range(230)}
    with opened(sink_to(mariadb, maria)) as sink:
        rejected = sink.write(chunk(pa.table({"id": pa.array([1, 2, 3], pa.int32()), **texts})))
    assert isinstance(rejected, Rejected)
    assert ["Division by 0" in rejected.reasons[1], "Row size too large" in rejected.reasons[2]] == [True, True]

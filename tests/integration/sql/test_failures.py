"""`SqlSink` when the server fails: lost answers, cut connections, locks, restarts, and targets restored to the past."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psycopg
import pyarrow as pa
import pymysql
import pytest

import wal_sink_backends.sql.base.dialect as dialects_module
from tests.house.sinks import Chunk, LedgerEntry, Position
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import (
    PASSWORD,
    PASSWORD_VARIABLE,
    USER,
    DatabaseServer,
    PostgresqlServer,
    postgresql_program,
    servers_folder,
)
from tests.support.servers.tcp_proxy import How, TcpProxy
from tests.support.sql_chunks import as_owner, opened, sink_to, write
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import WalSink
from wal_sink.errors import ConfigError, DeliveryError, FencedError, HistoryError, OutcomeUnknownError, PermanentError
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import query_into
from wal_sink_backends.sql.sink import SqlSink

PASSING: tuple[type[Exception], ...] = (psycopg.Error, pymysql.MySQLError, OSError)
"""Errors after which a write may be tried again: those of the drivers and of the system, none of ours."""


@pytest.fixture
def proxy(server: DatabaseServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as running:
        yield running


def stored(server: DatabaseServer, database: str) -> list[int]:
    return [row for (row,) in server.query(database, "SELECT id FROM flights ORDER BY 1")]


def commit_request(server: DatabaseServer) -> bytes:
    return b"COMMIT\x00" if isinstance(server, PostgresqlServer) else b"\x03COMMIT"


def rows_request(server: DatabaseServer) -> bytes:
    """Return bytes of the request that carries rows: COPY's data message, or an INSERT."""
    return b"d\x00" if isinstance(server, PostgresqlServer) else b"INSERT INTO `db"


def write_patiently(sink: SqlSink, one: Chunk) -> None:
    """Until the server has ended what a lost connection left behind, or has answered within a short limit."""
    patiently(lambda: sink.write(one))


def refused(sink: SqlSink, one: Chunk) -> str:
    """Return the error of a write. On a busy machine it may meet another limit than that of the lock."""
    with pytest.raises(PASSING) as caught:
        sink.write(one)
    return str(caught.value)


def patiently(call: Callable[[], object]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            call()
        except PASSING:
            assert time.monotonic() < deadline
            time.sleep(0.3)
        else:
            return


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_cut_during_commit(server: DatabaseServer, database: str, proxy: TcpProxy, how: How) -> None:
    """Whether the server committed or not, the ledger tells at the next attempt."""
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(1)))
        proxy.cut(commit_request(server), how)
        with pytest.raises(PASSING):
            sink.write(chunk(ids(2, 3), first=1))
        assert proxy.cuts == 1
        assert stored(server, database) == ([1, 2, 3] if how == "after" else [1])
        write_patiently(sink, chunk(ids(2, 3), first=1))
        assert sink.last(SLOT) == Position(SLOT, 0, 3, "a")
    assert stored(server, database) == [1, 2, 3]


def test_a_connection_cut_among_the_rows(server: DatabaseServer, database: str, proxy: TcpProxy) -> None:
    rows = pa.table({"id": range(1, 5001)})
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(0)))
        proxy.cut(rows_request(server), "halfway")
        with pytest.raises(PASSING):
            sink.write(chunk(rows, first=1))
        assert proxy.cuts == 1
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
        write_patiently(sink, chunk(rows, first=1))
    assert stored(server, database) == list(range(5001))


def test_a_server_that_stops_and_comes_back(server: DatabaseServer, database: str, proxy: TcpProxy) -> None:
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(1)))
        stopped = threading.Event()

        def stop() -> None:
            server.kill()
            stopped.set()

        proxy.on_cut = stop
        proxy.cut(commit_request(server), "before")
        with pytest.raises(PASSING):
            sink.write(chunk(ids(2), first=1))
        assert stopped.wait(PATIENCE_S)
        with pytest.raises(PASSING):
            sink.write(chunk(ids(2), first=1))
        server.start()
        write_patiently(sink, chunk(ids(2), first=1))
    assert stored(server, database) == [1, 2]


def test_a_server_that_says_nothing_any_more(
    server: DatabaseServer, database: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects_module, "_GRACE_S", 0.2)
    with opened(sink_to(server, database, port=proxy.port, statement_timeout_s=1, busy_timeout_s=1)) as sink:
        write_patiently(sink, chunk(ids(1)))
        proxy.cut(commit_request(server), "swallow")
        began = time.monotonic()
        errors = []
        while not proxy.cuts:  # on a busy machine a statement in front of COMMIT may meet the limit, too
            try:
                sink.write(chunk(ids(2), first=1))
            except PASSING as error:
                errors.append(error)
        assert errors
        assert 1 <= time.monotonic() - began < PATIENCE_S
        write_patiently(sink, chunk(ids(2), first=1))
    assert stored(server, database) == [1, 2]


def test_a_statement_that_takes_too_long(server: DatabaseServer, database: str) -> None:
    with opened(sink_to(server, database, statement_timeout_s=1)) as sink:
        write_patiently(sink, chunk(ids(1)))
        if isinstance(server, PostgresqlServer):
            server.query(
                database,
                "CREATE FUNCTION nap() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(90); RETURN NEW; END' "
                "LANGUAGE plpgsql",
            )
            server.query(database, "CREATE TRIGGER nap BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION nap()")
        else:
            server.query(database, "CREATE TRIGGER nap BEFORE INSERT ON flights FOR EACH ROW SET @a = SLEEP(90)")
        with pytest.raises(PASSING, match=r"timeout|timed out|max_statement_time|no answer within"):
            sink.write(chunk(ids(2), first=1))
        server.query(database, "DROP TRIGGER nap" + (" ON flights" if isinstance(server, PostgresqlServer) else ""))
        write_patiently(sink, chunk(ids(2), first=1))
    assert stored(server, database) == [1, 2]


def test_nobody_passes_while_another_writes_the_slot(server: DatabaseServer, database: str) -> None:
    """Neither where the ledger has a row of the slot, nor before it has one."""
    with opened(sink_to(server, database, busy_timeout_s=1)) as sink:
        write_patiently(sink, chunk(ids(0), slot="another"))
        for first in (0, 1):
            with opened(sink_to(server, database, busy_timeout_s=PATIENCE_S)) as other:
                connection = other._connected()
                with other._dialect.transaction(connection):
                    assert (other._dialect.lock(connection, SLOT, 2) is None) is (first == 0)
                    one = chunk(ids(first + 1), first=first)
                    wait_until(lambda one=one: "lock" in refused(sink, one).lower(), "it waited for the lock in vain")  # type: ignore[misc]
                    other._dialect.move_ledger(connection, LedgerEntry(1, Position(SLOT, 0, first, "a")))
            write_patiently(sink, chunk(ids(first + 1), first=first))
    assert stored(server, database) == [0, 1, 2]


@pytest.mark.parametrize("at", ["rows", "commit"])
def test_a_process_that_stands_still_in_its_transaction_keeps_nobody_out(
    server: DatabaseServer, database: str, proxy: TcpProxy, at: str
) -> None:
    """Its next request never arrives: the server ends its transaction, or the newer process does."""
    errors: list[BaseException] = []
    newer = sink_to(server, database, busy_timeout_s=1)
    with opened(sink_to(server, database, port=proxy.port, busy_timeout_s=1)) as zombie, opened(newer):
        write_patiently(zombie, chunk(ids(1)))
        swallowed = threading.Event()
        proxy.on_cut = swallowed.set
        proxy.cut(rows_request(server) if at == "rows" else commit_request(server), "swallow")

        def stand_still() -> None:
            while not swallowed.is_set():  # on a busy machine the server may end a transaction before that
                try:
                    zombie.write(chunk(ids(2), first=1))
                except PASSING as error:
                    errors[:] = [error]

        thread = threading.Thread(target=stand_still)
        thread.start()
        assert swallowed.wait(PATIENCE_S)
        write_patiently(newer, chunk(ids(2), first=1, term=2))
        assert stored(server, database) == [1, 2]
        proxy.__exit__(None, None, None)
        thread.join(2 * PATIENCE_S)
        assert len(errors) == 1
    with opened(sink_to(server, database)) as woken, pytest.raises(FencedError):
        woken.write(chunk(ids(3), first=2, term=1))


@pytest.mark.parametrize(
    ("state", "number", "expected"),
    [
        ("40001", 1213, "passes"),
        ("40P01", 1205, "passes"),
        ("53300", 1040, "passes"),
        ("57P03", 1053, "passes"),
        ("42501", 1142, "permanent"),
        ("XX001", 1146, "permanent"),
    ],
)
def test_errors_by_their_number(server: DatabaseServer, database: str, state: str, number: int, expected: str) -> None:
    """Raised by the server itself, by way of a trigger."""
    with opened(sink_to(server, database)) as sink:
        sink.write(chunk(ids(1)))
        if isinstance(server, PostgresqlServer):
            body = f"BEGIN RAISE EXCEPTION ''made up'' USING ERRCODE = ''{state}''; END"
            server.query(database, f"CREATE FUNCTION no() RETURNS trigger AS '{body}' LANGUAGE plpgsql")
            server.query(database, "CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION no()")
        else:
            body = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'made up', MYSQL_ERRNO = {number}"
            server.query(database, f"CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW {body}")
        with pytest.raises(PASSING if expected == "passes" else PermanentError, match="made up"):
            sink.write(chunk(ids(2), first=1))
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
        server.query(database, "DROP TRIGGER no" + (" ON flights" if isinstance(server, PostgresqlServer) else ""))
        sink.write(chunk(ids(2), first=1))
    assert stored(server, database) == [1, 2]


@pytest.mark.parametrize(("state", "number"), [("40001", 1213), ("40P01", 1205)])
@pytest.mark.parametrize("on_rejected", ["halt", "dead_letter"])
def test_a_trigger_that_fails_a_row_again_and_again_ends_the_delivery(
    server: DatabaseServer, database: str, state: str, number: int, on_rejected: Literal["halt", "dead_letter"]
) -> None:
    """Another attempt may not meet the failure, so the chunk is tried again and no row is a dead letter.

    The last error names the number and the rows.
    """
    if isinstance(server, PostgresqlServer):
        fails = f"RAISE EXCEPTION ''made up'' USING ERRCODE = ''{state}''"
        body = f"BEGIN IF NEW.id = 3 THEN {fails}; END IF; RETURN NEW; END"
        as_owner(
            server,
            database,
            "CREATE TABLE flights (id bigint)",
            f"CREATE FUNCTION no() RETURNS trigger AS '{body}' LANGUAGE plpgsql",
            "CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION no()",
        )
        told = rf"rows 2 to 3 of the segment: made up \(SQLSTATE {state}\)\."
    else:
        fails = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'made up', MYSQL_ERRNO = {number}"
        body = f"IF NEW.id = 3 THEN {fails}; END IF"
        server.query(database, "CREATE TABLE flights (id BIGINT)")
        server.query(database, f"CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW {body}")
        told = rf"\({number}, 'rows 2 to 3 of the segment: made up'\)\."
    delivery = Delivery(sink_to(server, database), retry=Retry(attempts=3), on_rejected=on_rejected)
    with query_into(delivery) as query:
        end = rf"delivery stopped after 3 attempts .*'flights'.* raised \w+: {told}"
        with pytest.raises(DeliveryError, match=end):
            query.batch(ids(1, 2, 1, 3))
        query.crash()
    assert stored(server, database) == [1, 2]


def test_too_many_connections_are_an_error_that_may_pass(server: DatabaseServer, database: str) -> None:
    # A user that no other test uses: a connection that another test closed still counts until the server has noticed.
    if isinstance(server, PostgresqlServer):
        server.query("postgres", f"CREATE ROLE crowd LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 1 IN ROLE {USER}")
    else:
        server.query("mysql", f"CREATE USER crowd@'%' IDENTIFIED BY '{PASSWORD}' WITH MAX_USER_CONNECTIONS 1")
        server.query("mysql", f"GRANT ALL ON {database}.* TO crowd@'%'")
    url = server.url(database).replace(f"{USER}@", "crowd@")
    first, second = (SqlSink(url, "flights", password_env=PASSWORD_VARIABLE) for _ in range(2))
    with opened(first), pytest.raises(PASSING, match=r"max_user_connections|too many connections"), opened(second):
        pass


def test_a_ledger_that_was_emptied_with_its_table_is_refused(server: DatabaseServer, database: str) -> None:
    with query_into(sink_to(server, database)) as query:
        query.batch(pa.table({"id": [1, 2, 3]}))
        query.batch(pa.table({"id": [4]}))
        for table in ("flights", "wal_sink_ledger"):
            server.query(database, f"DELETE FROM {table}")
        with pytest.raises((HistoryError, DeliveryError), match="The target was restored to an older state"):
            query.batch(pa.table({"id": [5]}))
        assert stored(server, database) == []
        query.crash()


def test_a_database_restored_from_a_dump_of_before_the_marker_is_refused(
    postgresql: PostgresqlServer,
) -> None:
    database = postgresql.new_database()
    dump = postgresql.folder / f"{database}.sql"
    to = [f"--port={postgresql.port}", "--host=127.0.0.1", "--username=admin"]
    pg_dump, psql = postgresql_program("pg_dump"), postgresql_program("psql")
    with query_into(sink_to(postgresql, database)) as query:
        query.batch(pa.table({"id": [1, 2, 3]}))
        postgresql.run(pg_dump, *to, "--clean", f"--file={dump}", database)
        query.batch(pa.table({"id": [4, 5]}))
        assert stored(postgresql, database) == [1, 2, 3, 4, 5]
        postgresql.run(psql, *to, "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", database)
        with pytest.raises((HistoryError, DeliveryError), match="The target was restored to an older state"):
            query.restart()
        assert stored(postgresql, database) == [1, 2, 3]
        query.crash()


# A server that is replaced by one with an older state, as after a fail-over to a standby that lagged behind.


@pytest.fixture
def older(server: DatabaseServer, database: str) -> Iterator[DatabaseServer]:
    """Another server that has the first chunk only, in a database of the same name."""
    with servers_folder() as folder, type(server)(folder / "older") as another:
        another.create_database(database)
        for each in (server, another):
            write(sink_to(each, database), chunk(ids(1)))
        yield another


def test_a_server_replaced_between_two_chunks_by_one_with_an_older_state(
    server: DatabaseServer, older: DatabaseServer, database: str, proxy: TcpProxy
) -> None:
    """The third chunk follows the second, which the server that answers now does not have: nothing may be written."""
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(2), first=1))
        proxy.lead_to(older.port)
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            write_patiently(sink, chunk(ids(3), first=2))
        assert stored(older, database) == [1]
        assert sink.positions([SLOT]) == {SLOT: Position(SLOT, 0, 1, "a")}
        for first in (1, 2):
            write_patiently(sink, chunk(ids(first + 1), first=first))
    assert stored(older, database) == [1, 2, 3]
    assert stored(server, database) == [1, 2]


def test_a_wrong_password_is_refused_before_anything_is_staged(server: DatabaseServer, tmp_path: Path) -> None:
    url = server.url(server.new_database()).replace(f"{USER}@", f"{USER}:wrong@")
    with (
        pytest.raises(ConfigError, match=r"sink 'default'.*check_targets=False"),
        WalSink(SqlSink(url, "flights"), wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint")),
    ):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_a_server_replaced_between_two_batches_by_one_with_an_older_state(
    server: DatabaseServer, older: DatabaseServer, database: str, proxy: TcpProxy
) -> None:
    """The first chunk of a segment follows what the slot held when the segment was begun."""
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(2), first=1))
        follows = sink.last(SLOT)
        proxy.lead_to(older.port)
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            write_patiently(sink, chunk(ids(3), batch=1, segment="b", after=follows))
    assert stored(older, database) == [1]


def test_a_server_replaced_by_one_without_ledger_and_table(
    server: DatabaseServer, older: DatabaseServer, database: str, proxy: TcpProxy
) -> None:
    with opened(sink_to(server, database, port=proxy.port)) as sink:
        sink.write(chunk(ids(2), first=1))
        for table in ("flights", "wal_sink_ledger"):
            older.query(database, f"DROP TABLE {table}")
        proxy.lead_to(older.port)
        with pytest.raises(OutcomeUnknownError, match=r"the slot is at nothing, expected it at batch 0, row 2\. "):
            write_patiently(sink, chunk(ids(3), first=2))
        assert sink.last(SLOT) is None
        for first in range(3):
            write_patiently(sink, chunk(ids(first + 1), first=first))
    assert stored(older, database) == [1, 2, 3]

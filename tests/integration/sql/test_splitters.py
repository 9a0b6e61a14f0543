"""`SqlSink` behind what splits reads from writes: the ledger is read from the primary, or the answer is refused."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from tests.house.sinks import Position
from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.servers.databases import USER, MariadbServer, PostgresqlServer, servers_folder
from tests.support.servers.postgres_pair import PostgresPair
from tests.support.sql_chunks import opened, sink_to


def test_positions_are_read_in_a_transaction_that_may_write_on_postgresql(
    postgresql: PostgresqlServer, pg: str
) -> None:
    """By the server's own log. Its lines name the process, so that no other session's statements are among them."""
    postgresql.query("postgres", f"ALTER ROLE {USER} IN DATABASE {pg} SET log_statement = 'all'")
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        session: Any = sink._connection
        (who,) = session.execute("SELECT pg_backend_pid()").fetchone()
        session.execute("SELECT 'from here on'")
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
        session.execute("SELECT 'up to here'")
    lines = [line for line in postgresql.child.output.splitlines() if f"[{who}]" in line and "LOG:" in line]
    said = [line.partition("LOG:")[2] for line in lines]
    first = next(number for number, line in enumerate(said) if "from here on" in line)
    end = next(number for number, line in enumerate(said) if "up to here" in line)
    begin, *between, commit = said[first + 1 : end]
    assert "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" in begin
    assert ["wal_sink_ledger" in line for line in between] == [True]
    assert commit.endswith("COMMIT")


def test_positions_are_read_in_a_transaction_that_may_write_on_mariadb(mariadb: MariadbServer, maria: str) -> None:
    """By the server's own log."""
    with opened(sink_to(mariadb, maria)) as sink:
        sink.write(chunk(ids(1)))
        session: Any = sink._connection
        (who,) = session.execute("SELECT CONNECTION_ID()").fetchone()
        mariadb.query("mysql", "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
        try:
            assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
        finally:
            mariadb.query("mysql", "SET GLOBAL general_log = OFF")
    text = f"SELECT argument FROM general_log WHERE thread_id = {who} AND command_type = 'Query' ORDER BY event_time"
    statements = [bytes(one).decode() if isinstance(one, bytes) else one for (one,) in mariadb.query("mysql", text)]
    begin, read, commit = statements
    assert (begin, commit) == ("START TRANSACTION READ WRITE", "COMMIT")
    assert "wal_sink_ledger" in read


def test_a_server_that_is_read_only_is_not_believed(mariadb: MariadbServer, maria: str) -> None:
    """Even where this user may write to it, as to a replica: the answer itself tells."""
    with opened(sink_to(mariadb, maria)) as sink:
        sink.write(chunk(ids(1)))
        mariadb.query("mysql", "SET GLOBAL read_only = ON")
        try:
            with pytest.raises(pymysql.err.OperationalError, match="running with the --read-only option"):
                sink.last(SLOT)
            mariadb.query("mysql", f"GRANT READ_ONLY ADMIN ON *.* TO {USER}@'%'")
            sink.open(CONTEXT)
            for slot in (SLOT, "never written"):
                with pytest.raises(
                    ConnectionError, match="a read-only server, perhaps a replica that lags behind, answered"
                ):
                    sink.last(slot)
        finally:
            mariadb.query("mysql", "SET GLOBAL read_only = OFF")
            mariadb.query("mysql", f"REVOKE READ_ONLY ADMIN ON *.* FROM {USER}@'%'")
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")


@pytest.mark.usefixtures("postgresql")
def test_an_answer_of_a_replica_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a splitter that sends the question alone to the replica, and of the replica itself."""
    with servers_folder() as place, PostgresPair(place) as pair:
        database = pair.primary.new_database()
        with opened(sink_to(pair.primary, database)) as sink:
            sink.write(chunk(ids(1)))
            pair.renew()
            assert pair.standby is not None
            replica = pair.standby.connect(database)
            session: Any = type(sink._connection)
            execute = session.execute

            def split(self: Any, statement: str, values: Any = None) -> Any:
                to_replica = statement.lstrip().startswith("SELECT") and "wal_sink_ledger" in statement
                return replica.execute(statement.encode(), values) if to_replica else execute(self, statement, values)

            for slot in (SLOT, "never written"):
                monkeypatch.setattr(session, "execute", split)
                with pytest.raises(
                    ConnectionError, match="a read-only server, perhaps a replica that lags behind, answered"
                ):
                    sink.last(slot)
                monkeypatch.setattr(session, "execute", execute)
                assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
            replica.close()

        standby = sink_to(pair.primary, database, port=pair.standby.port)
        dialect: Any = standby._dialect
        given = {**dialect._parameters(), "target_session_attrs": "any"}
        monkeypatch.setattr(type(dialect), "_parameters", lambda _: given)
        with pytest.raises(ConnectionError, match=r"is read only: cannot set .* during recovery"):
            standby.open(CONTEXT)

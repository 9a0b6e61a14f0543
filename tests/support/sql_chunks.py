"""Helpers for tests of `SqlSink`: they write chunks to a server and read its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.house.sinks import Chunk, Rejected
from tests.support.chunks import CONTEXT
from tests.support.servers.databases import PASSWORD_VARIABLE, USER, DatabaseServer, PostgresqlServer
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink_backends.sql.sink import SqlSink


@contextmanager
def opened(sink: SqlSink) -> Iterator[SqlSink]:
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def sink_to(
    server: DatabaseServer, database: str, table: str = "flights", *, port: int | None = None, **options: Any
) -> SqlSink:
    """Return a sink that waits long for a connection: a busy machine may take more seconds than its default."""
    given = {"connect_timeout_s": PATIENCE_S, **options}
    return SqlSink(server.url(database, port=port), table, password_env=PASSWORD_VARIABLE, **given)


def write(sink: SqlSink, *chunks: Chunk) -> list[Rejected | None]:
    with opened(sink):
        return [sink.write(one) for one in chunks]


def stored(server: DatabaseServer, database: str, columns: str = "id") -> list[tuple[Any, ...]]:
    return server.query(database, f"SELECT {columns} FROM flights ORDER BY 1")


def wait_until_alone(server: DatabaseServer, database: str) -> None:
    """Wait until the server has ended every session of the sinks' user, and whatever it had begun.

    The commit of a process that was killed may come after the process has ended.
    """
    if isinstance(server, PostgresqlServer):
        sessions = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND usename = '{USER}'"
    else:
        sessions = f"SELECT 1 FROM information_schema.processlist WHERE db = '{database}' AND user = '{USER}'"
    wait_until(lambda: not server.query(database, sessions), f"no session of {USER} is left")


def as_owner(server: DatabaseServer, database: str, *statements: str) -> None:
    """Run statements as the user as which the sink connects, where tables have owners."""
    for statement in statements:
        if isinstance(server, PostgresqlServer):
            server.query(database, f"SET ROLE {USER}")
        server.query(database, statement)
        if isinstance(server, PostgresqlServer):
            server.query(database, "RESET ROLE")

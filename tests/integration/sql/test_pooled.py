"""`SqlSink` on PostgreSQL behind a pooler, whose connections outlive the server's."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest

from tests.support.chunks import chunk, ids
from tests.support.servers.databases import PASSWORD, USER, PostgresqlServer, servers_folder
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.sql_chunks import as_owner, opened, sink_to

ERROR = b"SFATAL\x00C08P01\x00Mserver conn crashed\x00\x00"
MESSAGE = b"E" + (len(ERROR) + 4).to_bytes(4, "big") + ERROR


def test_two_errors_at_once_may_pass(postgresql: PostgresqlServer, pg: str) -> None:
    """As PgBouncer passes on the server's last words and adds its own: psycopg then shows neither."""
    proxy = TcpProxy(postgresql.port)
    with proxy, opened(sink_to(postgresql, pg, port=proxy.port)) as sink:
        proxy.instead = (b"G", 2 * MESSAGE)  # of the answer to COPY
        with pytest.raises(ConnectionError, match="answered COPY with several results"):
            sink.write(chunk(ids(1, 2)))
        assert postgresql.query(pg, "SELECT id FROM flights") == []
        assert sink.write(chunk(ids(1, 2))) is None
    assert postgresql.query(pg, "SELECT id FROM flights ORDER BY id") == [(1,), (2,)]


def test_what_another_client_left_in_the_session_changes_nothing(postgresql: PostgresqlServer, pg: str) -> None:
    """A pool has one connection, whose state every client inherits."""
    postgresql.query(pg, f"CREATE ROLE clerk_{pg}")
    postgresql.query(pg, f"GRANT clerk_{pg} TO {USER}")
    settings = "concat_ws(' ', current_user, current_setting('synchronous_commit'), current_setting('search_path'))"
    as_owner(
        postgresql,
        pg,
        "CREATE SCHEMA tenant",
        "CREATE TABLE tenant.flights (id bigint)",
        f"CREATE TABLE public.flights (id bigint, list text[], how text DEFAULT {settings})",
    )
    with servers_folder() as folder, PgBouncer(folder / "bouncer", postgresql.port) as pooler:
        at = {"host": "127.0.0.1", "port": pooler.port, "user": USER, "password": PASSWORD, "dbname": pg}
        with (
            opened(sink_to(postgresql, pg, port=pooler.port)) as sink,
            psycopg.connect(**at, autocommit=True, prepare_threshold=None) as other,  # type: ignore[arg-type]
        ):
            for setting in (
                *("search_path TO tenant", "synchronous_commit TO off", f"ROLE clerk_{pg}"),
                *("array_nulls TO off", "quote_all_identifiers TO on"),
            ):
                other.execute(f"SET {setting}".encode())
            table = pa.table({"id": [1], "list": [["a", None]]})
            sink.examine(table.schema)
            sink.write(chunk(table))
            assert other.execute("SHOW search_path").fetchone() == ("tenant",)
    assert postgresql.query(pg, "SELECT * FROM public.flights") == [(1, ["a", None], f'{USER} on "$user", public')]
    assert postgresql.query(pg, "SELECT * FROM tenant.flights") == []

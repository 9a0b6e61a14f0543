"""`SqlSink` on PostgreSQL behind a pooler, whose connections outlive the server's."""

from __future__ import annotations

import pytest

from tests.support.chunks import chunk, ids
from tests.support.servers.databases import PostgresqlServer
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.sql_chunks import opened, sink_to

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

"""Sinks by URL reach a server."""

from __future__ import annotations

from tests.support.chunks import CONTEXT, chunk, ids
from tests.support.redis_tools import VARIABLE, ledger
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink_backends.redis.urls import redis_sink


def test_by_url_with_its_password(server: RedisServer) -> None:
    sink = redis_sink(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/3?kind=stream&key=orders:%7Bid%7D&maxlen=100")
    assert repr(sink) == f"RedisSink('redis://127.0.0.1:{server.port}/3', kind='stream', key='orders:{{id}}')"
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    with server.client(db=3) as raw:
        assert raw.xlen("orders:1") == 1


def test_by_the_path_of_a_socket(server: RedisServer) -> None:
    sink = redis_sink(f"redis+unix://{server.folder}/redis.sock?key=orders:{{id}}&password_env={VARIABLE}")
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert ledger(server)["rows"] == "1"

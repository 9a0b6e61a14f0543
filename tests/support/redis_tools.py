"""Helpers for tests of `RedisSink` on real servers. These are killed, emptied, filled up and forbidden commands.

`tests/contract/test_redis_backend.py` tests the contract of every transactional sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.chunks import CONTEXT, SLOT
from tests.support.servers.redis_server import RedisServer
from wal_sink_backends.redis.script import LEDGER
from wal_sink_backends.redis.sink import RedisSink

VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"


@contextmanager
def opened(server: RedisServer, **more: Any) -> Iterator[RedisSink]:
    given: dict[str, Any] = {"key": "orders:{id}", "password_env": VARIABLE} | more
    sink = RedisSink(server.url, **given)
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def stream_ids(server: RedisServer, name: str = "orders") -> list[int]:
    with server.client() as client:
        return [int(row["id"]) for _, row in client.xrange(name)]


def ledger(server: RedisServer) -> dict[str, str]:
    with server.client() as client:
        found: dict[str, str] = client.hgetall(f"{LEDGER}{SLOT}")
        return found

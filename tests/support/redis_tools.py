"""Helpers for tests of `RedisSink` on real servers. These are killed, emptied, filled up and forbidden commands.

`tests/contract/test_redis_backend.py` tests the contract of every transactional sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.chunks import CONTEXT, SLOT
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until
from wal_sink_backends.redis.rows import LEDGER
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


def wait_until_alone(server: RedisServer) -> None:
    """Wait until the server has ended every other connection, and carried out what came over it.

    The last request of a process that was killed may be carried out after the process has ended.
    """
    with server.client() as client:
        wait_until(lambda: len(client.client_list()) == 1, "no other connection is left")


def stream_ids(server: RedisServer, name: str = "orders") -> list[int]:
    with server.client() as client:
        return [int(row["id"]) for _, row in client.xrange(name)]


def ledger(server: RedisServer, slot: str = SLOT) -> dict[str, str]:
    with server.client() as client:
        found: dict[str, str] = client.hgetall(f"{LEDGER}{slot}")
        return found

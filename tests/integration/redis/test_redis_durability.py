"""`RedisSink` warns when it opens a real server that may lose rows that it acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.support.logged import said_here
from tests.support.redis_tools import opened
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.waiting import wait_until
from wal_sink_backends.common.sinks import warn_once

NEITHER = ("--appendonly", "no", "--save", "")


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), None),  # the fixture's server is set up as docs/sinks/redis.md asks for
        (("--appendfsync", "everysec"), "appendfsync is everysec"),
        (("--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite is not no"),
        (("--appendonly", "no", "--save", "60 1"), "no append-only file"),
        (NEITHER, "neither an append-only file nor snapshots"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"), "maxmemory-policy is volatile-lru"),
    ],
)
def test_a_server_is_warned_of_once(
    options: tuple[str, ...],
    expected: str | None,
    new_redis: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = new_redis(*options)
    for _ in range(2):
        with caplog.at_level(logging.WARNING), opened(server):
            pass
    told = said_here(caplog)
    if expected is None:
        assert told == []
    else:
        assert len(told) == 1
        assert expected in told[0]
        assert told[0].startswith(server.url)


def test_replicas_that_are_not_waited_for_are_warned_of(
    new_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis("--repl-diskless-sync-delay", "0")
    replica = new_redis("--replicaof", f"127.0.0.1 {server.port}", "--masterauth", PASSWORD)
    with replica.client() as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
    with opened(server, wait_replicas=1):
        assert "replica(s)" not in caplog.text
    with opened(server):
        assert "the server has 1 replica(s), but acknowledges a write before the replicas have it" in caplog.text

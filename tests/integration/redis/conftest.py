"""Fixtures of the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_tools import VARIABLE
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink_backends.common.sinks import warn_once


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


@pytest.fixture(autouse=True)
def new_process() -> None:
    """Forget what was said once: a new server may have the port of an earlier one."""
    warn_once.cache_clear()


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The server that other tests use too, empty. Whatever a test sets there is set back after it."""
    with redis_server.client() as client:
        client.flushall()
    yield redis_server
    with redis_server.client() as client:
        client.acl_deluser("limited")
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")

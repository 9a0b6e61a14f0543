"""`RedisSink` keeps the contract of a transactional sink, on a separate Redis."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.contracts import FoldedContract, checks_of, faults
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink.testing import SinkContract
from wal_sink_backends.redis.sink import RedisSink

VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"
_numbers = itertools.count()


@dataclass(frozen=True)
class Keys:
    """All keys that begin with a name, in an emptied database."""

    server: RedisServer
    name: str


class RedisContract(FoldedContract):
    kind: Any = "hash"
    law = "[Redis](sinks/redis.md)"

    @pytest.fixture(autouse=True)
    def password(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv(VARIABLE, PASSWORD)
        with self.closing():
            yield

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close the sinks of processes that died, which have nobody else to close their sockets."""
        self.made: list[RedisSink] = []
        yield
        for sink in self.made:
            sink.close()

    @pytest.fixture
    def target(self, redis_server: RedisServer) -> Keys:
        return self.another(Keys(redis_server, ""))

    def another(self, target: Keys) -> Keys:
        with target.server.client() as client:
            client.flushall()
        return Keys(target.server, f"orders-{next(_numbers)}")

    def make_sink(self, target: Keys) -> RedisSink:
        self.made.append(self.new_sink(target))
        return self.made[-1]

    def new_sink(self, target: Keys) -> RedisSink:
        key = f"{target.name}:{{id}}" if self.kind == "hash" else target.name
        return RedisSink(target.server.url, kind=self.kind, key=key, password_env=VARIABLE)

    def rows_in(self, target: Keys) -> list[Any]:
        with target.server.client() as client:
            client.connection_pool.connection_kwargs["encoding_errors"] = "surrogateescape"
            return list(self.read(client, target.name))

    def read(self, client: Any, name: str) -> Iterator[Any]:
        for key in client.scan_iter(f"{name}:*", count=1000):
            row = client.hgetall(key)
            yield {**row, "id": int(row["id"])}

    def secrets(self) -> list[str]:
        return [PASSWORD]


class TestHashes(RedisContract):
    every = 5
    key = ("id",)


class Streams(RedisContract):
    kind = "stream"
    every = 20
    each_line = False

    def read(self, client: Any, name: str) -> Iterator[Any]:
        for _, row in client.xrange(name):
            yield {**row, "id": int(row.get("id", 0))}


class Sets(RedisContract):
    kind = "set"
    every = 20
    each_line = False

    def read(self, client: Any, name: str) -> Iterator[Any]:
        return map(json.loads, client.smembers(name))


@pytest.mark.parametrize("kind", [Streams, Sets])
def test_rows_of_another_kind_keep_the_whole_contract(
    kind: type[RedisContract], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the form of a row and the command that writes it differ from hashes."""
    monkeypatch.setenv(VARIABLE, PASSWORD)
    contract = kind()
    with contract.closing():
        assert faults(contract, Keys(redis_server, ""), *checks_of(SinkContract)) == {}

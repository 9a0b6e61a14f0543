"""Redis: `RedisSink` compared with redis-py, one hash per row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.backends.backend import ISO, Backend, Tables, Way, rows_of, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.servers.server import program
from wal_sink_backends.redis import RedisSink

PIPELINE = "redis-py's pipeline with MULTI"
NO_REWRITING = ("--auto-aof-rewrite-percentage", "0")


class Redis(Backend[str]):
    """One empty server per measurement, which syncs before it acknowledges. Targets are prefixes of keys."""

    key = "redis"
    title = "Chunks to Redis, a hash a row"
    share = 1 / 6

    def require(self) -> None:
        program("redis-server", "redis-server")

    def ways(self) -> Mapping[str, Way[str]]:
        return {NAME: self._by_sink, PIPELINE: self._by_pipeline}

    @cached_property
    def _server(self) -> RedisServer:
        return self._stack.enter_context(RedisServer(self._folder / self.key, *NO_REWRITING))

    def empty(self, folder: Path) -> str:  # noqa: ARG002 - it is in the server's
        self._flush()
        return "orders"

    def count(self, target: str) -> int:
        with self._client() as client:
            return len(set(client.scan_iter(f"{target}:*", count=10_000)))

    def remove(self, target: str) -> None:  # noqa: ARG002 - there is no other
        self._flush()

    def _by_sink(self, prefix: str, tables: Tables) -> float:
        host = self._server.url.removeprefix("redis://")
        return written(RedisSink(f"redis://:{PASSWORD}@{host}", kind="hash", key=f"{prefix}:{{id}}"), tables)

    def _by_pipeline(self, prefix: str, tables: Tables) -> float:
        with self._client() as client:
            watch = Stopwatch()
            for table in tables:
                pipeline, names = client.pipeline(transaction=True), table.column_names
                for row in rows_of(table, ISO):
                    pipeline.hset(f"{prefix}:{row[0]}", mapping=dict(zip(names, row, strict=True)))
                pipeline.execute()
            return watch.seconds()

    def _client(self) -> Any:
        return self._server.client(decode_responses=False)

    def _flush(self) -> None:
        with self._client() as client:
            client.flushall()

"""A web API: `HttpSink` compared with httpx, same JSON, same server, which keeps rows in SQLite."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa

from benchmarks.backends.backend import ISO, Backend, Tables, Way, rows_of, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from tests.support.processes import CHECKOUT, Child
from tests.support.servers.ports import free_port
from wal_sink_backends.http import HttpSink

POSTS = "httpx, a POST a chunk"
PROGRAM = CHECKOUT / "tests" / "support" / "servers" / "http_target.py"


class Http(Backend[str]):
    """One path per measurement, on the tests' server in another process."""

    key = "http"
    title = "Chunks to a web API as JSON"
    share = 1 / 3

    def ways(self) -> Mapping[str, Way[str]]:
        return {NAME: self._by_sink, POSTS: self._by_posts}

    @cached_property
    def _address(self) -> str:
        port = str(free_port())
        server = Child.python(PROGRAM, self._rows, port, log=self._folder / "http.log", limit_s=30)
        self._stack.callback(server.kill)
        server.wait_for_output("serving")
        return f"http://127.0.0.1:{port}"

    @property
    def _rows(self) -> Path:
        return self._folder / "http.db"

    def empty(self, folder: Path) -> str:  # noqa: ARG002 - it is in the server's
        return uuid.uuid4().hex

    def count(self, target: str) -> int:
        with closing(sqlite3.connect(self._rows)) as database:
            (count,) = database.execute("SELECT count(*) FROM rows WHERE name = ?", (target,)).fetchone()
        return int(count)

    def _by_sink(self, name: str, tables: Tables) -> float:
        return written(HttpSink(f"{self._address}/keys/{name}", idempotent=True), tables)

    def _by_posts(self, name: str, tables: Tables) -> float:
        url = f"{self._address}/keys/{name}"
        with httpx.Client(headers={"Content-Type": "application/json"}) as client:
            watch = Stopwatch()
            for table in tables:
                headers = {"Idempotency-Key": uuid.uuid4().hex}
                client.post(url, content=body_of(table), headers=headers).raise_for_status()
            return watch.seconds()


def body_of(table: pa.Table) -> bytes:
    """The JSON that `Chunk.to_json` writes."""
    names = table.column_names
    return msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows_of(table, ISO)])

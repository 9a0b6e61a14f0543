"""Helpers for tests of `HttpSink` on a local API that refuses rows, fails, cuts connections, and is killed.

`tests/contract/test_http_backend.py` tests the contract of these kinds of sinks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tests.house.kit import chunks_of
from tests.house.sinks import Chunk, Rejected, SinkContext
from tests.support.servers.http_target import HttpTarget
from wal_sink_backends.http.sink import HttpSink

CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
SECRET = "hunter2-of-the-api"  # noqa: S105 - a test's own
IDS = [1, 2, 3, 4, 5]


@contextlib.contextmanager
def opened(sink: HttpSink) -> Iterator[HttpSink]:
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def chunk(*ids: int, batch_id: int = 0) -> Chunk:
    (made,) = chunks_of(pa.table({"id": list(ids or IDS)}), batch_id=batch_id, chunk_rows=10**6)
    return made


def write(sink: HttpSink, *chunks: Chunk) -> Rejected | None:
    with opened(sink):
        return [sink.write(some) for some in chunks or [chunk()]][-1]


def refuse_3(row: dict[str, Any]) -> str:
    return f"id {row['id']} is refused" if row["id"] == 3 else ""


class Collection:
    """One collection of the API."""

    def __init__(self, server: HttpTarget, kind: str, name: str) -> None:
        self.server, self.name = server, name
        self.url = f"{server.url}/{kind}/{name}"

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.store.rows(self.name)]

    @property
    def keys_sent(self) -> list[str | None]:
        return [seen.key for seen in self.server.requests]

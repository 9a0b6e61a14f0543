"""Processes that write by `SqlSink`, for tests that kill, stop and wake them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.house.sinks import Chunk, Position, SinkContext
from tests.support.forked import ForkedChild
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import FencedError
from wal_sink_backends.sql.sink import SqlSink

FENCED = 3
"""The exit code of a writer that a newer one shut out."""
BATCH_ROWS = 600
_CHUNK_ROWS = 200
_PATIENCE_S = 120.0
_LIMIT_S = 180.0


def writer(
    url: str, log: Path, *, ordinal: int = 0, batches: int = 10**6, term: int = 1, busy_timeout_s: float = 1
) -> ForkedChild:
    """Start a process that writes batches to a slot. It ends with 0, or with `FENCED`."""
    return ForkedChild(_live, url, busy_timeout_s, ordinal, batches, term, log=log, limit_s=_LIMIT_S)


def _live(url: str, busy_timeout_s: float, ordinal: int, batches: int, term: int) -> None:
    try:
        _write(
            SqlSink(url, "flights", busy_timeout_s=busy_timeout_s, connect_timeout_s=PATIENCE_S), ordinal, batches, term
        )
    except FencedError as error:
        print("fenced", error)  # noqa: T201 - read by the test
        sys.exit(FENCED)


def _write(sink: SqlSink, ordinal: int, batches: int, term: int) -> None:
    slot = f"wal/default/{ordinal}"
    context = SinkContext(wal_id="wal", sink="default", term=term, batch_id=0, columns=("id",), on_executor=True)
    _patiently(lambda: sink.open(context))
    found = last = _patiently(lambda: sink.last(slot))
    for batch in range(last.batch_id if last else 0, batches):
        before = last
        for first in range(0, BATCH_ROWS, _CHUNK_ROWS):
            one = dataclasses.replace(_chunk(slot, ordinal, batch, first, term), follows=before)
            _patiently(partial(sink.write, one))
            is_known = found is not None and (batch, first) < (found.batch_id, found.rows)
            print("known" if is_known else "wrote", batch, first)  # noqa: T201
            last = one.position
    sink.close()


def _chunk(slot: str, ordinal: int, batch: int, first: int, term: int) -> Chunk:
    segment, end = f"{ordinal}-{batch}", first + _CHUNK_ROWS
    ids = [ordinal * 10**9 + batch * 1000 + row for row in range(first, end)]
    return dataclasses.replace(
        Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * _CHUNK_ROWS}), key=f"{segment}-{first}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(slot, batch, end, segment),
        term=term,
        start=first,
    )


def _patiently(call: Callable[[], Any]) -> Any:
    """Retry temporary failures, as the core does."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            return call()
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - the driver may raise anything
            print("again", type(error).__name__, error)  # noqa: T201
            time.sleep(0.1)
    raise TimeoutError("gave up")

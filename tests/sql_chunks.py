"""Chunks by hand, and a program that writes them in a process of its own, for tests of `SqlSink` on servers."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from wal_sink.chunk import Chunk, Position
from wal_sink.sink import SinkContext
from wal_sink_backends.sql import SqlSink

SLOT = "wal/default/0"
CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
BATCH_ROWS = 600

WRITER = textwrap.dedent(
    """
    import dataclasses, sys, time
    import pyarrow as pa
    from wal_sink.chunk import Chunk, Position
    from wal_sink.errors import FencedError
    from wal_sink.sink import SinkContext
    from wal_sink_backends.sql import SqlSink

    url, ordinal, batches, term, limits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    slot = f"wal/default/{ordinal}"
    sink = SqlSink(url, "flights", busy_timeout_s=float(limits), statement_timeout_s=20)
    sink.open(SinkContext(wal_id="wal", sink="default", term=term, batch_id=0, columns=("id",), on_executor=True))
    pa.table({"id": [1]})  # imports pandas, which takes a while

    def call(function, *args):
        for attempt in range(60):
            try:
                return function(*args)
            except FencedError as error:
                print("fenced", error, flush=True)
                raise SystemExit(3)
            except Exception as error:
                print("again", type(error).__name__, error, flush=True)
                time.sleep(0.1)
        raise SystemExit(4)

    last = call(sink.last, slot)
    print("ready", flush=True)
    for batch in range(last.batch_id if last else 0, batches):
        segment = f"{ordinal}-{batch}"
        for first in range(0, 600, 200):
            ids = [ordinal * 10**9 + batch * 1000 + row for row in range(first, first + 200)]
            chunk = Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * 200}), key=f"{segment}-{first}")
            position = Position(slot, batch, first + 200, segment)
            rows = range(first, first + 200)
            whole = dataclasses.replace(
                chunk, batch_id=batch, segment_id=segment, rows=rows, position=position, term=term
            )
            call(sink.write, whole)
            print("wrote", batch, first, flush=True)
    sink.close()
    """
)
"""Arguments: URL, ordinal of the slot, batches of 600 rows, term, seconds to wait for a lock."""


def chunk(
    table: pa.Table, *, batch: int = 0, first: int = 0, segment: str = "a", term: int = 1, slot: str = SLOT
) -> Chunk:
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(slot, batch, end, segment),
        term=term,
    )


def ids(*values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@contextmanager
def opened(sink: SqlSink) -> Iterator[SqlSink]:
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()

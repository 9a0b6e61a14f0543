"""Chunks made by hand, for tests that call a sink's methods themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from tests.house.sinks import Chunk, Position, SinkContext

SLOT = "wal/default/0"
CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)


def chunk(
    table: pa.Table,
    *,
    batch: int = 0,
    first: int = 0,
    segment: str = "a",
    term: int = 1,
    slot: str = SLOT,
    after: Position | None = None,
) -> Chunk:
    """Return rows from `first` on, staged as one chunk. `after` is the position in the slot when the segment began."""
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(slot, batch, end, segment),
        term=term,
        start=first,
        follows=after,
    )


def ids(*values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def raw_texts(*values: bytes | None) -> Any:
    """Return a column of texts of arbitrary bytes, as Spark may have them."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)

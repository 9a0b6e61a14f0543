"""Targets that both sides write to: wal-sink through a `Sink`, a plain `foreachBatch` by calling the same function.

Spark's workers import this module too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from wal_sink import Chunk, Sink, SinkContext
from wal_sink.sinks import Position
from wal_sink_backends import SqlSink

TAKEN = "rows long"
"""The schema that a consuming `mapInArrow` returns: the number of rows of each batch."""
Consume = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class NullSink(Sink):
    """Checks that there are rows, and keeps nothing."""

    def write(self, chunk: Chunk) -> None:
        self.take(chunk.table, chunk.key)

    def take(self, table: pa.Table, name: str) -> None:
        if table.num_rows == 0 or not name:
            raise ValueError("expected rows and their name")


@dataclass(frozen=True)
class IdempotentNullSink(NullSink):
    """The same for a target that ignores repeats."""

    idempotent = True


@dataclass(frozen=True)
class CsvSink(NullSink):
    """Writes a CSV file for each call, with Arrow. The key is its name, so a repeat writes the same file again."""

    folder: Path
    idempotent = True

    def take(self, table: pa.Table, name: str) -> None:
        csv.write_csv(table, self.folder / f"{name}.csv")


@dataclass(frozen=True)
class StampSink(Sink):
    """Records the time of each batch's chunk, in the file `<batch>`."""

    folder: Path

    def write(self, chunk: Chunk) -> None:
        (self.folder / str(chunk.batch_id)).write_text(str(time.time_ns()))


def skip(_: object) -> None:
    """A row writer that does nothing."""


@dataclass(frozen=True)
class Direct:
    """The function for `mapInArrow` in a plain `foreachBatch`: it passes each record batch directly to the sink."""

    sink: NullSink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.sink.take(pa.Table.from_batches([batch]), uuid.uuid4().hex)
            yield taken(batch)


@dataclass(frozen=True)
class DirectSql:
    """The same for an SQL sink: one transaction per record batch, each with a separate position."""

    url: str
    table: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink = SqlSink(self.url, self.table)
        sink.open(_context())
        try:
            for batch in batches:
                sink.write(_chunk(batch))
                yield taken(batch)
        finally:
            sink.close()


def taken(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array([batch.num_rows], pa.int64())], ["rows"])


def _chunk(batch: pa.RecordBatch) -> Chunk:
    name: Any = uuid.uuid4().hex
    return Chunk(
        table=pa.Table.from_batches([batch]),
        batch_id=0,
        key=name,
        segment_id=name,
        rows=range(batch.num_rows),
        position=Position(slot=name, batch_id=0, rows=batch.num_rows, segment_id=name),
        term=1,
        start=0,
    )


def _context() -> SinkContext:
    return SinkContext(wal_id="none", sink="direct", term=1, batch_id=0, columns=(), on_executor=True)

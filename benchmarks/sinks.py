"""Targets that both sides write to: wal-sink by way of a `Sink`, a plain `foreachBatch` by calling the same function.

Imported by Spark's workers, too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from wal_sink import Chunk, Position, Sink, SinkContext
from wal_sink_backends import SqlSink

TAKEN = "rows long"
"""What a consuming `mapInArrow` gives back: the number of rows of each batch."""
Consume = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class NullSink(Sink):
    """Looks at the rows, keeps nothing."""

    def write(self, chunk: Chunk) -> None:
        self.take(chunk.table, chunk.key)

    def take(self, table: pa.Table, name: str) -> None:
        if table.num_rows == 0 or not name:
            raise ValueError("expected rows and their name")


@dataclass(frozen=True)
class CsvSink(NullSink):
    """A CSV file for each call, written by Arrow."""

    folder: Path

    def take(self, table: pa.Table, name: str) -> None:
        pa.csv.write_csv(table, self.folder / f"{name}.csv")


@dataclass(frozen=True)
class StampSink(Sink):
    """Keeps when the first chunk of each batch came, as the time of the file `<batch>`."""

    folder: Path

    def write(self, chunk: Chunk) -> None:
        (self.folder / str(chunk.batch_id)).write_text(str(time.time_ns()))


@dataclass(frozen=True)
class Direct:
    """What a `mapInArrow` of a plain `foreachBatch` does: each record batch straight to the sink."""

    sink: NullSink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.sink.take(pa.Table.from_batches([batch]), uuid.uuid4().hex)
            yield taken(batch)


@dataclass(frozen=True)
class DirectSql:
    """The same for an SQL sink: one transaction a record batch, each under a position of its own."""

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

"""A backend's sink compared with direct use of its target's client: same rows, same transactions, no Spark."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.clock import Stopwatch
from benchmarks.measure import Contestant
from benchmarks.workloads import table_of
from wal_sink import Chunk, Sink, SinkContext, TransactionalSink
from wal_sink.sinks import Position

CHUNK_ROWS = 10_000
WAL_ID = "benchmark"
ISO = "%Y-%m-%dT%H:%M:%SZ"

T = TypeVar("T")
Tables: TypeAlias = Sequence[pa.Table]
Way: TypeAlias = Callable[[T, Tables], float]
"""Writes chunks to an empty target, one transaction each; returns the seconds without those for connecting."""


class Backend(ABC, Generic[T]):
    """A target: its server, which is started when it is first measured, and the ways to write to it.

    `folder` is for the server's files. `stack` gets the callbacks that end servers.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    chunk_rows: ClassVar[int] = CHUNK_ROWS
    share: ClassVar[float] = 1.0
    """The share of a run's rows that takes about a second."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def require(self) -> None:
        """Require the installed components, as a test does (`tests.support.components`)."""

    @abstractmethod
    def empty(self, folder: Path) -> T:
        """A new target without rows; `folder` is an empty one on the checkout's disk."""

    @abstractmethod
    def ways(self) -> Mapping[str, Way[T]]:
        """The ways by name; the first is our own."""

    @abstractmethod
    def count(self, target: T) -> int:
        """The number of rows that every reader sees."""

    def remove(self, target: T) -> None:
        """Remove the target, so that the next one finds the same server."""

    def missing(self) -> str:
        """The reason why it cannot be measured here; empty if it can."""
        try:
            self.require()
        except (pytest.skip.Exception, pytest.fail.Exception) as told:
            return str(told)
        return ""

    def contestants(self, rows: int) -> Iterator[Contestant]:
        """One contestant for each way. Each writes this backend's share of `rows`."""
        count = max(1, int(rows * self.share) // self.chunk_rows)
        for name, way in self.ways().items():
            yield Contestant(name, partial(self._measure, way, count))

    def rate(self, rows: int, write: Callable[[T], float], folder: Path) -> float:
        """Rows per second of `write`, which writes `rows` rows into an empty target. Counts the rows afterwards."""
        target = self.empty(folder)
        try:
            seconds = write(target)
            expect(self.count(target), rows)
        finally:
            self.remove(target)
        return rows / seconds

    def _measure(self, way: Way[T], chunks: int, folder: Path) -> float:
        tables = [_table(number * self.chunk_rows, self.chunk_rows) for number in range(chunks)]
        return self.rate(chunks * self.chunk_rows, lambda target: way(target, tables), folder)


_table = cache(table_of)


def written(sink: Sink, tables: Tables) -> float:
    """The seconds that a sink takes for a segment of these chunks, without opening."""
    chunks = chunks_in(tables)
    columns = tuple(tables[0].column_names)
    sink.open(SinkContext(wal_id=WAL_ID, sink="default", term=1, batch_id=0, columns=columns, on_executor=True))
    try:
        if isinstance(sink, TransactionalSink):
            sink.last(chunks[0].position.slot)
        watch = Stopwatch()
        for chunk in chunks:
            if sink.write(chunk) is not None:
                raise RuntimeError(f"{sink.describe()} refused rows")
        return watch.seconds()
    finally:
        sink.close()


def chunks_in(tables: Tables) -> list[Chunk]:
    """The chunks of one segment."""
    slot, segment, chunks, rows = f"{WAL_ID}/default/0", uuid.uuid4().hex, [], 0
    for table in tables:
        first, rows = rows, rows + table.num_rows
        position = Position(slot, 0, rows, segment)
        chunks.append(Chunk(table, 0, f"{segment}-{first}-{rows}", segment, range(first, rows), position, 1, first))
    return chunks


def rows_of(table: pa.Table, moments: str = "") -> Iterator[tuple[Any, ...]]:
    """Rows in the fastest way out of Arrow: times as text, which is many times as fast as `datetime`.

    `moments`: the `strftime` format of times; without it Arrow casts them, to UTC without a time zone.
    """
    return zip(*(_text(column, moments).to_pylist() for column in table.columns), strict=True)


def _text(column: Any, moments: str) -> Any:
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.strftime(column, moments) if moments else column.cast(pa.timestamp("us")).cast(pa.string())


def expect(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"found {found}, expected {expected}")

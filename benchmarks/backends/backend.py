"""A backend's sink against the client of its target used directly: the same rows in the same transactions, no Spark."""

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
from wal_sink import Chunk, Position, Sink, SinkContext, TransactionalSink

CHUNK_ROWS = 10_000
WAL_ID = "benchmark"
ISO = "%Y-%m-%dT%H:%M:%SZ"

T = TypeVar("T")
Tables: TypeAlias = Sequence[pa.Table]
Way: TypeAlias = Callable[[T, Tables], float]
"""Writes chunks to an empty target, each in a transaction; how many seconds that took, connecting left out."""


class Backend(ABC, Generic[T]):
    """A target: its server, which is started when it is first measured, and the ways to write to it.

    `folder` is for the server's files; what has to be ended goes to `stack`.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    chunk_rows: ClassVar[int] = CHUNK_ROWS
    share: ClassVar[float] = 1.0
    """Of a run's rows: as many as take about a second."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def require(self) -> None:
        """Ask for what has to be installed, as a test does (`tests.support.components`)."""

    @abstractmethod
    def empty(self, folder: Path) -> T:
        """A new target without rows; `folder` is an empty one on the checkout's disk."""

    @abstractmethod
    def ways(self) -> Mapping[str, Way[T]]:
        """By name; our own is the first."""

    @abstractmethod
    def count(self, target: T) -> int:
        """The rows that are there, as everybody sees them."""

    def remove(self, target: T) -> None:
        """Take it away, so that the next one finds the server as this one did."""

    def missing(self) -> str:
        """Why it cannot be measured here; empty if it can."""
        try:
            self.require()
        except (pytest.skip.Exception, pytest.fail.Exception) as told:
            return str(told)
        return ""

    def contestants(self, rows: int) -> Iterator[Contestant]:
        """One for each way. Of so many rows, this backend's share is written."""
        count = max(1, int(rows * self.share) // self.chunk_rows)
        for name, way in self.ways().items():
            yield Contestant(name, partial(self._measure, way, count))

    def rate(self, rows: int, write: Callable[[T], float], folder: Path) -> float:
        """Rows per second of what writes so many of them into an empty target, where they are counted afterwards."""
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
    """Seconds that an opened sink takes for a segment of these chunks."""
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
    """Rows as one who cares takes them out of Arrow: moments as text, which is many times as fast as `datetime`.

    `moments`: their `strftime` format; without one as Arrow casts them, in UTC without saying so.
    """
    return zip(*(_text(column, moments).to_pylist() for column in table.columns), strict=True)


def _text(column: Any, moments: str) -> Any:
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.strftime(column, moments) if moments else column.cast(pa.timestamp("us")).cast(pa.string())


def expect(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"found {found}, expected {expected}")

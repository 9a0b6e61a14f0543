"""A segment format that costs nothing: the bytes name the rows of one great table that the segment holds.

Every staged attempt of a history has its own `ROWS` consecutive row numbers. So a row in a target tells from which
attempt it comes, and rows of two attempts of a batch show at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec
import pyarrow as pa

from tests.house.log import Log, Rows, SegmentRef, chunk_ends, paths, read_parquet
from tests.house.protocol import Staged, StagedPartition, StagingContext
from wal_sink.errors import CorruptError
from wal_sink.protocol.partitions import joined
from wal_sink.protocol.two_phase import Preparer

ROWS = 64
"""The most rows of a batch."""
ATTEMPTS = 256
"""The most attempts of a history."""
COLUMN = "row"

_ALL = pa.table({COLUMN: pa.array(range(ROWS * ATTEMPTS), pa.int64())})


def numbered_tables(first: int, partitions: Sequence[int]) -> list[pa.Table]:
    """The rows from number `first` on, one table for every partition."""
    rows = _NumberedRows(first)
    return [rows.take(count) for count in partitions]


class _NumberedRows:
    """Rows of the great table, from a first one on."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int) -> pa.Table:
        table = _ALL.slice(self._next, count)
        self._next += count
        return table


def read_numbered(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
    """Read a segment of this format, or the Parquet file of a roll of batches. It is a `SegmentReader`."""
    if data.startswith(b"PAR1"):
        return read_parquet(data, ref, columns=columns, start=start, where=where)
    first, rows = (int(part) for part in data.split())
    if (rows, 1) != (ref.rows, columns):
        raise CorruptError(f"{where}: expected {ref.rows} rows of {columns} columns, found {rows} of 1")
    return _NumberedRows(first + start)


def stage_numbered(
    log: Log, context: StagingContext, first: int, partitions: Sequence[int], *, uneven: bool, inline: bool
) -> Staged:
    """Stage rows from number `first` on, as Spark's tasks would: one segment for every partition that has rows.

    With `inline` the driver packs the rows of all partitions into one segment, for which nothing is prepared.
    """
    if inline and context.keep_segments and any(partitions):
        packed = _partition(log, replace(context, preparations=()), 0, first, sum(partitions), uneven=uneven)
        unprepared = {given.sink: (None,) for given in context.preparations}
        return Staged(packed.segments, columns=(COLUMN,), prepared=unprepared)
    staged = []
    for number, rows in enumerate(partitions):
        if rows:
            staged.append(_partition(log, context, number, first, rows, uneven=uneven))
            first += rows
    whole = joined(staged)
    return Staged(segments=whole.segments, columns=(COLUMN,), prepared=whole.prepared)


def _partition(
    log: Log, context: StagingContext, partition: int, first: int, rows: int, *, uneven: bool
) -> StagedPartition:
    """Stage one partition as `stage_partition` does, with a file that costs nothing."""
    segment_id = log.runtime.new_id()
    ref = SegmentRef(
        path=paths.segment(context.folder, partition, 0, segment_id),
        id=segment_id,
        rows=rows,
        bytes=0,
        crc32=0,
        chunk_ends=(1, rows) if uneven and rows > 1 else None,
    )
    preparers = [
        Preparer(
            given, context.context(given.sink, on_executor=False), log, partition, rows_are_kept=context.keep_segments
        )
        for given in context.preparations
    ]
    ends = chunk_ends(ref, context.limits.chunk_rows) if preparers else ()
    try:
        for preparer in preparers:
            preparer.begin(segment_id, 0)
            start = 0
            for end in ends:
                preparer.take(start, end, _ALL.slice(first + start, end - start))
                start = end
            preparer.end()
        ref = _written(log, ref, first)
    finally:
        for preparer in preparers:
            preparer.close()
    return StagedPartition((ref,), {preparer.sink: tuple(preparer.handles) for preparer in preparers})


def _written(log: Log, ref: SegmentRef, first: int) -> SegmentRef:
    data = b"%d %d" % (first, ref.rows)
    stream = log.store.segment(ref.path)
    stream.write(data)
    stream.commit()
    return msgspec.structs.replace(ref, bytes=len(data), crc32=zlib.crc32(data))


def numbers_in(table: pa.Table) -> list[int]:
    """The row numbers that reached a target."""
    return cast("list[int]", table.column(0).to_pylist())

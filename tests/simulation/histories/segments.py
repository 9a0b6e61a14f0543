"""A segment format that costs nothing: the bytes say which rows of one great table the segment holds.

Every staged attempt of a history has a run of `ROWS` row numbers of its own, so that a row that reaches a target says
which attempt it comes from, which no other may be mixed with.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import cast

import pyarrow as pa

from wal_sink import paths
from wal_sink.errors import CorruptError
from wal_sink.log import Log
from wal_sink.records import SegmentRef
from wal_sink.stager import Attempt as Folder
from wal_sink.stager import Staged

ROWS = 64
"""Most rows of a batch."""
ATTEMPTS = 256
"""Most attempts of a history."""
COLUMN = "row"

_ALL = pa.table({COLUMN: pa.array(range(ROWS * ATTEMPTS), pa.int64())})


class _NumberedRows:
    """Rows of the great table from one on."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int) -> pa.Table:
        table = _ALL.slice(self._next, count)
        self._next += count
        return table


def read_numbered(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> _NumberedRows:
    """A `SegmentReader`."""
    first, rows = (int(part) for part in data.split())
    if (rows, 1) != (ref.rows, columns):
        raise CorruptError(f"{where}: expected {ref.rows} rows of {columns} columns, found {rows} of 1")
    return _NumberedRows(first + start)


def stage_numbered(log: Log, folder: Folder, first: int, partitions: Sequence[int], *, uneven: bool) -> Staged:
    """Stage rows from number `first` on, as Spark's tasks would: a segment for every partition that has rows."""
    segments = []
    for number, rows in enumerate(partitions):
        if rows:
            segments.append(_segment(log, folder, number, first, rows, uneven=uneven))
            first += rows
    return Staged(segments=segments, columns=(COLUMN,))


def _segment(log: Log, folder: Folder, partition: int, first: int, rows: int, *, uneven: bool) -> SegmentRef:
    segment_id = log.runtime.new_id()
    path = paths.segment(folder.folder, partition, 0, segment_id)
    data = b"%d %d" % (first, rows)
    stream = log.store.segment(path)
    stream.write(data)
    stream.commit()
    ends = (1, rows) if uneven and rows > 1 else None
    return SegmentRef(path=path, id=segment_id, rows=rows, bytes=len(data), crc32=zlib.crc32(data), chunk_ends=ends)


def numbers_in(table: pa.Table) -> list[int]:
    """The row numbers that reached a target."""
    return cast("list[int]", table.column(0).to_pylist())

"""Inline rows: the rows of a small partition, which travel to the driver in the result of their staging task.

A segment for each of 200 partitions of ten rows would cost 200 writes, and as many reads for each sink. So the driver
packs such rows into common segments, in the order of the partitions.

The task of partition p may return `inline_limit(budget, p)` bytes. For n partitions that is at most about
budget * (1 + ln(n * MOST_INLINE_BYTES / budget)) in all: the first budget / MOST_INLINE_BYTES tasks return the budget,
and the tasks after them budget / (p + 1) each, a harmonic series. For 40,000 partitions and a budget of 16 MiB that is
119 MiB. The number of partitions need not be known.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from wal_sink.stores.base import SegmentStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wal_sink.wal.records import SegmentRef
    from wal_sink.wal.segment_writer import SegmentWriter

MOST_INLINE_BYTES = 256 << 10
"""Maximum number of bytes that a task returns inline. A larger partition shares its segments with no other."""
PACKED_BYTES = 1 << 20
"""Minimum size of each of several packed segments that are to be delivered side by side."""
_SAMPLE_BYTES = 1 << 20
"""Inline bytes that are encoded to tell what all of them take in a segment."""


class InlineRows(NamedTuple):
    """The rows of one partition, in Arrow's stream format."""

    partition: int
    data: bytes


def inline_limit(budget: int, partition: int) -> int:
    """Return the number of bytes that the task of a partition may return inline. 0: none."""
    return min(MOST_INLINE_BYTES, budget // (partition + 1))


def take_inline(batches: Iterable[pa.RecordBatch], limit: int) -> tuple[bytes | None, Iterable[pa.RecordBatch]]:
    """Take all rows of a partition in Arrow's stream format, if that has at most `limit` bytes; empty without rows.

    Otherwise return None, and all batches from the first on. Holds at most `limit` bytes and one batch more.
    """
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rest:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size > limit:
            return None, itertools.chain(held, rest)
    data = _encoded(held)
    return (data, ()) if len(data) <= limit else (None, held)


class Nowhere:
    """A place of segments that keeps nothing."""

    def segment(self, _: str) -> SegmentStream:
        """A stream whose bytes are dropped."""
        return _Dropped()


class _Dropped(SegmentStream):
    def write(self, data: bytes | memoryview) -> None:
        pass

    def commit(self) -> None:
        pass

    def abort(self) -> None:
        pass


def estimated_bytes(rows: Sequence[InlineRows], new_writer: Callable[[int], SegmentWriter]) -> float:
    """About the bytes of these rows in one segment. Tiny partitions take few, since each repeats its schema inline.

    Some partitions, at equal distances, are encoded, by writers that keep nothing. The others are taken to be like
    them. The bytes of the first one alone tell how many a segment takes that holds next to nothing. An error costs
    requests or time, and nothing else.
    """
    size = _size(rows)
    sample = rows[:: max(1, size // _SAMPLE_BYTES)]
    first, of_first, of_sample = _size(rows[:1]), _written(rows[:1], new_writer), _written(sample, new_writer)
    for_each = (of_sample - of_first) / (_size(sample) - first) if len(sample) > 1 else of_first / first
    return of_first + for_each * (size - first)


def _size(rows: Sequence[InlineRows]) -> int:
    return sum(len(each.data) for each in rows)


def _written(rows: Sequence[InlineRows], new_writer: Callable[[int], SegmentWriter]) -> int:
    return sum(ref.bytes for ref in pack(rows, new_writer, side_by_side=1))


def pack(
    rows: Sequence[InlineRows],
    new_writer: Callable[[int], SegmentWriter],
    *,
    side_by_side: int,
    part_bytes: int = PACKED_BYTES,
) -> list[SegmentRef]:
    """Write the rows of consecutive partitions into segments, in their order. Runs in the driver.

    `new_writer` gets the first partition of each part, by which the part's segments are named. There are up to
    `side_by_side` parts of about `part_bytes` inline bytes at least. Raises what the writer raises.
    """
    refs: list[SegmentRef] = []
    for part in _parts(rows, side_by_side, part_bytes):
        with new_writer(part[0].partition) as writer:
            for each in part:
                for batch in pa.ipc.open_stream(each.data):
                    writer.write(batch)
            refs += writer.finish()
    return refs


def _encoded(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _parts(rows: Sequence[InlineRows], side_by_side: int, part_bytes: int) -> Iterator[list[InlineRows]]:
    """Divide at least one partition into consecutive parts of about equal bytes.

    A segment has one schema, so a part has one, too.
    """
    total = _size(rows)
    most = -(-total // max(1, min(side_by_side, total // part_bytes)))
    part: list[InlineRows] = []
    size, schema = 0, pa.schema([])
    for each in rows:
        own = pa.ipc.open_stream(each.data).schema
        if part and (size >= most or not own.equals(schema, check_metadata=True)):
            yield part
            part, size = [], 0
        part.append(each)
        size, schema = size + len(each.data), own
    yield part

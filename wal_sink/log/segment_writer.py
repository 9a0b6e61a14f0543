"""Writing segments: takes record batches, produces Parquet files of whole chunks.

Three sizes apply, each for its own reason. A *row group* bounds the memory of writer and reader. A *chunk* goes to a
sink in one call; its boundaries are fixed here, when the rows are staged. A *segment* is one object on the store; it
ends only at the end of a chunk. Row groups and chunks are independent of each other.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from wal_sink.log import paths
from wal_sink.log.records import SegmentRef, even_ends
from wal_sink.stores.base import SegmentStream
from wal_sink.stores.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS, parquet_writer
from wal_sink.support.arrow_types import viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of chunks and segments. All are at least 1."""

    chunk_rows: int
    """Maximum number of rows of a chunk."""
    chunk_bytes: int
    """Maximum Arrow bytes of a chunk. A single larger row is a chunk alone."""
    segment_bytes: int
    """Parquet bytes from which a segment ends at the next end of a chunk."""


def segment_names(columns: Sequence[str]) -> list[str]:
    """The names of a batch's columns inside its segments, so that other readers of Parquet find them: the real ones;
    `c0`, `c1`, … where one of them is empty, has a dot, or stands twice but for upper and lower case.
    """
    is_plain = len({name.lower() for name in columns}) == len(columns) and all(columns) and "." not in "".join(columns)
    return list(columns) if is_plain else [f"c{place}" for place in range(len(columns))]


class SegmentPlace(Protocol):
    """Where segments are written: a store."""

    def segment(self, path: str, /) -> SegmentStream:
        """A stream to a new object at `path`, which appears with `commit`."""
        ...


class Follower(Protocol):
    """Receiver of every segment while it is written, chunk by chunk, before its file exists."""

    def begin(self, segment_id: str, file_index: int) -> None:
        """The next segment begins: the n-th of its partition, counted from 0."""
        ...

    def take(self, first: int, end: int, table: pa.Table) -> None:
        """The next chunk: rows `first` to `end` (exclusive) of the segment, under `segment_names`."""
        ...

    def end(self) -> None:
        """The segment has all its rows."""
        ...

    def abort(self) -> None:
        """The segment begun last is dropped."""
        ...


class SegmentWriter:
    """Streams record batches into as many segments as they need. Runs in a staging task, on one thread.

    After the `with` block ends without `finish`, nothing of the open segment is visible. Segments that were full before
    stay as orphans that no manifest names.

    `followers` get the rows too. Without `keep`, only they get the rows, and no file is written.
    """

    def __init__(
        self,
        store: SegmentPlace,
        *,
        folder: str,
        partition: int,
        limits: SegmentLimits,
        new_id: Callable[[], str],
        followers: Sequence[Follower] = (),
        keep: bool = True,
    ) -> None:
        self._store = store
        self._folder = folder
        self._partition = partition
        self._limits = limits
        self._new_id = new_id
        self._followers = followers
        self._keep = keep
        self._open: _OpenSegment | None = None
        self._refs: list[SegmentRef] = []
        self._given = pa.schema([])
        self._declared = pa.schema([])

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows under `segment_names`. The first batch with rows sets the schema.

        Fields inside structs are declared nullable. Otherwise Parquet refuses the nulls that Spark puts under a null
        struct into its non-nullable fields. The declaration of a column itself stays.

        Raises `StoreError` if the store does, and pyarrow's own errors for values that Parquet cannot hold.
        """
        batch = self._relaxed(batch)
        row = 0
        while row < batch.num_rows:
            segment = self._open or self._start(batch.schema)
            row += segment.append(batch, row)
            segment.flush_if_due()
            if segment.is_full:
                self._close_segment(segment)

    def finish(self) -> list[SegmentRef]:
        """Make the last segment durable. Returns the references of all segments, in order. Empty if there were no
        rows.
        """
        if self._open is not None:
            self._close_segment(self._open)
        return list(self._refs)

    def abort(self) -> None:
        """Drop the open segment. Harmless after `finish` and when repeated."""
        if self._open is not None:
            segment, self._open = self._open, None
            segment.abort()
            for follower in self._followers:
                follower.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _start(self, schema: pa.Schema) -> _OpenSegment:
        segment_id = self._new_id()
        file_index = len(self._refs)
        path = paths.segment(self._folder, self._partition, file_index, segment_id)
        file = _SegmentFile(self._store.segment(path) if self._keep else None)
        self._open = _OpenSegment(file, schema, self._limits, path, segment_id, followers=self._followers)
        for follower in self._followers:
            follower.begin(segment_id, file_index)
        return self._open

    def _relaxed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._given.equals(batch.schema, check_metadata=True):
            self._given = batch.schema
            self._declared = pa.schema([_relaxed_field(field) for field in batch.schema])
        return batch if self._declared.equals(batch.schema) else viewed(batch, self._declared)

    def _close_segment(self, segment: _OpenSegment) -> None:
        self._refs.append(segment.commit())
        self._open = None


def _relaxed_field(field: Any) -> Any:
    """The field, with every field inside a struct nullable; keys of maps stay as they are."""
    return field.with_type(_relaxed_type(field.type))


def _relaxed_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_relaxed_field(field).with_nullable(nullable=True) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_relaxed_field(kind.key_field), _relaxed_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(_relaxed_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_relaxed_field(kind.value_field))
    return kind


class _SegmentFile:
    """The file object to which pyarrow writes. It passes the bytes to the store's stream, counts them and computes the
    checksum.

    Without a stream the rows are not kept, and nothing writes to it.
    """

    closed = False

    def __init__(self, stream: SegmentStream | None) -> None:
        self._stream = stream
        self._dropped = False
        self.size = 0
        self.crc32 = 0

    @property
    def is_kept(self) -> bool:
        return self._stream is not None

    def write(self, data: bytes) -> int:
        # A ParquetWriter writes its footer even if an aborted one is garbage-collected.
        if self._stream is not None and not self._dropped:
            self._stream.write(data)
            self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """No-op: `commit` makes the object durable."""

    def close(self) -> None:
        """No-op: `commit` makes the object visible."""

    def commit(self) -> None:
        if self._stream is not None:
            self._stream.commit()

    def abort(self) -> None:
        self._dropped = True
        if self._stream is not None:
            self._stream.abort()


class _OpenSegment:
    """One segment under construction: pending rows, the open chunk, the ends of earlier chunks."""

    def __init__(
        self,
        file: _SegmentFile,
        schema: pa.Schema,
        limits: SegmentLimits,
        path: str,
        segment_id: str,
        *,
        followers: Sequence[Follower],
    ) -> None:
        self._file = file
        self._limits = limits
        self._path = path
        self._id = segment_id
        self._schema = schema
        self._parquet: pq.ParquetWriter | None = None
        self._footer = ExitStack()
        self._followers = followers
        self._chunk: list[_Span] = []  # only used with followers
        self._pending: list[_Span] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._flushed_bytes = 0
        self._rows = 0
        self._chunk_rows = 0
        self._chunk_bytes = 0
        self._ends: list[int] = []

    def append(self, batch: pa.RecordBatch, row: int) -> int:
        """Take rows of `batch` from `row` on, at most up to the end of the chunk. Returns their number."""
        count, size = self._fitting(batch, row)
        if count:
            self._add(batch, row, count, size)
            self._chunk_rows += count
            self._chunk_bytes += size
        if not count or self._chunk_rows >= self._limits.chunk_rows or self._chunk_bytes >= self._limits.chunk_bytes:
            self._end_chunk()
        return count

    def flush_if_due(self) -> None:
        """Write the pending rows if a chunk just ended and they may fill the file."""
        if not self._chunk_rows and self._size + self._expected_bytes() >= self._limits.segment_bytes:
            self._flush()

    @property
    def is_full(self) -> bool:
        """Whether the segment ends here: a chunk just ended and the file has reached its size."""
        return not self._chunk_rows and self._size >= self._limits.segment_bytes

    def commit(self) -> SegmentRef:
        if self._chunk_rows:
            self._end_chunk()
        self._flush()
        self._footer.close()
        for follower in self._followers:
            follower.end()
        self._file.commit()
        ends = tuple(self._ends)
        return SegmentRef(
            path=self._path,
            id=self._id,
            rows=self._rows,
            bytes=self._file.size,
            crc32=self._file.crc32,
            chunk_ends=None if ends == even_ends(self._rows, self._limits.chunk_rows) else ends,
            kept=self._file.is_kept,
        )

    def abort(self) -> None:
        self._chunk.clear()
        self._pending.clear()
        self._file.abort()

    def _fitting(self, batch: pa.RecordBatch, row: int) -> tuple[int, int]:
        """Number of rows from `row` on that the open chunk still takes, and their bytes. A first row always fits."""
        count = min(batch.num_rows - row, self._limits.chunk_rows - self._chunk_rows)
        room = self._limits.chunk_bytes - self._chunk_bytes
        if (size := batch.slice(row, count).nbytes) > room:
            fitting = bisect_right(range(1, count), room, key=lambda rows: batch.slice(row, rows).nbytes)
            count = fitting if fitting or self._chunk_rows else 1
            size = batch.slice(row, count).nbytes
        return count, size

    @property
    def _size(self) -> int:
        """Bytes of the file so far; for a segment that is not kept, bytes of its rows in memory."""
        return self._file.size if self._file.is_kept else self._flushed_bytes

    def _add(self, batch: pa.RecordBatch, row: int, count: int, size: int) -> None:
        _extend(self._pending, batch, row, count)
        if self._followers:
            _extend(self._chunk, batch, row, count)
        self._rows += count
        self._pending_rows += count
        self._pending_bytes += size
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _end_chunk(self) -> None:
        if self._followers:
            first = self._ends[-1] if self._ends else 0
            table = pa.Table.from_batches([span.rows() for span in self._chunk], self._schema)
            self._chunk.clear()
            for follower in self._followers:
                follower.take(first, self._rows, table)
        self._ends.append(self._rows)
        self._chunk_rows = self._chunk_bytes = 0

    def _expected_bytes(self) -> float:
        """Bytes that the pending rows will add to the file, if they compress like the earlier rows."""
        ratio = min(1.0, self._size / self._flushed_bytes) if self._flushed_bytes else 1.0
        return self._pending_bytes * ratio

    def _flush(self) -> None:
        """Write the pending rows as one row group."""
        if self._pending and self._file.is_kept:
            self._write_pending()
        self._flushed_bytes += self._pending_bytes
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0

    def _write_pending(self) -> None:
        table = pa.Table.from_batches([span.rows() for span in self._pending])
        if self._parquet is None:
            self._parquet = self._footer.enter_context(parquet_writer(self._file, table, encoded=True))
        self._parquet.write_table(table, row_group_size=table.num_rows)


@dataclass(slots=True)
class _Span:
    """Consecutive rows of a batch, kept as numbers: thousands of small slices cost more than their rows."""

    batch: pa.RecordBatch
    start: int
    end: int

    def rows(self) -> pa.RecordBatch:
        return self.batch.slice(self.start, self.end - self.start)


def _extend(spans: list[_Span], batch: pa.RecordBatch, row: int, count: int) -> None:
    last = spans[-1] if spans else None
    if last is not None and last.batch is batch and last.end == row:
        last.end += count
    else:
        spans.append(_Span(batch, row, row + count))

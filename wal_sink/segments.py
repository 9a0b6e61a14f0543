"""Segments: immutable Parquet files, written as a stream of record batches and read back chunk by chunk.

Three sizes are at work, each with its own reason. A *row group* bounds the memory of writer and reader. A *chunk* is
what a sink gets in one call; its boundaries are fixed here, when the rows are staged. A *segment* is one object on the
store; it ends only where a chunk ends. Row groups and chunks are independent of each other.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink import paths
from wal_sink.encoding import parquet_writer
from wal_sink.errors import CorruptError
from wal_sink.records import SegmentRef
from wal_sink.stores.base import ObjectMissing, SegmentStream, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

ROW_GROUP_BYTES = 16 << 20
"""Arrow bytes after which pending rows become a row group: about what a writer or reader holds in memory."""
ROW_GROUP_ROWS = 128 << 10

_RESTORE = "restore the object from a copy; nothing of it was delivered by this attempt"


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Where chunks and segments end. All at least 1."""

    chunk_rows: int
    """Most rows of a chunk."""
    chunk_bytes: int
    """Most Arrow bytes of a chunk; a larger single row goes alone."""
    segment_bytes: int
    """Parquet bytes from which on a segment ends at the next end of a chunk."""


class SegmentWriter:
    """Streams record batches into as many segments as they need. Lives in a staging task, on one thread.

    Leaving the `with` block without `finish` leaves nothing visible of the open segment; segments that were full before
    stay as orphans that no manifest names.
    """

    def __init__(
        self, store: Store, *, folder: str, partition: int, limits: SegmentLimits, new_id: Callable[[], str]
    ) -> None:
        self._store = store
        self._folder = folder
        self._partition = partition
        self._limits = limits
        self._new_id = new_id
        self._open: _OpenSegment | None = None
        self._refs: list[SegmentRef] = []
        self._given: pa.Schema | None = None
        self._declared = pa.schema([])

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows under positional column names; the first batch with rows gives the schema.

        Fields inside structs are declared nullable: Parquet refuses the nulls that a null struct has for children that
        must not be null, as Spark makes them. What a column itself declares stays.

        Raises `StoreError` if the store does, and pyarrow's own errors for what Parquet cannot hold.
        """
        batch = self._relaxed(batch)
        row = 0
        while row < batch.num_rows:
            segment = self._open or self._start(batch.schema)
            row += segment.append(batch, row)
            if segment.is_full():
                self._close_segment(segment)

    def finish(self) -> list[SegmentRef]:
        """Make the last segment durable; the references of all, in order. Empty if there were no rows."""
        if self._open is not None:
            self._close_segment(self._open)
        return list(self._refs)

    def abort(self) -> None:
        """Drop the open segment. Harmless after `finish` and when repeated."""
        if self._open is not None:
            segment, self._open = self._open, None
            segment.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _start(self, schema: pa.Schema) -> _OpenSegment:
        segment_id = self._new_id()
        path = paths.segment(self._folder, self._partition, len(self._refs), segment_id)
        self._open = _OpenSegment(_SegmentFile(self._store.segment(path)), schema, self._limits, path, segment_id)
        return self._open

    def _relaxed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._given is None or not self._given.equals(batch.schema, check_metadata=True):
            self._given = batch.schema
            self._declared = pa.schema([_relaxed_field(field) for field in batch.schema])
        return batch if self._declared.equals(batch.schema) else pa.record_batch(_Redeclared(batch, self._declared))

    def _close_segment(self, segment: _OpenSegment) -> None:
        self._refs.append(segment.commit())
        self._open = None


@dataclass(frozen=True, slots=True)
class _Redeclared:
    """A batch under another schema of the same layout, without a copy: Arrow's C data interface takes them apart."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        _, array = self.batch.__arrow_c_array__()  # type: ignore[no-untyped-call]
        return self.schema.__arrow_c_schema__(), array


def _relaxed_field(field: Any) -> Any:
    """The field, typed so that every field inside a struct is nullable; keys of maps stay as they are."""
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
    """The file object pyarrow writes to: passes bytes on to the store's stream, counting and summing them."""

    closed = False

    def __init__(self, stream: SegmentStream) -> None:
        self._stream = stream
        self._dropped = False
        self.size = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        if not self._dropped:  # a ParquetWriter writes its footer even when an aborted one is collected
            self._stream.write(data)
            self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: `commit` makes the object durable."""

    def close(self) -> None:
        """Nothing to do: `commit` makes the object visible."""

    def commit(self) -> None:
        self._stream.commit()

    def abort(self) -> None:
        self._dropped = True
        self._stream.abort()


class _OpenSegment:
    """One segment under construction: pending rows, the chunk being filled, the ends of those before."""

    def __init__(
        self, file: _SegmentFile, schema: pa.Schema, limits: SegmentLimits, path: str, segment_id: str
    ) -> None:
        self._file = file
        self._limits = limits
        self._path = path
        self._id = segment_id
        self._schema = schema
        self._parquet: pq.ParquetWriter | None = None
        self._footer = ExitStack()
        self._pending: list[_Span] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._flushed_bytes = 0
        self._rows = 0
        self._chunk_rows = 0
        self._chunk_bytes = 0
        self._ends: list[int] = []

    def append(self, batch: pa.RecordBatch, row: int) -> int:
        """Take rows of `batch` from `row` on, up to the end of the chunk at most; returns how many."""
        count = self._fitting(batch, row)
        if count:
            size = batch.slice(row, count).nbytes
            self._add(batch, row, count, size)
            self._chunk_rows += count
            self._chunk_bytes += size
        if not count or self._chunk_rows >= self._limits.chunk_rows or self._chunk_bytes >= self._limits.chunk_bytes:
            self._end_chunk()
        return count

    def is_full(self) -> bool:
        """Whether the segment ends here: a chunk just ended and the file has reached its size."""
        if self._chunk_rows or self._file.size + self._expected_bytes() < self._limits.segment_bytes:
            return False
        self._flush()
        return self._file.size >= self._limits.segment_bytes

    def commit(self) -> SegmentRef:
        if self._chunk_rows:
            self._end_chunk()
        self._flush()
        self._footer.close()
        self._file.commit()
        ends = tuple(self._ends)
        return SegmentRef(
            path=self._path,
            id=self._id,
            rows=self._rows,
            bytes=self._file.size,
            crc32=self._file.crc32,
            chunk_ends=None if ends == _even_ends(self._rows, self._limits.chunk_rows) else ends,
        )

    def abort(self) -> None:
        self._pending.clear()
        self._file.abort()

    def _fitting(self, batch: pa.RecordBatch, row: int) -> int:
        """How many rows from `row` on the open chunk still takes; a lone first row always fits."""
        count = min(batch.num_rows - row, self._limits.chunk_rows - self._chunk_rows)
        room = self._limits.chunk_bytes - self._chunk_bytes
        if batch.slice(row, count).nbytes > room:
            count = bisect_right(range(1, count), room, key=lambda rows: batch.slice(row, rows).nbytes)
        return count if count or self._chunk_rows else 1

    def _add(self, batch: pa.RecordBatch, row: int, count: int, size: int) -> None:
        last = self._pending[-1] if self._pending else None
        if last is not None and last.batch is batch and last.end == row:
            last.end += count
        else:
            self._pending.append(_Span(batch, row, row + count))
        self._rows += count
        self._pending_rows += count
        self._pending_bytes += size
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _end_chunk(self) -> None:
        self._ends.append(self._rows)
        self._chunk_rows = self._chunk_bytes = 0

    def _expected_bytes(self) -> float:
        """What the pending rows will add to the file, if they shrink like those before."""
        ratio = min(1.0, self._file.size / self._flushed_bytes) if self._flushed_bytes else 1.0
        return self._pending_bytes * ratio

    def _flush(self) -> None:
        """Write the pending rows as one row group."""
        if not self._pending:
            return
        table = pa.Table.from_batches([span.rows() for span in self._pending], self._schema)
        if self._parquet is None:
            self._parquet = self._footer.enter_context(parquet_writer(self._file, table))
        self._parquet.write_table(table, row_group_size=table.num_rows)
        self._flushed_bytes += self._pending_bytes
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0


@dataclass(slots=True)
class _Span:
    """Consecutive rows of a batch; kept as numbers, since thousands of tiny slices cost more than their rows."""

    batch: pa.RecordBatch
    start: int
    end: int

    def rows(self) -> pa.RecordBatch:
        return self.batch.slice(self.start, self.end - self.start)


def chunk_ends(ref: SegmentRef, chunk_rows: int) -> tuple[int, ...]:
    """The row numbers at which the chunks of a segment end, ascending, the last being `ref.rows`.

    `chunk_rows` is the manifest's. Raises `CorruptError` if the reference contradicts itself.
    """
    if ref.chunk_ends is None:
        return _even_ends(ref.rows, chunk_rows)
    if any(before >= end for before, end in pairwise((0, *ref.chunk_ends))) or ref.chunk_ends[-1:] != (ref.rows,):
        raise CorruptError(
            f"{ref.path}: expected ascending chunk ends up to row {ref.rows}, found {ref.chunk_ends}; "
            "restore the manifest"
        )
    return ref.chunk_ends


def _even_ends(rows: int, chunk_rows: int) -> tuple[int, ...]:
    return (*range(chunk_rows, rows, chunk_rows), rows) if rows else ()


class Rows(Protocol):
    """The rows of one segment from some row on, taken in order."""

    def take(self, count: int) -> pa.Table:
        """The next `count` rows, under positional column names."""
        ...


class SegmentReader(Protocol):
    """How the bytes of a segment become rows: `read_parquet`, unless a run has a format of its own."""

    def __call__(self, data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
        """The rows from `start` on; `CorruptError` if the bytes do not hold what the reference says."""
        ...


def read_parquet(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
    """Rows of a Parquet segment, decoded a row group at a time."""
    return _ParquetRows(_open_parquet(data, ref, columns, where), start, where)


def load_segment(store: Store, ref: SegmentRef) -> bytes:
    """The bytes of a segment, read whole in one request and checked against size and checksum.

    Raises `CorruptError` if they are not what was staged or are missing, `StoreError` if the store does not answer.
    """
    where = store.url_of(ref.path)
    try:
        data = store.read(ref.path)
    except ObjectMissing as error:
        raise CorruptError(f"{where}: expected a segment of {ref.bytes} bytes, found nothing; {_RESTORE}") from error
    if len(data) != ref.bytes:
        raise CorruptError(f"{where}: expected {ref.bytes} bytes, found {len(data)}; {_RESTORE}")
    found = zlib.crc32(data)
    if found != ref.crc32:
        raise CorruptError(f"{where}: expected CRC-32 {ref.crc32:08x}, found {found:08x}; {_RESTORE}")
    return data


def read_chunks(
    data: bytes,
    ref: SegmentRef,
    *,
    chunk_rows: int,
    columns: Sequence[str],
    start: int = 0,
    where: str,
    reader: SegmentReader = read_parquet,
) -> Iterator[tuple[int, int, pa.Table]]:
    """Every chunk from row `start` on, as first row, end row and table.

    `data` is what `load_segment` returned, `chunk_rows` and `columns` are the manifest's: the tables carry these real
    names, of which some may be equal. `where` is the segment's address for messages. Holds one row group or chunk at a
    time. Raises `CorruptError` if `start` is no boundary or the file does not hold what the reference says.
    """
    ends = chunk_ends(ref, chunk_rows)
    if start and start not in ends:
        raise CorruptError(
            f"{where}: no chunk starts at row {start}; expected 0 or the end of one of its {len(ends)} chunks, up to "
            f"row {ref.rows}. The progress record or the manifest is not this segment's: restore it"
        )
    rows = reader(data, ref, columns=len(columns), start=start, where=where)
    for end in ends[bisect_right(ends, start) :]:
        yield start, end, rows.take(end - start).rename_columns(list(columns))
        start = end


def _open_parquet(data: bytes, ref: SegmentRef, columns: int, where: str) -> pq.ParquetFile:
    with _corrupt(where):
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    found = file.metadata.num_rows, len(file.schema_arrow)
    if found != (ref.rows, columns):
        raise CorruptError(
            f"{where}: expected {ref.rows} rows of {columns} columns, found {found[0]} of {found[1]}; {_RESTORE}"
        )
    return file


class _ParquetRows:
    """The rows of a Parquet file from one on, taken in order; row groups wholly before it are never read."""

    def __init__(self, file: pq.ParquetFile, start: int, where: str) -> None:
        self._file = file
        self._where = where
        self._skip = start
        self._group = 0
        self._left: pa.Table | None = None

    def take(self, count: int) -> pa.Table:
        pieces = []
        while count:
            rows = self._left if self._left is not None and self._left.num_rows else self._next_group()
            piece = rows.slice(0, count)
            self._left = rows.slice(piece.num_rows)
            count -= piece.num_rows
            pieces.append(piece)
        return pa.concat_tables(pieces)

    def _next_group(self) -> pa.Table:
        with _corrupt(self._where):
            while (rows := self._file.metadata.row_group(self._group).num_rows) <= self._skip:
                self._skip -= rows
                self._group += 1
            table = self._file.read_row_group(self._group, use_threads=False)
        self._group += 1
        skipped, self._skip = self._skip, 0
        return table.slice(skipped)


@contextmanager
def _corrupt(where: str) -> Iterator[None]:
    """Turns what pyarrow raises about damaged bytes into `CorruptError`; lack of memory is no damage.

    Its readers raise ArrowException, OSError for a page's checksum, and IndexError for a row group that is not there.
    """
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        raise CorruptError(f"{where}: expected a Parquet segment, found damage: {error}; {_RESTORE}") from error

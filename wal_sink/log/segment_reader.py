"""Reading segments: immutable Parquet files, read back chunk by chunk. `segment_writer.py` writes them."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.log.records import SegmentRef, even_ends
from wal_sink.stores.base import ObjectMissing, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RESTORE = "restore the object from a copy; this attempt delivered no row of this segment"


def chunk_ends(ref: SegmentRef, chunk_rows: int) -> tuple[int, ...]:
    """The row numbers at which the chunks of a segment end, ascending, the last one being `ref.rows`.

    `chunk_rows` is the manifest's. Raises `CorruptError` if the reference contradicts itself.
    """
    if ref.chunk_ends is None:
        return even_ends(ref.rows, chunk_rows)
    if any(before >= end for before, end in pairwise((0, *ref.chunk_ends))) or ref.chunk_ends[-1:] != (ref.rows,):
        raise CorruptError(
            f"{ref.path}: expected ascending chunk ends up to row {ref.rows}, found {ref.chunk_ends}; "
            "restore the manifest"
        )
    return ref.chunk_ends


class Rows(Protocol):
    """The rows of one segment from some row on, taken in order."""

    def take(self, count: int) -> pa.Table:
        """The next `count` rows, under the names in the segment."""
        ...


class SegmentReader(Protocol):
    """Conversion of a segment's bytes to rows: `read_parquet`, unless a run has another format."""

    def __call__(self, data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
        """The rows from `start` on. Raises `CorruptError` if the bytes do not match the reference."""
        ...


def read_parquet(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
    """Rows of a Parquet segment, decoded one row group at a time."""
    return _ParquetRows(_open_parquet(data, ref, columns, where), start, where)


def load_segment(store: Store, ref: SegmentRef) -> bytes:
    """The bytes of a segment, read as a whole in one request and checked against size and checksum.

    Raises `CorruptError` if they are missing or differ from the staged ones, `StoreError` if the store does not answer,
    `HistoryError` if they were never kept.
    """
    where = store.url_of(ref.path)
    if not ref.kept:
        raise HistoryError(
            f"{where}: the WAL did not keep the rows of this segment (keep_segments=False). Only the two-phase sinks "
            "have these rows. Other sinks cannot receive this batch. Finish the delivery to the two-phase sinks, and "
            "start the other sinks after this batch"
        )
    try:
        data = store.read(ref.path)
    except ObjectMissing as error:
        raise CorruptError(f"{where}: expected a segment of {ref.bytes} bytes, found nothing; {_RESTORE}") from error
    check_segment(data, ref, where)
    return data


def check_segment(data: bytes, ref: SegmentRef, where: str) -> None:
    """Raise `CorruptError` unless the bytes of a segment are those that were staged: by size and checksum."""
    if len(data) != ref.bytes:
        raise CorruptError(f"{where}: expected {ref.bytes} bytes, found {len(data)}; {_RESTORE}")
    found = zlib.crc32(data)
    if found != ref.crc32:
        raise CorruptError(f"{where}: expected CRC-32 {ref.crc32:08x}, found {found:08x}; {_RESTORE}")


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

    `data` is the result of `load_segment`. `chunk_rows` and `columns` are the manifest's: the tables carry these real
    names, of which some may be equal. `where` is the segment's address for messages. Holds one row group or chunk in
    memory at a time. Raises `CorruptError` if `start` is not a boundary or the file does not match the reference.
    """
    ends = chunk_ends(ref, chunk_rows)
    if start and start not in ends:
        raise CorruptError(
            f"{where}: no chunk starts at row {start}; expected 0 or the end of one of its {len(ends)} chunks, up to "
            f"row {ref.rows}. The progress record or the manifest belongs to another segment. Restore that object"
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
    """The rows of a Parquet file from one row on, taken in order. Row groups entirely before it are never read."""

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
    """Convert pyarrow's errors about damaged bytes to `CorruptError`; lack of memory is not damage.

    Its readers raise ArrowException, OSError for the checksum of a page, and IndexError for a row group that is
    missing.
    """
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        raise CorruptError(f"{where}: expected a Parquet segment, found damage: {error}; {_RESTORE}") from error

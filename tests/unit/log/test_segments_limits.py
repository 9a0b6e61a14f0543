"""Where chunks, row groups and segments end, to the row: columns of eight bytes a row make it countable."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.log import SegmentLimits, SegmentRef, SegmentWriter, chunk_ends, segment_writer
from tests.house.stores import MemoryStore, StoreSpec
from wal_sink.errors import CorruptError

HUGE = 1 << 40
BYTES = 8
"""Arrow bytes of a row."""

_numbers = itertools.count()


def written(batches: Sequence[int], **limits: int) -> tuple[list[SegmentRef], list[list[int]]]:
    """Write batches of so many rows; the references of the segments, and the rows of their row groups."""
    store = MemoryStore(StoreSpec(f"memory://limits-{next(_numbers)}"))
    given = {"chunk_rows": HUGE, "chunk_bytes": HUGE, "segment_bytes": HUGE, **limits}
    ids = (f"{number:032x}" for number in itertools.count())
    with SegmentWriter(
        store, folder="f", partition=0, limits=SegmentLimits(**given), new_id=lambda: next(ids)
    ) as writer:
        for rows in batches:
            writer.write(pa.record_batch({"c0": pa.array([7] * rows, pa.int64())}))
        refs = writer.finish()
    files = [pq.ParquetFile(io.BytesIO(store.read(ref.path))).metadata for ref in refs]
    return refs, [[file.row_group(group).num_rows for group in range(file.num_row_groups)] for file in files]


def ends(batches: Sequence[int], **limits: int) -> tuple[int, ...] | None:
    (ref,), _ = written(batches, **limits)
    return ref.chunk_ends


# Chunks.


def test_a_chunk_takes_as_many_bytes_as_it_may_whatever_the_batches() -> None:
    for batches in [[10], [3, 3, 3, 1], [1] * 10, [5, 5], [9, 1]]:
        assert ends(batches, chunk_bytes=4 * BYTES) == (4, 8, 10)


def test_a_row_that_is_larger_than_a_chunk_goes_alone() -> None:
    assert ends([3], chunk_bytes=1) == (1, 2, 3)
    assert ends([10], chunk_bytes=5 * BYTES - 1) == (4, 8, 10), "only a first row may be larger"


def test_ends_by_bytes_are_written_down_although_even_chunks_would_be_as_many() -> None:
    """Otherwise a sink would get a chunk that is larger than it may be, under another key than at its preparation."""
    assert ends([4], chunk_rows=3, chunk_bytes=2 * BYTES) == (2, 4)


def test_ascending_ends_up_to_the_last_row_are_those_of_the_reference() -> None:
    for given in [(3,), (1, 3), (1, 2, 3), (2, 3)]:
        assert chunk_ends(SegmentRef(path="p", id="i", rows=3, bytes=1, crc32=0, chunk_ends=given), 2) == given


def test_any_other_ends_are_corrupt() -> None:
    for given in [(), (2,), (0, 3), (2, 2, 3), (3, 2), (1, 3, 4), (4,)]:
        with pytest.raises(CorruptError, match="expected ascending chunk ends up to row 3"):
            chunk_ends(SegmentRef(path="p", id="i", rows=3, bytes=1, crc32=0, chunk_ends=given), 2)


def test_without_ends_of_its_own_a_segment_has_even_chunks() -> None:
    cases: list[tuple[int, tuple[int, ...]]] = [(0, ()), (1, (1,)), (2, (2,)), (3, (2, 3)), (4, (2, 4))]
    for rows, even in cases:
        assert chunk_ends(SegmentRef(path="p", id="i", rows=rows, bytes=1, crc32=0), 2) == even


# Row groups.


def test_pending_rows_become_a_row_group_once_there_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for batches in [[1] * 9, [2, 2, 2, 2, 1]]:
        monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 4)

        assert written(batches)[1] == [[4, 4, 1]]


def test_pending_rows_become_a_row_group_once_they_are_so_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for batches in [[1] * 9, [2, 2, 2, 2, 1]]:
        for most in [3 * BYTES + 1, 4 * BYTES]:
            monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES", most)

            assert written(batches)[1] == [[4, 4, 1]]


def test_of_a_batch_cut_into_chunks_each_counts_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES", 4 * BYTES)

    assert written([8], chunk_rows=2)[1] == [[4, 4]]


def test_a_batch_of_more_rows_than_pyarrow_puts_into_a_row_group_is_one() -> None:
    assert written([2**20 + 1])[1] == [[2**20 + 1]]


# Segments.


def test_rows_are_looked_at_as_a_file_once_they_could_fill_the_segment() -> None:
    _, groups = written([10] * 20, chunk_rows=10, segment_bytes=100 * BYTES)

    assert groups[0][0] == 100


def test_rows_that_shrink_well_are_looked_at_ever_less_often() -> None:
    """The first look tells how far they shrink: 80 bytes of Arrow to about one of Parquet here."""
    refs, groups = written([1000] * 100, chunk_rows=1000, segment_bytes=10_000 * BYTES)

    assert [ref.rows for ref in refs] == [100_000]
    assert groups[0] == [10_000, 90_000]


def test_a_segment_that_is_not_kept_ends_by_the_bytes_of_its_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 2)
    store = MemoryStore(StoreSpec(f"memory://limits-{next(_numbers)}"))
    limits = SegmentLimits(chunk_rows=1, chunk_bytes=HUGE, segment_bytes=5 * BYTES)

    with SegmentWriter(store, folder="f", partition=0, limits=limits, new_id=lambda: "0" * 32, keep=False) as writer:
        writer.write(pa.record_batch({"c0": pa.array([7] * 12, pa.int64())}))
        refs = writer.finish()

    assert [ref.rows for ref in refs] == [5, 5, 2]
    assert store.list("", recursive=True) == []


# Declarations of fields.

STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
RELAXED = pa.struct([pa.field("x", pa.int64(), nullable=True)])


def test_fields_inside_structs_may_be_null_and_all_else_stays() -> None:
    cases: list[tuple[pa.DataType, pa.DataType]] = [
        (STRICT, RELAXED),
        (pa.list_(STRICT), pa.list_(RELAXED)),
        (pa.large_list(STRICT), pa.large_list(RELAXED)),
        (pa.map_(pa.string(), STRICT), pa.map_(pa.string(), RELAXED)),
        (pa.struct([pa.field("y", STRICT, nullable=False)]), pa.struct([pa.field("y", RELAXED)])),
        (pa.int64(), pa.int64()),
    ]
    for given, kept in cases:
        assert segment_writer._relaxed_type(given).equals(kept)
        assert segment_writer._relaxed_field(pa.field("c", given, nullable=False)).equals(
            pa.field("c", kept, nullable=False)
        )

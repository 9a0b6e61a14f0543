"""Segments: what goes in comes out, chunk by chunk, and damage is never taken for rows."""

from __future__ import annotations

import gc
import itertools
import random
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.log import SegmentLimits, SegmentRef, SegmentWriter, chunk_ends, load_segment, segment_writer
from tests.house.stores import ObjectExists, ObjectMissing, SegmentStream, Store
from wal_sink.errors import CorruptError, StoreError
from wal_sink.log.segment_reader import read_chunks
from wal_sink.log.segment_writer import segment_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HUGE = 1 << 40


class DictStore(Store):
    """The least that is a store."""

    @property
    def root(self) -> str:
        return "dict://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fail_after: int | None = None

    def create(self, path: str, data: bytes) -> None:
        if path in self.objects:
            raise ObjectExists(path)
        self.objects[path] = data

    def read(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError as error:
            raise ObjectMissing(path) from error

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:  # noqa: ARG002
        return sorted(self.objects)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.objects.pop(path, None)

    def segment(self, path: str) -> SegmentStream:
        return DictStream(self, path)


class DictStream(SegmentStream):
    def __init__(self, store: DictStore, path: str) -> None:
        self.store, self.path, self.data, self.ended = store, path, bytearray(), False

    def write(self, data: bytes | memoryview) -> None:
        assert not self.ended
        self.data += data
        if self.store.fail_after is not None and len(self.data) > self.store.fail_after:
            raise StoreError("disk full")

    def commit(self) -> None:
        self.store.create(self.path, bytes(self.data))
        self.ended = True

    def abort(self) -> None:
        self.ended = True


def limits(chunk_rows: int = 10, chunk_bytes: int = HUGE, segment_bytes: int = HUGE) -> SegmentLimits:
    return SegmentLimits(chunk_rows=chunk_rows, chunk_bytes=chunk_bytes, segment_bytes=segment_bytes)


def writer(store: Store, limits: SegmentLimits) -> SegmentWriter:
    count = itertools.count()
    return SegmentWriter(store, folder="f", partition=3, limits=limits, new_id=lambda: f"id{next(count)}")


def test_columns_of_a_segment_have_their_real_names_unless_a_reader_could_not_tell_them_apart() -> None:
    cases: list[tuple[list[str], list[str]]] = [
        (["id", "x y", "é"], ["id", "x y", "é"]),
        (["c1", "c0"], ["c1", "c0"]),
        ([], []),
        (["a", "b.c"], ["c0", "c1"]),
        (["a", ""], ["c0", "c1"]),
        (["a", "a"], ["c0", "c1"]),
        (["a", "A"], ["c0", "c1"]),
    ]
    for columns, expected in cases:
        assert segment_names(columns) == expected


def rows(count: int, width: int = 3) -> pa.RecordBatch:
    texts = [None if row % 7 == 0 else f"{row:0{width}d}" for row in range(count)]
    return pa.record_batch([pa.array(range(count), pa.int64()), pa.array(texts, pa.string())], ["c0", "c1"])


def stage(store: Store, batches: Iterable[pa.RecordBatch], limits: SegmentLimits) -> list[SegmentRef]:
    with writer(store, limits) as segment:
        for batch in batches:
            segment.write(batch)
        return segment.finish()


def split(batch: pa.RecordBatch, sizes: Iterable[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield batch.slice(start, size)
        start += min(size, batch.num_rows - start)
    yield batch.slice(start)


def chunks(store: Store, ref: SegmentRef, chunk_rows: int, start: int = 0) -> list[tuple[int, int, pa.Table]]:
    data = load_segment(store, ref)
    return list(read_chunks(data, ref, chunk_rows=chunk_rows, columns=["c0", "c1"], start=start, where="here"))


def column(tables: Iterable[tuple[int, int, pa.Table]]) -> list[int | None]:
    return [value for *_, table in tables for value in table.column(0).to_pylist()]


sizes = st.lists(st.integers(0, 60), max_size=12)
small_sizes = st.lists(st.integers(0, 20), max_size=8)


@given(st.integers(0, 80), small_sizes, st.integers(1, 25), st.integers(1, 1200), st.sampled_from([1, 700, 1500, HUGE]))
def test_the_chunks_of_all_segments_are_the_rows_in_order(
    count: int, sizes: list[int], chunk_rows: int, chunk_bytes: int, segment_bytes: int
) -> None:
    store = DictStore()
    batch = rows(count)
    refs = stage(store, split(batch, sizes), limits(chunk_rows, chunk_bytes, segment_bytes))
    found = [chunk for ref in refs for chunk in chunks(store, ref, chunk_rows)]
    assert column(found) == list(range(count))
    assert sum(ref.rows for ref in refs) == count
    assert all(table.num_rows == end - first <= chunk_rows for first, end, table in found)
    if found:
        together = pa.concat_tables(table for *_, table in found)
        assert together.combine_chunks().equals(pa.Table.from_batches([batch]).combine_chunks())


@given(st.integers(1, 300), sizes, st.integers(1, 80))
def test_boundaries_by_rows_do_not_depend_on_the_batches(count: int, sizes: list[int], chunk_rows: int) -> None:
    (ref,) = stage(DictStore(), split(rows(count), sizes), limits(chunk_rows))
    assert ref.chunk_ends is None
    assert chunk_ends(ref, chunk_rows) == (*range(chunk_rows, count, chunk_rows), count)


@given(st.integers(1, 70), small_sizes, st.integers(1, 700))
def test_a_chunk_is_larger_than_its_bytes_only_if_it_is_one_row(count: int, sizes: list[int], chunk_bytes: int) -> None:
    store = DictStore()
    for ref in stage(store, split(rows(count, width=40), sizes), limits(HUGE, chunk_bytes)):
        for first, end, table in chunks(store, ref, HUGE):
            assert end - first == 1 or table.nbytes <= chunk_bytes + 99  # bitmaps are rounded


@given(st.integers(1, 120), st.integers(1, 30), st.integers(1, 40), st.data())
def test_reading_may_start_at_any_boundary(count: int, chunk_rows: int, group_rows: int, data: st.DataObject) -> None:
    store = DictStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "ROW_GROUP_ROWS", group_rows)
        (ref,) = stage(store, [rows(count)], limits(chunk_rows))
    start = data.draw(st.sampled_from([0, *chunk_ends(ref, chunk_rows)]))
    assert column(chunks(store, ref, chunk_rows, start)) == list(range(start, count))


def test_no_rows_make_no_segment() -> None:
    store = DictStore()
    assert stage(store, [rows(0)], limits()) == []
    assert store.objects == {}


def test_a_segment_ends_with_the_chunk_that_fills_it_and_is_named_by_its_file_index() -> None:
    store = DictStore()
    refs = stage(store, [rows(25)], limits(chunk_rows=10, segment_bytes=1))
    assert [ref.rows for ref in refs] == [10, 10, 5]
    assert [ref.path for ref in refs] == [f"f/000003-{index:04d}-id{index}.parquet" for index in range(3)]
    assert [ref.id for ref in refs] == ["id0", "id1", "id2"]
    assert sorted(store.objects) == [ref.path for ref in refs]


def test_segments_are_not_much_larger_than_asked() -> None:
    store, seeded = DictStore(), random.Random(1)
    numbers = pa.record_batch({"c0": [seeded.getrandbits(48) for _ in range(100_000)]})
    refs = stage(store, [numbers], limits(chunk_rows=1000, segment_bytes=100_000))
    assert len(refs) > 2
    assert all(100_000 <= ref.bytes < 140_000 for ref in refs[:-1])


def test_the_reference_describes_the_file() -> None:
    store = DictStore()
    (ref,) = stage(store, [rows(25)], limits())
    data = store.objects[ref.path]
    assert (ref.bytes, ref.crc32, ref.rows) == (len(data), zlib.crc32(data), 25)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_null_struct_whose_fields_must_not_be_null_is_held() -> None:
    inner = pa.struct(
        [pa.field("x", pa.int32(), nullable=False), pa.field("l", pa.list_(pa.int8()), metadata={"k": "v"})]
    )
    values: dict[pa.DataType, list[object]] = {
        inner: [None, None],
        pa.list_(inner): [[None], None],
        pa.large_list(inner): [[None], None],
        pa.map_(pa.string(), inner): [[("k", None)], None],
    }
    batch = pa.record_batch([pa.array(value, kind) for kind, value in values.items()], ["c0", "c1", "c2", "c3"])
    store = DictStore()
    (ref,) = stage(store, [batch], limits())
    ((*_, table),) = read_chunks(
        load_segment(store, ref), ref, chunk_rows=10, columns=["c0", "c1", "c2", "c3"], where="here"
    )
    assert [column.to_pylist() for column in table.columns] == list(values.values())
    assert table.schema.field(0).type.field(1).metadata[b"k"] == b"v"


def test_leaving_without_finish_leaves_nothing_of_the_open_segment() -> None:
    store = DictStore()
    with writer(store, limits()) as segment:
        segment.write(rows(25))
    assert store.objects == {}


def test_what_was_aborted_is_written_to_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of Parquet that is collected writes its footer."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 7)
    store, late = DictStore(), list[int]()
    genuine = store.segment

    class Strict(SegmentStream):
        def __init__(self, path: str) -> None:
            self.inner, self.aborted = genuine(path), False

        def write(self, data: bytes | memoryview) -> None:
            if self.aborted:
                late.append(len(data))
            self.inner.write(data)

        def commit(self) -> None:
            self.inner.commit()

        def abort(self) -> None:
            self.aborted = True
            self.inner.abort()

    monkeypatch.setattr(store, "segment", Strict)
    with writer(store, limits()) as segment:
        segment.write(rows(25))
    del segment
    gc.collect()
    assert late == []
    assert store.objects == {}


def test_a_failing_store_shows_as_its_own_error_and_leaves_nothing() -> None:
    store = DictStore()
    store.fail_after = 100
    with pytest.raises(StoreError, match="disk full"):
        stage(store, [rows(25)], limits())
    assert store.objects == {}


def test_another_schema_is_refused() -> None:
    other = pa.record_batch({"c0": ["text"], "c1": ["text"]})
    with pytest.raises(ValueError, match=r"[Ss]chema"):
        stage(DictStore(), [rows(2), other], limits())


class Following:
    """Rows of a segment that no file holds."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def begin(self, segment_id: str, file_index: int) -> None: ...

    def take(self, first: int, end: int, table: pa.Table) -> None:
        assert table.num_rows == end - first
        self.rows += table.column(0).to_pylist()

    def end(self) -> None: ...

    def abort(self) -> None: ...


def test_another_schema_is_refused_where_no_file_is_written_too() -> None:
    """Each chunk of one row is handed on at once, so no two batches meet."""
    following = Following()
    given = {"folder": "f", "partition": 0, "limits": limits(chunk_rows=1), "new_id": lambda: "id"}
    with SegmentWriter(DictStore(), **given, followers=[following], keep=False) as segment:  # type: ignore[arg-type]
        segment.write(rows(2))
        segment.write(rows(1))
        assert following.rows == [0, 1, 0]
        with pytest.raises(pa.ArrowInvalid, match="Schema at index 0 was different"):
            segment.write(pa.record_batch([pa.array(["text"]), pa.array(["text"])], ["c0", "c1"]))


@given(st.integers(0, 1 << 20), st.integers(0, 7))
def test_a_flipped_bit_is_found(place: int, bit: int) -> None:
    store = DictStore()
    (ref,) = stage(store, [rows(50)], limits())
    data = bytearray(store.objects[ref.path])
    data[place % len(data)] ^= 1 << bit
    store.objects[ref.path] = bytes(data)
    with pytest.raises(CorruptError, match=r"f/000003-0000-id0\.parquet: expected CRC-32 .* found .*restore"):
        load_segment(store, ref)


@given(st.integers(0, 1 << 20), st.integers(1, 8))
def test_truncation_is_found(place: int, more: int) -> None:
    store = DictStore()
    (ref,) = stage(store, [rows(50)], limits())
    data = store.objects[ref.path]
    for wrong in (data[: place % len(data)], data + b"x" * more):
        store.objects[ref.path] = wrong
        with pytest.raises(CorruptError, match=f"expected {ref.bytes} bytes, found {len(wrong)}"):
            load_segment(store, ref)


def test_a_missing_segment_is_corruption() -> None:
    ref = SegmentRef(path="f/x.parquet", id="x", rows=1, bytes=7, crc32=0)
    with pytest.raises(CorruptError, match=r"f/x\.parquet: expected a segment of 7 bytes, found nothing"):
        load_segment(DictStore(), ref)


def test_damage_that_reached_the_reader_is_found_by_page_checksums() -> None:
    store = DictStore()
    (ref,) = stage(store, [rows(2000)], limits(chunk_rows=500))
    whole = store.objects[ref.path]
    column = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(0).column(0)
    damaged = bytearray(whole)
    damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # in the page, behind its header
    with pytest.raises(CorruptError, match=r"^here: expected a Parquet segment"):
        list(read_chunks(bytes(damaged), ref, chunk_rows=500, columns=["a", "b"], where="here"))


def test_damage_before_the_start_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups that end where reading starts are not decoded."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1000)
    store = DictStore()
    (ref,) = stage(store, [rows(2000)], limits(chunk_rows=500))
    damaged = bytearray(store.objects[ref.path])
    first = pq.ParquetFile(pa.BufferReader(bytes(damaged))).metadata.row_group(0)
    assert first.num_rows == 1000
    column = first.column(0)
    damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # in the page, behind its header

    found = read_chunks(bytes(damaged), ref, chunk_rows=500, columns=["a", "b"], start=1000, where="here")

    assert [end for _, end, _ in found] == [1500, 2000]


@given(st.integers(0, 1 << 20))
def test_a_truncated_file_is_no_segment(place: int) -> None:
    store = DictStore()
    (ref,) = stage(store, [rows(50)], limits())
    data = store.objects[ref.path]
    with pytest.raises(CorruptError, match=r"^here: "):
        list(read_chunks(data[: place % len(data)], ref, chunk_rows=10, columns=["a", "b"], where="here"))


def test_a_reference_that_does_not_fit_is_refused() -> None:
    cases: list[dict[str, object]] = [{"rows": 24}, {"rows": 26}, {"chunk_ends": (5, 5, 25)}, {"chunk_ends": (24,)}]
    for change in cases:
        store = DictStore()
        (ref,) = stage(store, [rows(25)], limits())
        data = store.objects[ref.path]
        wrong = msgspec.structs.replace(ref, **change)
        with pytest.raises(CorruptError):
            list(read_chunks(data, wrong, chunk_rows=10, columns=["a", "b"], where="here"))


def test_a_wrong_start_or_number_of_columns_is_refused() -> None:
    cases: list[tuple[int, list[str]]] = [(5, ["a", "b"]), (26, ["a", "b"]), (-1, ["a", "b"]), (0, ["a"])]
    for start, columns in cases:
        store = DictStore()
        (ref,) = stage(store, [rows(25)], limits())
        with pytest.raises(CorruptError, match=r"^here: "):
            list(read_chunks(load_segment(store, ref), ref, chunk_rows=10, columns=columns, start=start, where="here"))


def test_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("wal_sink.log.segment_reader.pq.ParquetFile", full)
    ref = SegmentRef(path="p", id="i", rows=1, bytes=1, crc32=0)

    with pytest.raises(MemoryError, match="no room"):
        list(read_chunks(b"x", ref, chunk_rows=1, columns=["a"], where="p"))

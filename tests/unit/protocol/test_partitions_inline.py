"""Inline rows: which rows travel with their task, and the segments that the driver packs them into."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import stage_tables
from tests.house.log import Log, Manifest, SegmentLimits, chunk_ends, paths, segment_writer
from tests.house.protocol import SMALL_BATCH_BYTES, Run, Staged, StagedPartition, StagingContext
from tests.house.support import host_name
from tests.support.small_run import Place, Recorder, numbers
from tests.support.two_phase import shown
from tests.support.vault import Vault, VaultSink
from wal_sink.log.records import StagingTiming, TaskTiming
from wal_sink.protocol import partitions as inline_rows
from wal_sink.protocol.partitions import MOST_INLINE_BYTES, inline_limit, joined, packed, stage_partition, take_inline
from wal_sink.testing import simulated_runtime

BUDGET = 16 << 20
WIDE = pa.schema([("c0", pa.binary())])


def batch(*rows: int) -> pa.RecordBatch:
    return pa.record_batch({"c0": pa.array(rows, pa.int64())})


def wide(size: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([os.urandom(size)])], schema=WIDE)]


def rows_of(data: bytes | None) -> list[int]:
    assert data is not None
    return [row["c0"] for one in pa.ipc.open_stream(data) for row in one.to_pylist()] if data else []


@pytest.fixture
def run(place: Place) -> Run:
    return place.open({"a": Recorder()})


@pytest.fixture
def place() -> Place:
    return Place()


def context_of(
    run: Run, place: Place, *, columns: int = 1, inline_bytes: int = BUDGET, **changed: int
) -> StagingContext:
    query = place.query()
    query.start_batch(0, 0)
    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    names = tuple(f"c{number}" for number in range(columns))
    return run.staging_context(attempt, columns=names, spark_schema="", inline_bytes=inline_bytes, **changed)


def task(context: StagingContext, run: Run, partition: int, batches: Sequence[pa.RecordBatch]) -> StagedPartition:
    return stage_partition(context, batches, lambda: run.log, partition=partition, on_executor=True)


def read(log: Log, staged: StagedPartition) -> list[list[Any]]:
    """The rows of each segment."""
    found: list[list[Any]] = []
    for ref in staged.segments:
        rows = log.segment_reader(log.store.read(ref.path), ref, columns=1, start=0, where=ref.path)
        found.append(rows.take(ref.rows).column(0).to_pylist())
    return found


# Rows that travel.


def test_what_all_tasks_return_is_bounded() -> None:
    for partitions in [1, 64, 200, 2_000, 40_000]:
        total = sum(inline_limit(BUDGET, partition) for partition in range(partitions))
        filled = BUDGET // MOST_INLINE_BYTES
        bound = BUDGET * (1 + math.log(max(1, partitions / filled)))
        assert total <= min(bound, partitions * MOST_INLINE_BYTES) + 1
        assert total <= 119 << 20


def test_the_budget_is_spread_by_the_number_of_the_partition() -> None:
    assert [inline_limit(BUDGET, number) for number in (0, 63, 64)] == [256 << 10, 256 << 10, BUDGET // 65]
    assert inline_limit(100, 2) == 33


def test_rows_travel_up_to_the_limit_and_none_is_lost_beyond_it() -> None:
    batches = [batch(1, 2), batch(), batch(3)]
    data, rest = take_inline(iter(batches), 10_000)
    assert (rows_of(data), list(rest)) == ([1, 2, 3], [])
    assert data is not None
    assert take_inline(iter(batches), len(data))[0] == data

    for limit in (len(data) - 1, 20, 8):  # the stream is too large, the second batch is, the first is
        nothing, rest = take_inline(iter(batches), limit)
        assert nothing is None
        assert [row for one in rest for row in one.column(0).to_pylist()] == [1, 2, 3]


def test_a_partition_without_rows_is_empty() -> None:
    assert take_inline(iter([]), 10) == (b"", ())
    assert take_inline(iter([batch()]), 10) == (b"", ())


def test_a_large_partition_is_read_no_further_than_the_limit() -> None:
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            seen.append(number)
            yield from wide(1_000)

    _, rest = take_inline(batches(), 3_000)
    assert len(seen) == 3
    assert sum(one.num_rows for one in rest) == 100


def test_a_small_partition_opens_no_log(run: Run, place: Place) -> None:
    context = context_of(run, place)
    staged = stage_partition(
        context, [batch(1)], lambda: pytest.fail("a log was opened"), partition=7, on_executor=True
    )
    assert (staged.segments, staged.partition, rows_of(staged.inline)) == ((), 7, [1])
    assert staged.time_zone == "", "no column of the batch has a time zone"


@pytest.mark.parametrize(("on_executor", "host"), [(True, host_name()), (False, "")])
def test_a_task_tells_how_long_it_took_and_where_it_ran(run: Run, place: Place, on_executor: bool, host: str) -> None:
    runtime = simulated_runtime(seed=1)
    runtime.sleep_s(60.0)

    def slowly() -> Iterator[pa.RecordBatch]:
        runtime.sleep_s(2.5)
        yield batch(1)

    staged = stage_partition(
        context_of(run, place), slowly(), lambda: run.log, partition=7, on_executor=on_executor, runtime=runtime
    )
    slowest = TaskTiming(partition=7, seconds=2.5, host=host)
    assert staged.timing == StagingTiming(tasks=1, task_seconds=2.5, slowest=slowest)


@pytest.mark.parametrize("inline_bytes", [0, 100])
def test_without_a_budget_every_partition_has_a_segment(run: Run, place: Place, inline_bytes: int) -> None:
    context = context_of(run, place, inline_bytes=inline_bytes)
    first, second = (task(context, run, number, [batch(number)]) for number in (4, 5))
    assert (len(first.segments), first.partition, first.inline) == (1, 4, b"")
    whole = joined([first, second])
    assert (read(run.log, whole), whole.timing is not None and whole.timing.tasks) == ([[4], [5]], 2)


def test_no_rows_travel_once_a_result_was_too_large(run: Run, place: Place) -> None:
    run.inline_rows = False
    assert context_of(run, place).inline_bytes == 0


# Packed segments.


def test_partitions_are_packed_in_their_order(run: Run, place: Place) -> None:
    context = context_of(run, place)
    tasks = [task(context, run, number, [batch(number, number)] if number % 3 else []) for number in range(8)]
    staged = packed(context, tasks, run.log, side_by_side=1)
    assert read(run.log, staged) == [[1, 1, 2, 2, 4, 4, 5, 5, 7, 7]]
    (ref,) = staged.segments
    assert paths.parse_segment(ref.path) == (1, 0)
    assert chunk_ends(ref, 2) == (2, 4, 6, 8, 10)
    assert not staged.inline
    assert staged.timing is not None
    assert staged.timing.tasks == 8  # also those without rows


def test_a_batch_without_partitions_has_no_segment(run: Run, place: Place) -> None:
    assert packed(context_of(run, place), [], run.log, side_by_side=1) == StagedPartition((), {})


def test_the_time_zone_of_inline_rows_is_kept(run: Run, place: Place) -> None:
    context = context_of(run, place)
    moment = pa.record_batch({"c0": pa.array([0], pa.timestamp("us", "Asia/Tokyo"))})
    tasks = [task(context, run, number, rows) for number, rows in enumerate([[], [moment]])]
    assert packed(context, tasks, run.log, side_by_side=1).time_zone == "Asia/Tokyo"


def test_a_larger_partition_keeps_its_place(run: Run, place: Place) -> None:
    context = context_of(run, place)
    large = [batch(*range(100, 100 + 40_000))]
    tasks = [task(context, run, number, large if number == 2 else [batch(number)]) for number in range(5)]
    staged = packed(context, tasks, run.log, side_by_side=1)
    first, middle, last = read(run.log, staged)
    assert (first, len(middle), last) == ([0, 1], 40_000, [3, 4])
    assert [paths.parse_segment(ref.path) for ref in staged.segments] == [(0, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("field", [pa.field("c0", pa.int32()), pa.field("c0", pa.int64(), metadata={"unit": "m"})])
def test_a_segment_holds_rows_of_one_schema(run: Run, place: Place, field: pa.Field[Any]) -> None:
    context = context_of(run, place)
    other = pa.record_batch([pa.array([9], field.type)], schema=pa.schema([field]))
    tasks = [task(context, run, number, [one]) for number, one in enumerate([batch(1), other, other, batch(2)])]
    assert read(run.log, packed(context, tasks, run.log, side_by_side=1)) == [[1], [9, 9], [2]]


@pytest.mark.parametrize(
    ("partitions", "side_by_side", "parts"),
    [
        (16, 3, 1),  # the driver delivers it
        (20, 3, 3),
        (20, 1, 1),
        (20, 100, 4),  # 1 MiB each at least
    ],
)
def test_what_executors_deliver_is_divided_among_them(
    run: Run, place: Place, partitions: int, side_by_side: int, parts: int
) -> None:
    context, size = context_of(run, place), SMALL_BATCH_BYTES // 16 - 1_000
    tasks = [task(context, run, number, wide(size)) for number in range(partitions)]
    staged = packed(context, tasks, run.log, side_by_side=side_by_side)
    assert len(staged.segments) == parts
    assert sum(ref.rows for ref in staged.segments) == partitions
    assert max(ref.rows for ref in staged.segments) <= -(-partitions // parts)


@pytest.mark.parametrize(
    ("beyond", "parts"),
    [
        ((0, 1), 1),  # nothing is estimated
        ((1, 0), 1),
        ((1, 1), 2),
    ],
)
def test_the_driver_delivers_as_much_as_the_limit_and_no_more(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch, beyond: tuple[int, int], parts: int
) -> None:
    """`beyond`: bytes above the limit, inline and as estimated in a segment."""
    context = context_of(run, place)
    tasks = [task(context, run, number, [batch(number)]) for number in range(2)]
    limit = sum(len(one.inline) for one in tasks) - beyond[0]
    monkeypatch.setattr(inline_rows, "SMALL_BATCH_BYTES", limit)
    monkeypatch.setattr(inline_rows, "PACKED_BYTES", 1)
    monkeypatch.setattr(inline_rows, "_estimated_bytes", lambda *_: limit + beyond[1])
    assert len(packed(context, tasks, run.log, side_by_side=2).segments) == parts


def test_tiny_partitions_make_one_segment_however_much_their_schemas_take_inline(run: Run, place: Place) -> None:
    columns = {f"c{number}": pa.array(range(10)) for number in range(12)}
    context = context_of(run, place, columns=12)
    tasks = [task(context, run, number, [pa.record_batch(columns)]) for number in range(2_000)]
    assert sum(len(one.inline) for one in tasks) > SMALL_BATCH_BYTES
    staged = packed(context, tasks, run.log, side_by_side=40)
    (ref,) = staged.segments
    assert ref.rows == 20_000


def test_a_sample_is_written_nowhere(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that cannot be encoded end it, and the stream is dropped."""
    context = context_of(run, place)
    tasks = [task(context, run, number, wide(250 << 10)) for number in range(20)]
    monkeypatch.setattr(run.log.store, "segment", lambda path: pytest.fail(f"{path} is written"))
    monkeypatch.setattr(segment_writer, "parquet_writer", _refuse)
    with pytest.raises(pa.ArrowNotImplementedError):
        packed(context, tasks, run.log, side_by_side=4)


def _refuse(*_: object, **__: object) -> None:
    raise pa.ArrowNotImplementedError("a type that Parquet does not have")


@pytest.mark.parametrize("columns", [1_500, 2_400])
def test_wide_tables_make_one_segment_however_much_a_footer_takes(run: Run, place: Place, columns: int) -> None:
    context = context_of(run, place, columns=columns)
    rows = pa.record_batch({f"c{number}": pa.array([number]) for number in range(columns)})
    tasks = [task(context, run, number, [rows]) for number in range(150_000 // columns)]
    assert all(one.inline for one in tasks)
    assert sum(len(one.inline) for one in tasks) > SMALL_BATCH_BYTES
    assert len(packed(context, tasks, run.log, side_by_side=4).segments) == 1


@pytest.mark.parametrize(("constant", "parts"), [(range(6), 4), (range(6, 60), 1)])
def test_partitions_that_differ_are_estimated_by_all_parts_of_the_batch(
    run: Run, place: Place, constant: range, parts: int
) -> None:
    context, size = context_of(run, place), 240 << 10
    tasks = [
        task(context, run, number, [pa.record_batch({"c0": [b"a" * size if number in constant else os.urandom(size)]})])
        for number in range(60)
    ]
    assert len(packed(context, tasks, run.log, side_by_side=4).segments) == parts


@pytest.mark.parametrize(("repeats", "parts"), [(1, 8), (2, 4), (3, 1), (8, 1)])
def test_rows_are_divided_by_their_bytes_in_segments(run: Run, place: Place, repeats: int, parts: int) -> None:
    """The driver delivers up to 4 MiB of Parquet, and parts of less than 1 MiB are not worth a request each."""
    context, size = context_of(run, place), (250 << 10) // repeats
    tasks = [
        task(context, run, number, [pa.record_batch({"c0": [os.urandom(size) * repeats]})]) for number in range(40)
    ]
    staged = packed(context, tasks, run.log, side_by_side=40)
    assert len(staged.segments) == parts
    assert sum(ref.rows for ref in staged.segments) == 40


# Requests, and two-phase sinks.


def stage_inline(place: Place, run: Run, partitions: Sequence[pa.Table]) -> Manifest:
    query = place.query()
    query.start_batch(0, 0)
    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    place.requests.clear()
    staged: Staged = stage_tables(run, attempt, partitions, inline_bytes=BUDGET)
    manifest = run.end_staging(attempt, staged)
    query.complete_batch(0)
    return manifest


def test_a_two_phase_sink_prepares_packed_rows_when_they_are_delivered() -> None:
    place, vault = Place(), Vault()
    run = place.open({"a": VaultSink(vault)})
    large = numbers(1, 40_000)
    manifest = stage_inline(place, run, [numbers(0, 3), large, numbers(2, 2)])
    first, second, third = manifest.prepared["a"]
    assert (first, third) == (None, None)
    assert second is not None
    assert len(vault.held) == 1
    run.deliver_all()
    assert shown(vault) == sorted([*range(40_000), *range(3), *range(2)])


def test_no_rows_travel_that_the_wal_does_not_keep() -> None:
    place, vault = Place(), Vault()
    run = place.open({"a": VaultSink(vault, keep_segments=False)})
    manifest = stage_inline(place, run, [numbers(0, 3), numbers(1, 2)])
    assert [ref.kept for ref in manifest.segments] == [False, False]
    assert StagingContext("f", SegmentLimits(2, 9, 9), inline_bytes=BUDGET, keep_segments=False).inline_limit(0) == 0
    assert None not in manifest.prepared["a"]
    assert "segment" not in " ".join(place.requests)

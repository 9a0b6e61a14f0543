"""Sizes, times, windows and dollars of an estimate, against the code that they speak of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import wal_sink.stores.s3
from tests.spark.test_estimation_requests import CHUNK_ROWS, CRASHES, KEPT, KINDS, CountedQuery, Kind
from tests.support.counted_store import CountedStore
from tests.support.small_run import Place, Recorder
from wal_sink.committer.collection import COLLECT_EVERY_BATCHES
from wal_sink.errors import ConfigError
from wal_sink.estimation.estimate import CHECKPOINT_REQUESTS_OF_START, MONTH_S, estimate
from wal_sink.estimation.plan import (
    LOCAL_MODEL,
    OTHER_MODEL,
    S3_MODEL,
    Plan,
    Prices,
    Segments,
    Shape,
    StoreModel,
    shape_of,
)
from wal_sink.estimation.requests import polls_until, total
from wal_sink.estimation.sizes import manifest_bytes, marker_bytes, progress_bytes, release_bytes
from wal_sink.runtime.clock import SYSTEM
from wal_sink.runtime.task_slots import DeliverySlots
from wal_sink.settings import Settings
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.guarantees import Ability
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import Crash
from wal_sink.testing.simulation.fake_query import stage_tables
from wal_sink.wal import paths
from wal_sink.wal.segment_writer import SegmentLimits, SegmentWriter

TICK_S = 2.0**-10
TICKING = replace(S3_MODEL, write_s=TICK_S, read_s=TICK_S, bandwidth=1e18, writes_per_s=None, reads_per_s=None)
"""A store on which every request takes a millisecond, and nothing else does. So nothing becomes due by time."""


def plan_of(life: CountedQuery, **more: Any) -> Plan:
    """The plan of a query that lives as this one does."""
    return Plan(
        executors=1,
        cores_per_executor=2,
        segments=life.segments,
        rows_per_s=life.segments * life.chunks * CHUNK_ROWS,
        batch_interval_s=1,
        settings=Settings(chunk_rows=CHUNK_ROWS),
        sinks=life.sinks,
        ability=life.kind.ability,
        at_most_once=life.kind.at_most_once,
        where="driver",
        sink_call_s=0,
        inline_bytes=0,
        **more,
    )


CHUNKED = [kind for kind in KINDS if kind.ability is not Ability.BATCH_WRITER]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_chunked_kind = pytest.mark.parametrize("kind", CHUNKED, ids=str)


# --- sizes


@pytest.mark.parametrize(("segments", "columns"), [(1, 1), (1, 30), (100, 10), (5000, 1)])
def test_a_manifest(segments: int, columns: int) -> None:
    place = Place()
    table = pa.table({f"column_{number}": ["a"] * 5 for number in range(columns)})
    run = place.open({"sink": Recorder()})
    query = place.query()
    query.start_batch(0, 0)
    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    tables = stage_tables(run, attempt, [table] * segments)
    compact = json.dumps(json.loads(tables.spark_schema), separators=(",", ":"))  # as Spark's own is
    staged = run.end_staging(attempt, replace(tables, spark_schema=compact))
    (name,) = [name for name in place.wal.list(paths.batch(0)) if name.startswith("manifest")]

    plan = Plan(1, columns=columns, offsets_bytes=len(staged.offsets), settings=Settings(chunk_rows=2))
    first = staged.segments[0]
    shape = Shape((Segments(segments, 3, rows_each=5, rows_per_chunk=2, bytes_each=first.bytes),))
    real = len(place.wal.read(f"{paths.batch(0)}/{name}"))
    assert manifest_bytes(plan, shape) == pytest.approx(real, rel=0.03)


def test_a_manifest_that_names_the_ends_of_its_chunks() -> None:
    shape = shape_of(Plan(1, row_bytes=100_000, rows_per_s=100_000))
    (uneven,) = shape.groups
    assert uneven.uneven
    plain = Shape((replace(uneven, uneven=False),))
    each_end = len("335,")
    more = manifest_bytes(Plan(1), shape) - manifest_bytes(Plan(1), plain)
    assert more > shape.chunks * each_end


def test_small_records() -> None:
    life = CountedQuery(KINDS[0], segments=2, chunks=1)
    life.live(life.open(), 1)
    sizes = {
        release_bytes(): paths.release(1),
        progress_bytes(): paths.progress("sink-0", 1, 0, CHUNK_ROWS),
        marker_bytes(): paths.marker("sink-0", 1),
    }
    for estimated, path in sizes.items():
        assert estimated == pytest.approx(len(life.wal.read(path)), rel=0.1)


# --- shapes


def test_every_slot_stages_a_segment_unless_told_otherwise() -> None:
    assert shape_of(Plan(7, cores_per_executor=3)).segments == 21
    assert shape_of(Plan(7, segments=5)).segments == 5


def test_a_partition_without_rows_makes_no_segment() -> None:
    shape = shape_of(Plan(1, segments=500, rows_per_s=1, batch_interval_s=20, inline_bytes=0))
    assert (shape.segments, shape.rows) == (20, 20)


def test_chunks_end_by_rows_or_by_bytes() -> None:
    (rows,) = shape_of(Plan(1, cores_per_executor=1, rows_per_s=2500)).groups
    assert (rows.chunks_each, rows.rows_per_chunk, rows.uneven) == (3, 10_000, False)
    (sizes,) = shape_of(Plan(1, cores_per_executor=1, rows_per_s=2500, row_bytes=32 << 10)).groups
    assert (sizes.rows_per_chunk, sizes.uneven) == (1024, True)


def test_a_large_partition_rolls_into_as_many_segments_as_its_writer_makes() -> None:
    settings = Settings(chunk_rows=1000, segment_bytes=256 << 10)
    plan = Plan(1, segments=1, rows_per_s=20_000, row_bytes=8, compression=1, settings=settings)
    chance = SYSTEM.new_random()
    numbers = pa.array([chance.getrandbits(63) for _ in range(200_000)], pa.int64())
    store = MemoryStore(StoreSpec("memory://rolling-of-an-estimate"))
    limits = SegmentLimits(settings.chunk_rows, settings.chunk_bytes, settings.segment_bytes)
    with SegmentWriter(store, folder="f", partition=0, limits=limits, new_id=SYSTEM.new_id) as writer:
        writer.write(pa.record_batch([numbers], names=["c0"]))
        written = writer.finish()
    assert shape_of(plan).segments == len(written) > 1


# --- how many at once, and what a crash repeats


def test_so_many_segments_at_once_as_delivery_gets_slots() -> None:
    slots = DeliverySlots(lambda: 4 * 10 - 1)
    with slots.taken(500, should_stop=lambda: False) as granted:
        assert estimate(Plan(10, segments=500, where="executors"), S3_MODEL).delivery_tasks == granted
    assert estimate(Plan(10, segments=3, where="executors"), S3_MODEL).delivery_tasks == 3
    few = Settings(max_delivery_tasks=8)
    assert estimate(Plan(10, segments=500, where="executors", settings=few, sinks=2), S3_MODEL).delivery_tasks == 4


def test_a_short_delivery_of_one_sink_gets_all_slots_so_that_much_may_repeat() -> None:
    slots = DeliverySlots(lambda: 4 * 10 - 1, lambda: 4 * 10)
    with slots.taken(500, should_stop=lambda: False, work_s=44) as granted:
        assert granted == 40
        for sinks in (1, 2, 4):
            found = estimate(Plan(10, segments=500, rows_per_s=10_000, sinks=sinks), S3_MODEL)
            (group,) = found.shape.groups
            assert found.repeated_rows == granted * group.rows_per_chunk == 80_000
    few = Settings(max_delivery_tasks=8)
    found = estimate(Plan(10, segments=500, rows_per_s=10_000, settings=few, threads_per_task=2), S3_MODEL)
    assert found.repeated_rows == 8 * 2 * found.shape.groups[0].rows_per_chunk


def test_the_largest_chunks_may_be_those_that_repeat() -> None:
    found = estimate(Plan(10, segments=500, settings=Settings(chunk_rows=50_000)), S3_MODEL)
    packed, alone = found.shape.groups
    assert packed.rows_per_chunk > 10 * alone.rows_per_chunk
    assert found.repeated_rows == packed.count * packed.rows_per_chunk + (40 - packed.count) * alone.rows_per_chunk


def test_each_thread_of_a_task_sends_a_segment_at_once() -> None:
    threads = Plan(2, segments=500, rows_per_s=100_000, where="executors", threads_per_task=4)
    assert estimate(threads, S3_MODEL).delivery_tasks == 7 * 4
    assert estimate(replace(threads, segments=20), S3_MODEL).delivery_tasks == 20
    assert estimate(threads, S3_MODEL).delivery_s < estimate(replace(threads, threads_per_task=1), S3_MODEL).delivery_s
    assert (
        estimate(replace(threads, where="auto", segments=4, rows_per_s=1000, inline_bytes=0), S3_MODEL).delivery_tasks
        == 1
    )


@pytest.mark.parametrize(
    "wrong", [{"where": "driver"}, {"ability": Ability.BATCH_WRITER}, {"threads_per_task": 17}, {"threads_per_task": 0}]
)
def test_threads_are_refused_where_a_delivery_would_refuse_them(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="threads_per_task="):
        Plan(**{"executors": 1, "threads_per_task": 2, **wrong})


def test_small_batches_go_one_segment_after_the_other_through_the_driver() -> None:
    small = Plan(1, segments=4, rows_per_s=1000, inline_bytes=0)
    assert estimate(small, S3_MODEL).delivery_tasks == 1
    assert estimate(replace(small, where="executors"), S3_MODEL).delivery_tasks == 3
    assert estimate(replace(small, rows_per_s=10_000), S3_MODEL).delivery_tasks == 3
    assert estimate(replace(small, segments=16), S3_MODEL).delivery_tasks == 1
    assert estimate(replace(small, segments=17), S3_MODEL).delivery_tasks == 3


@each_chunked_kind
def test_a_crash_repeats_or_loses_what_the_window_says(kind: Kind) -> None:
    """The worst moment: the target has the chunk (the segment), and nothing tells."""
    life = CountedQuery(kind, segments=3, chunks=4)
    run = life.open()
    life.live(run, 0)
    taken: list[str] = []
    (target,) = life.targets
    take = target.take

    def take_and_die(chunk: Chunk) -> None:
        take(chunk)
        taken.append(chunk.key)
        if len(taken) == 4 and not kind.at_most_once:
            raise Crash(chunk.key)

    target.take = take_and_die
    if kind.at_most_once:
        target.dies_at = target.taken + 3
    with pytest.raises(Crash):
        life.live(run, 1)
    target.dies_at = None
    life.open().deliver_all()

    window = estimate(plan_of(life), S3_MODEL).repeated_rows
    repeated = (len(taken) - len(set(taken))) * CHUNK_ROWS
    missing = 3 * 4 * CHUNK_ROWS - len(set(taken)) * CHUNK_ROWS
    if kind.at_most_once:
        assert (repeated, missing) == (0, window)
    elif kind.ability in {Ability.IGNORE_KNOWN_KEYS, Ability.TRANSACTIONAL}:
        assert window == 0  # a repeat has no effect; the ledger has its position and gets none
    elif kind.ability is Ability.LOOK_UP:
        assert window == CHUNK_ROWS  # of a late request or a fenced process only
    else:
        assert (repeated, missing) == (window, 0)


def test_a_whole_batch_writer_repeats_the_batch() -> None:
    found = estimate(Plan(2, ability=Ability.BATCH_WRITER), S3_MODEL)
    assert found.repeated_rows == found.shape.rows == 20_000
    assert found.delivery_tasks == 7


# --- times


@each_kind
@pytest.mark.parametrize(("segments", "chunks"), [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_a_delivery_in_the_driver_takes_its_requests_one_after_the_other(
    kind: Kind, segments: int, chunks: int
) -> None:
    life = CountedQuery(kind, segments, chunks)
    run = life.open()
    life.live(run, 1)
    requests = total(life.live(run, 2)).total
    staging = segments + 1
    plan = plan_of(life)

    found = estimate(plan, TICKING).delivery_s

    if kind.ability is Ability.BATCH_WRITER:  # executors read the segments for it, at least one at a time
        assert found == pytest.approx((requests - staging) * TICK_S + 0.11)
    else:
        assert found == pytest.approx((requests - staging) * TICK_S)


@each_chunked_kind
@pytest.mark.parametrize(("segments", "chunks", "dies_at"), CRASHES)
def test_a_restart_takes_no_longer_than_estimated(kind: Kind, segments: int, chunks: int, dies_at: int) -> None:
    life = CountedQuery(kind, segments, chunks)
    run = life.open()
    life.live(run, 1)
    (target,) = life.targets
    target.dies_at = target.taken + dies_at
    with pytest.raises(Crash):
        life.live(run, 2)
    target.dies_at = None
    life.store.taken()
    life.checkpoint.taken()

    life.open().deliver_all()

    took = total(life.store.taken()).total + total(life.checkpoint.taken()).total
    found = estimate(plan_of(life), TICKING).restart_s / TICK_S
    assert took <= found <= 2.5 * took


def test_reads_of_the_checkpoint_at_a_start() -> None:
    life = CountedQuery(KINDS[0], segments=2, chunks=1)
    life.live(life.open(), 1)
    life.checkpoint.taken()
    life.open().deliver_all()
    assert total(life.checkpoint.taken()).total <= CHECKPOINT_REQUESTS_OF_START


def test_more_batches_that_wait_make_a_restart_longer() -> None:
    none, one, three = (estimate(Plan(10, pending_batches=count), S3_MODEL).restart_s for count in (0, 1, 3))
    assert none < one
    assert three - one > 2 * (estimate(Plan(10), S3_MODEL).delivery_s)


def test_a_delivery_is_never_faster_than_the_limits_let_it() -> None:
    plan = Plan(10_000, sink_call_s=0, where="executors")
    unlimited = replace(S3_MODEL, writes_per_s=None, reads_per_s=None)
    assert estimate(plan, unlimited).delivery_s < 40_000 / 5500 < estimate(plan, S3_MODEL).delivery_s
    writing = Plan(250, segments=1000, sink_call_s=0, where="executors", rows_per_s=1, inline_bytes=0)
    slow = replace(S3_MODEL, writes_per_s=10)
    assert estimate(writing, slow).delivery_s > 1000 / 10  # beside one another, in one folder
    assert 4000 / 16 / 10 < estimate(replace(writing, segments=4000, rows_per_s=16), slow).delivery_s < 1000 / 10


def test_polls_double_their_pauses() -> None:
    """Asked after 0.02, 0.03, 0.05, 0.09, 0.17, 0.33, 0.65, 1.29, 2.29 and 3.29 s."""
    assert [polls_until(delay, 0.02, 1.0) for delay in (0, 0.02, 0.021, 0.04, 0.44, 3)] == [1, 1, 2, 3, 7, 10]


# --- limits and dollars


def test_dollars_of_the_smallest_batch() -> None:
    """By hand: 4 PUT, 2 GET, a sixteenth of a collection, and reads of the checkpoint."""
    found = estimate(Plan(1, segments=1, rows_per_s=10), S3_MODEL)
    batches = MONTH_S / 10
    sixteenth = 1 / COLLECT_EVERY_BATCHES
    puts_and_lists = 4 + sixteenth * (1 + 2 + 3 + 3 + 1 + 1 + 16 + 1)
    gets = 2 + sixteenth * (1 + 2) + found.checkpoint_gets
    assert found.dollars is not None
    assert found.dollars.requests == pytest.approx(batches * (puts_and_lists * 5e-6 + gets * 4e-7))


def test_dollars_of_storage() -> None:
    """A gigabyte in every batch, and the batches of the retention and half of those between two collections."""
    large = Settings(chunk_rows=2**30, chunk_bytes=2**30)
    plan = Plan(1, segments=1, rows_per_s=2**30 / 10, row_bytes=1, compression=1, settings=large)
    found = estimate(plan, S3_MODEL)
    assert found.dollars is not None
    assert found.dollars.storage == pytest.approx(208 * 0.023, rel=0.01)
    assert found.dollars.total == found.dollars.storage + found.dollars.requests


def test_what_is_stored_on_average() -> None:
    life = CountedQuery(KINDS[0], segments=3, chunks=4)
    run = life.open()
    life.live(run, KEPT - 1 + COLLECT_EVERY_BATCHES)
    samples = [
        sum(len(life.wal.read(name)) for name in life.wal.list("", recursive=True))
        for _ in life.batches(run, KEPT - 1 + 2 * COLLECT_EVERY_BATCHES)
    ]
    offsets = len(life.files.read("offsets/1"))
    plan = plan_of(life, columns=1, offsets_bytes=offsets)
    (name, *_) = [name for name in life.wal.list("", recursive=True) if name.endswith(".parquet")]
    stored_row = len(life.wal.read(name)) / (life.chunks * CHUNK_ROWS)
    kept = replace(plan, row_bytes=stored_row, compression=1)
    object.__setattr__(kept.settings, "retention_batches", KEPT)
    assert estimate(kept, S3_MODEL).stored_bytes == pytest.approx(sum(samples) / len(samples), rel=0.1)


@pytest.mark.parametrize("store", [LOCAL_MODEL, OTHER_MODEL])
def test_a_store_without_prices_and_limits(store: StoreModel) -> None:
    found = estimate(Plan(100), store)
    assert found.dollars is None
    assert (found.busiest.share, found.whole.share, found.burst_s) == (None, None, 0)


def test_rates_under_a_prefix() -> None:
    found = estimate(Plan(10_000), S3_MODEL)
    loads = {load.prefix: load for load in found.prefixes}
    every_s = 10
    collected = paths.SPREAD_FROM + 2  # objects of a batch below its folder: as many are deleted as are made
    in_shard = (40_000 - paths.SPREAD_FROM) / paths.SHARDS
    assert loads["batches/"].writes_per_s == pytest.approx(2 * collected / every_s)
    assert loads["batches/<shard>/"].writes_per_s == pytest.approx(2 * in_shard / every_s)
    assert loads["sinks/<name>/"].writes_per_s == pytest.approx(2 / every_s)
    progress = "sinks/<name>/progress/<shard>/"
    assert loads[progress].writes_per_s == pytest.approx(2 * 40_000 / paths.SHARDS / every_s)
    assert found.burst_s == pytest.approx(in_shard / 3500)
    assert found.busiest.prefix == "terms/committer-<name>/"
    assert found.busiest.share == pytest.approx(40_000 / every_s / 5500, rel=0.001)
    twice = estimate(Plan(10_000, sinks=2), S3_MODEL)
    assert {load.prefix: load.writes_per_s for load in twice.prefixes}[progress] == pytest.approx(
        loads[progress].writes_per_s
    )


@pytest.mark.parametrize("ability", [Ability.ACCEPT, Ability.TRANSACTIONAL])
def test_a_segment_for_each_slot_of_10000_executors_stays_below_every_limit_of_a_prefix(ability: Ability) -> None:
    found = estimate(Plan(10_000, ability=ability), S3_MODEL)
    assert 0.5 < (found.busiest.share or 0) < 0.8
    assert all((load.share or 0) < 0.15 for load in found.prefixes[1:-1])


def test_up_to_where_batches_are_spread_nothing_is_in_shards() -> None:
    """The largest batch that is as if there were none, and the next."""
    slots = paths.SPREAD_FROM // 4
    assert not [load for load in estimate(Plan(slots), S3_MODEL).prefixes if "shard" in load.prefix]
    assert len([load for load in estimate(Plan(slots + 1), S3_MODEL).prefixes if "shard" in load.prefix]) == 2


def test_partitions_that_roll_over_are_spread_by_partition() -> None:
    shape = shape_of(Plan(1, segments=1030, rows_per_s=3e9, settings=Settings(segment_bytes=1 << 20)))
    (group,) = shape.groups
    assert group.files_per_partition > 1
    assert group.partitions == range(1030)
    assert shape.spread_segments == 6 * group.files_per_partition


def test_of_a_collection_shards_are_deleted_from_side_by_side() -> None:
    spread = estimate(Plan(10_000), S3_MODEL)
    deleted = 2 * 40_000 * COLLECT_EVERY_BATCHES
    assert spread.collection_s < deleted / 3500 < spread.collection_s * 1.5


def test_a_page_is_as_large_as_the_store_asks_for() -> None:
    assert S3_MODEL.page == wal_sink.stores.s3._PAGE


# --- what cannot be


@pytest.mark.parametrize(
    "wrong",
    [
        {"executors": 0},
        {"segments": 0},
        {"batch_interval_s": 0},
        {"row_bytes": -1},
        {"rows_per_s": 0},
        {"compression": float("nan")},
        {"sinks": 0},
        {"pending_batches": -1},
        {"sink_call_s": float("inf")},
        {"at_most_once": True, "ability": Ability.TRANSACTIONAL},
        {"at_most_once": True, "ability": Ability.BATCH_WRITER},
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Plan(**{"executors": 1, **wrong})


def test_a_store_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="read_s=-1"):
        replace(S3_MODEL, read_s=-1)
    with pytest.raises(ConfigError, match="gb_month"):
        Prices(0, 0, 0, -1, as_of="")


def test_the_counting_store_counts_nothing_that_was_taken() -> None:
    store = CountedStore(MemoryStore(StoreSpec("memory://counting-of-an-estimate")), S3_MODEL)
    store.create("batches/x", b"")
    store.delete(["batches/x"])
    assert total(store.taken()).total == 2
    store.delete([])
    assert total(store.taken()).total == 0


def test_a_two_phase_sink_is_refused_by_name() -> None:
    """Its requests depend on the target, and those of a plain sink would be too few."""
    with pytest.raises(ConfigError, match="requests of a two-phase sink"):
        Plan(1, ability=Ability.TWO_PHASE)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, 200),
        ({"retention_age_s": 10.0}, 200),
        ({"retention_age_s": 86_400.0}, 8_640),
        ({"retention_bytes": 1_000 << 30}, 1_000),
        ({"retention_age_s": 86_400.0, "retention_bytes": 1_000 << 30}, 1_000),
    ],
)
def test_age_and_bytes_of_the_retention_are_part_of_what_is_stored(limits: Any, kept: int) -> None:
    settings = Settings(chunk_rows=2**30, chunk_bytes=2**30, **limits)
    plan = Plan(1, segments=1, rows_per_s=2**30 / 10, row_bytes=1, compression=1, settings=settings)

    found = estimate(plan, S3_MODEL)

    assert found.stored_bytes == pytest.approx((kept + 8) * found.shape.bytes, rel=0.01)
    assert found.dollars is not None

"""Estimate of a plan on a store: requests, dollars, rates against limits, and durations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from wal_sink.committer.collection import COLLECT_EVERY_BATCHES
from wal_sink.delivery.local import SMALL_BATCH_SEGMENTS
from wal_sink.estimation import sizes
from wal_sink.estimation.plan import Plan, Segments, Shape, StoreModel, shape_of
from wal_sink.estimation.requests import (
    SHARDS_OF_BATCHES,
    SHARDS_OF_SINKS,
    TERMS,
    Pace,
    Protocol,
    Requests,
    Traffic,
    checkpoint_gets,
    joined,
    polls_until,
    scaled,
    total,
)
from wal_sink.lifecycle.committer_thread import FIRST_POLL_S, LONGEST_POLL_S
from wal_sink.messages import SMALL_BATCH_BYTES
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths

_WITHOUT_RECORDS = {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}
MONTH_S = 730 * 3600
JOB_S = 0.11
"""Seconds of a Spark job that does nothing but start (measured). A batch delivered on executors takes one job."""
COMMIT_S = 0.04
"""Seconds from the end of staging to Spark's `commits/N`, without four requests of its store (assumed; local: 38 to 81
ms).
"""
CHECKPOINT_REQUESTS_OF_START = 5
OF_TAKEOVER = 6
"""Number of reads for a batch that another run began: release, manifest, marker, later markers, dead letters, and the
check for a newer process before the first send. A normal batch does not need this check in the driver.
"""


@dataclass(frozen=True, slots=True)
class PrefixLoad:
    """Average load of one prefix."""

    prefix: str
    writes_per_s: float
    """PUT requests, and every object that a delete names."""
    reads_per_s: float
    """GET requests and listings."""
    share: float | None
    """Share of the store's limit for a prefix, of `limited` requests. None: the store has no limit."""
    limited: str
    """`writes` or `reads`, the one closer to its limit. Empty: the store has no limit."""


@dataclass(frozen=True, slots=True)
class Dollars:
    """Costs of a month of 730 hours, in US dollars."""

    requests: float
    storage: float

    @property
    def total(self) -> float:
        return self.requests + self.storage


@dataclass(frozen=True, slots=True)
class Estimate:
    """Result of an estimate. `plan` and `store` are its input."""

    plan: Plan
    store: StoreModel
    shape: Shape
    requests: Requests
    """Requests to the WAL for a batch, including its share of a collection."""
    checkpoint_gets: float
    """Reads of the checkpoint for a batch, without Spark's own requests."""
    dollars: Dollars | None
    """Costs; None: no prices are known."""
    stored_bytes: float
    """Average bytes in the WAL."""
    prefixes: tuple[PrefixLoad, ...]
    """Load by prefix, the one closest to its limit first. The last one is the whole WAL, as one prefix."""
    burst_s: float
    """Seconds that the store needs, at its limit, for the segments that tasks end at the same time."""
    manifest_bytes: int
    delivery_tasks: int
    """Number of segments that are delivered to a sink at the same time, if all sinks deliver at once and for long."""
    repeated_rows: int
    """Maximum rows that a crash, a takeover or a retry may repeat in one sink. With `at_most_once`: rows that may be
    missing.
    """
    delivery_s: float
    """Seconds from the open gate of a batch to its marker, for one sink."""
    collection_s: float
    """Seconds of one collection, which delays its sink's deliveries, once in `COLLECT_EVERY_BATCHES` batches."""
    restart_s: float
    """Maximum seconds from opening the WAL to the start of the query, without Spark's own start. Remaining batches are
    delivered before it.
    """

    @property
    def busiest(self) -> PrefixLoad:
        """The prefix closest to its limit."""
        return self.prefixes[0]

    @property
    def whole(self) -> PrefixLoad:
        """The WAL as one prefix, as long as S3 has not split it."""
        return self.prefixes[-1]

    @property
    def busy(self) -> float:
        """Share of the time that delivery to a sink takes. Above 1, delivery falls behind."""
        return (self.delivery_s + self.collection_s / COLLECT_EVERY_BATCHES) / self.plan.batch_interval_s


def estimate(plan: Plan, store: StoreModel) -> Estimate:
    """Calculate the estimate. Sends no request to any store."""
    shape = shape_of(plan)
    tasks = _tasks(plan, shape)
    retention, pace = _retained(plan, shape), _pace(plan, shape, store, tasks)
    limited = (plan.settings.retention_age_s, plan.settings.retention_bytes) != (None, None)
    protocol = Protocol(store, plan.ability, plan.at_most_once, plan.sinks, retention, pace, limited)
    collection = protocol.of_collection(shape)
    traffic = joined(protocol.of_batch(shape), scaled(collection, 1 / COLLECT_EVERY_BATCHES))
    polls = polls_until(COMMIT_S + 4 * store.write_s, FIRST_POLL_S, LONGEST_POLL_S)
    from_checkpoint = checkpoint_gets(plan.sinks, polls)
    stored = _stored_bytes(plan, shape, protocol)
    delivery_s = _delivery_s(plan, shape, store, protocol, tasks)
    return Estimate(
        plan=plan,
        store=store,
        shape=shape,
        requests=total(traffic),
        checkpoint_gets=from_checkpoint,
        dollars=_dollars(plan, store, total(traffic) + Requests(gets=from_checkpoint), stored),
        stored_bytes=stored,
        prefixes=_prefixes(plan, store, traffic),
        burst_s=_burst_s(plan, shape, store),
        manifest_bytes=sizes.manifest_bytes(plan, shape),
        delivery_tasks=tasks,
        repeated_rows=_repeated_rows(plan, shape),
        delivery_s=delivery_s,
        collection_s=_collection_s(store, collection),
        restart_s=_restart_s(plan, shape, store, protocol, tasks=tasks, delivery_s=delivery_s),
    )


def _dollars(plan: Plan, store: StoreModel, of_batch: Requests, stored_bytes: float) -> Dollars | None:
    if store.prices is None:
        return None
    prices, batches = store.prices, MONTH_S / plan.batch_interval_s
    puts = (of_batch.puts + of_batch.lists) * prices.per_1000_puts
    gets = of_batch.gets * prices.per_1000_gets
    deletes = of_batch.deletes * prices.per_1000_deletes
    return Dollars((puts + gets + deletes) / 1000 * batches, stored_bytes / 2**30 * prices.gb_month)


def _retained(plan: Plan, shape: Shape) -> int:
    """Batches that are kept after their delivery: what a roll-back needs, and as many more as age and bytes permit."""
    settings, limits = plan.settings, []
    if settings.retention_age_s is not None:
        limits.append(settings.retention_age_s / plan.batch_interval_s)
    if settings.retention_bytes is not None and shape.bytes:
        limits.append(settings.retention_bytes / shape.bytes)
    return max(settings.retention_batches, math.ceil(min(limits, default=0)))


def _stored_bytes(plan: Plan, shape: Shape, protocol: Protocol) -> float:
    """Average bytes in the WAL. Batches stay until a collection: on average the retention and half of the batches
    between two collections.
    """
    kept = protocol.retention_batches + COLLECT_EVERY_BATCHES / 2
    of_sink = protocol.records(shape) * sizes.progress_bytes() + sizes.marker_bytes()
    of_batch = shape.bytes + sizes.manifest_bytes(plan, shape) + sizes.release_bytes()
    return kept * (of_batch + plan.sinks * of_sink)


def _prefixes(plan: Plan, store: StoreModel, traffic: Traffic) -> tuple[PrefixLoad, ...]:
    """Load of each prefix that S3 can split: each folder and its shards; the sinks' shards separately. Batch ids only
    rise, so the newest end of a folder of batches has all its load, however often it is split.
    """
    shards = {
        f"{paths.BATCHES}/<shard>/": traffic[SHARDS_OF_BATCHES].times(1 / paths.SHARDS),
        f"{paths.SINKS}/<name>/progress/<shard>/": traffic[SHARDS_OF_SINKS].times(1 / paths.SHARDS / plan.sinks),
    }
    each = {
        **{prefix: requests for prefix, requests in shards.items() if requests != Requests()},
        f"{paths.BATCHES}/": traffic[paths.BATCHES],
        f"{paths.SINKS}/<name>/": traffic[paths.SINKS].times(1 / plan.sinks),
        f"{TERMS}/committer-<name>/": traffic[TERMS].times(1 / plan.sinks),
        f"{paths.LOW_WATER}/": traffic[paths.LOW_WATER],
    }
    loads = [_load(plan, store, prefix, requests) for prefix, requests in each.items()]
    loads.sort(key=lambda load: load.share or load.writes_per_s + load.reads_per_s, reverse=True)
    return (*loads, _load(plan, store, "the whole WAL", total(traffic)))


def _load(plan: Plan, store: StoreModel, prefix: str, of_batch: Requests) -> PrefixLoad:
    writes = (of_batch.puts + of_batch.keys_deleted) / plan.batch_interval_s
    reads = (of_batch.gets + of_batch.lists) / plan.batch_interval_s
    of_kind = (("writes", writes, store.writes_per_s), ("reads", reads, store.reads_per_s))
    shares = [(rate / limit, kind) for kind, rate, limit in of_kind if limit is not None]
    share, limited = max(shares, default=(None, ""))
    return PrefixLoad(prefix, writes, reads, share, limited)


def _tasks(plan: Plan, shape: Shape) -> int:
    """Number of segments that are delivered in parallel."""
    return _in_parallel(plan, shape, plan.delivery_slots)


def _in_parallel(plan: Plan, shape: Shape, slots: int) -> int:
    return 1 if is_in_driver(plan, shape) else min(shape.segments, slots * plan.threads_per_task)


def _pace(plan: Plan, shape: Shape, store: StoreModel, tasks: int) -> Pace:
    """The pace of delivery: a task waits for its segments and for the sink."""
    reading_s = shape.segments * store.read_s + shape.bytes / store.bandwidth
    return Pace(tasks, not is_in_driver(plan, shape), plan.sink_call_s + reading_s / shape.chunks)


def is_in_driver(plan: Plan, shape: Shape) -> bool:
    """Return whether the driver delivers, one segment after the other. A whole-batch writer reads on executors."""
    if plan.ability is Ability.BATCH_WRITER:
        return False
    is_small = shape.bytes <= SMALL_BATCH_BYTES and shape.segments <= SMALL_BATCH_SEGMENTS
    return plan.where == "driver" or (plan.where == "auto" and is_small)


def _repeated_rows(plan: Plan, shape: Shape) -> int:
    if plan.ability is Ability.BATCH_WRITER:
        return shape.rows
    tasks = _in_parallel(plan, shape, plan.most_delivery_slots)
    if plan.ability is Ability.SEGMENT_WRITER:
        return _rows_in_flight(shape, tasks, lambda group: group.rows_each)
    exact = plan.ability in {Ability.IGNORE_KNOWN_KEYS, Ability.TRANSACTIONAL} and not plan.at_most_once
    return 0 if exact else _rows_in_flight(shape, tasks, lambda group: group.rows_per_chunk)


def _rows_in_flight(shape: Shape, tasks: int, rows_of: Callable[[Segments], int]) -> int:
    """Rows that so many tasks send at the same time, if they are at the largest segments."""
    rows = 0
    for group in sorted(shape.groups, key=rows_of, reverse=True):
        of_group = min(tasks, group.count)
        rows += of_group * rows_of(group)
        tasks -= of_group
    return rows


def _delivery_s(plan: Plan, shape: Shape, store: StoreModel, protocol: Protocol, tasks: int) -> float:
    """Seconds of a delivery: term, release and marker one after the other; the segments in waves, or as fast as the
    limits allow.
    """
    calls = shape.chunks / shape.segments + (1 if plan.ability is Ability.TRANSACTIONAL else 0)
    of_segment_s = (
        store.read_s
        + protocol.checks(shape) / shape.segments * store.read_s
        + protocol.records(shape) / shape.segments * store.write_s
        + shape.bytes / shape.segments / store.bandwidth
        + calls * plan.sink_call_s
    )
    waves_s = math.ceil(shape.segments / tasks) * of_segment_s
    job_s = 0.0 if is_in_driver(plan, shape) else JOB_S
    return store.read_s + 2 * store.write_s + job_s + max(waves_s, _limited_s(store, protocol, shape))


def _limited_s(store: StoreModel, protocol: Protocol, shape: Shape) -> float:
    """Seconds that a delivery takes at the store's limits for a prefix, with any number of tasks."""
    if store.writes_per_s is None or store.reads_per_s is None:
        return 0.0
    reads = max(_under_a_prefix(shape) * protocol.sinks, protocol.checks(shape))
    writes = protocol.records(shape) / (paths.SHARDS if shape.spreads_progress else 1)
    return max(writes / store.writes_per_s, reads / store.reads_per_s)


def _under_a_prefix(shape: Shape) -> float:
    """Segments of a batch under the prefix with most of them."""
    return max(shape.segments - shape.spread_segments, shape.spread_segments / paths.SHARDS)


def _burst_s(plan: Plan, shape: Shape, store: StoreModel) -> float:
    """Seconds that the store needs, once it has split the folders, for the segments that a wave of tasks ends."""
    of_tasks = shape.of_tasks  # the driver writes the others one after the other
    if store.writes_per_s is None or not of_tasks.segments:
        return 0.0
    return _under_a_prefix(of_tasks) * min(1.0, plan.slots / of_tasks.segments) / store.writes_per_s


def _in_turn_s(store: StoreModel, requests: Requests) -> float:
    """Seconds for requests that are sent one after the other."""
    return requests.puts * store.write_s + (requests.gets + requests.lists + requests.deletes) * store.read_s


def _collection_s(store: StoreModel, collection: Traffic) -> float:
    """Seconds of a collection. Its requests are sent one after the other. Every deleted object counts against the
    limit. A request that deletes from shards names the same number of objects in each shard.
    """
    sent = total(collection)
    of_shards = collection[SHARDS_OF_BATCHES] + collection[SHARDS_OF_SINKS]
    beside = sent.keys_deleted - of_shards.keys_deleted
    deleting_s = beside / store.writes_per_s if store.writes_per_s else 0.0
    from_shards_s = of_shards.keys_deleted / paths.SHARDS / store.writes_per_s if store.writes_per_s else 0.0
    return (
        _in_turn_s(store, replace(sent, deletes=0))
        + max((sent.deletes - of_shards.deletes) * store.read_s, deleting_s)
        + max(of_shards.deletes * store.read_s, from_shards_s)
    )


def _restart_s(
    plan: Plan, shape: Shape, store: StoreModel, protocol: Protocol, *, tasks: int, delivery_s: float
) -> float:
    """Maximum seconds of a restart: as if every segment of the batch in flight had a record, and the whole batch had to
    be delivered again.
    """
    start_s = _in_turn_s(store, total(protocol.of_start()) + Requests(gets=CHECKPOINT_REQUESTS_OF_START))
    if plan.pending_batches == 0:
        return start_s
    records = protocol.records(shape)
    begun = min(records, shape.segments)
    lost = shape.segments if plan.at_most_once else 0  # read, check for a rejection, keep as a dead letter
    # A task looks for dead letters: of the first chunk of each segment, or of every chunk that may have been sent.
    doubted = math.ceil((shape.chunks if protocol.looks_by_time else shape.segments) / tasks)
    listed = 0 if plan.ability in _WITHOUT_RECORDS else protocol.progress_listings(shape, records)
    taking_over = Requests(puts=lost, gets=OF_TAKEOVER + begun + 2 * lost + doubted, lists=listed)
    manifest_s = sizes.manifest_bytes(plan, shape) / store.bandwidth
    later_s = (plan.pending_batches - 1) * (2 * store.read_s + manifest_s + delivery_s)
    return start_s + _in_turn_s(store, taking_over) + manifest_s + delivery_s + later_s

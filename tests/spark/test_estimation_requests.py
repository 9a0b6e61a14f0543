"""The requests an estimate counts are those that the production core sends: it runs here, over a store that counts."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

import wal_sink.committer.collection
import wal_sink.spark.session.cluster
from tests.simulation.histories.lives import lower_retention
from tests.support.counted_store import CountedStore
from tests.support.servers.s3_server import S3Server
from wal_sink.committer.collection import COLLECT_EVERY_BATCHES
from wal_sink.delivery.local import carry_out
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.estimation import requests as counting
from wal_sink.estimation.plan import INLINE_BYTES, S3_MODEL, Plan, Segments, Shape, StoreModel, shape_of
from wal_sink.estimation.requests import Done, Pace, Protocol, Requests, Traffic, joined, total
from wal_sink.lifecycle.run import Run
from wal_sink.messages import DeliveryContext, SegmentResult, SegmentTask
from wal_sink.runtime.timed_calls import DirectCall
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, ReleasedBatch, SegmentSink, Sink, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.guarantees import Ability
from wal_sink.spark.delivery.executors import shared_out
from wal_sink.stores.base import Store
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import Crash, FakeQuery, simulated_runtime
from wal_sink.testing.simulation.fake_query import stage_tables
from wal_sink.testing.simulation.served import served_sink
from wal_sink.two_phase.prepare import packed, stage_partition
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest
from wal_sink.wal.segment_reader import load_segment

KEPT = 4
CHUNK_ROWS = 2
_numbers = itertools.count()


class Taker(Sink):
    """Takes everything; dies instead of taking the chunk of this number, counted from 0."""

    def __init__(self) -> None:
        self.dies_at: int | None = None
        self.taken = 0
        self.wait: Callable[[], object] = lambda: None

    def write(self, chunk: Chunk) -> None:
        self.take(chunk)

    def take(self, chunk: Chunk) -> None:
        if self.taken == self.dies_at:
            raise Crash(chunk.key)
        self.wait()
        self.taken += 1


class Deduplicating(Taker):
    idempotent = True


class Asked(Taker):
    def was_applied(self, key: str) -> bool:
        assert key
        return False


class Ledger(Taker, TransactionalSink):
    def __init__(self) -> None:
        super().__init__()
        self.ledger: dict[str, Position] = {}

    def take(self, chunk: Chunk) -> None:
        super().take(chunk)
        self.ledger[chunk.position.slot] = chunk.position

    def last(self, slot: str) -> Position | None:
        return self.ledger.get(slot)


class WholeSegments(Taker, SegmentSink):
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        assert min(ordinal, batch_id) >= 0
        for chunk in chunks:
            self.take(chunk)


class WholeBatches(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise AssertionError(f"the dispatcher of these tests writes batch {batch.batch_id}")


@dataclass(frozen=True)
class Kind:
    ability: Ability
    make: Callable[[], Any]
    at_most_once: bool = False

    def __str__(self) -> str:
        return f"{self.ability.value}{', at most once' if self.at_most_once else ''}"


KINDS = [
    Kind(Ability.ACCEPT, Taker),
    Kind(Ability.ACCEPT, Taker, at_most_once=True),
    Kind(Ability.IGNORE_KNOWN_KEYS, Deduplicating),
    Kind(Ability.IGNORE_KNOWN_KEYS, Deduplicating, at_most_once=True),
    Kind(Ability.LOOK_UP, Asked),
    Kind(Ability.TRANSACTIONAL, Ledger),
    Kind(Ability.SEGMENT_WRITER, WholeSegments),
    Kind(Ability.BATCH_WRITER, WholeBatches),
]


@dataclass
class InShares:
    """Delivers as executors do, but one task after the other."""

    target: Any
    log: Log
    tasks: int
    whole_batch = False

    def deliver(
        self, given: DeliveryContext, manifest: Manifest, tasks: Sequence[SegmentTask], *, confirm: bool
    ) -> list[SegmentResult]:
        shares = [(share, None) for share in shared_out(tasks, self.tasks)]
        confirming = [((), manifest.segments)] if confirm else []
        return [
            result
            for share, confirms in [*shares, *confirming]
            for result in carry_out(
                given, share, lambda: self.target, DirectCall(), self.log, on_executor=True, confirms=confirms
            )
        ]


@dataclass
class CountedQuery:
    """A WAL and a checkpoint in memory, and the runs on them, whose requests are counted."""

    kind: Kind
    segments: int
    chunks: int
    sinks: int = 1
    model: StoreModel = S3_MODEL
    writer_dies_at: int | None = None
    """The batch in which a writer of whole batches dies, once it has read the rows."""
    pace: Pace = field(default_factory=Pace)
    """How long the sink takes for a chunk, and what delivers. A request takes no time."""
    settings: Settings = field(default_factory=lambda: lower_retention(KEPT))
    wal: Store = field(default_factory=lambda: MemoryStore(StoreSpec(f"memory://counted-{next(_numbers)}/wal")))

    def __post_init__(self) -> None:
        self.files = MemoryStore(StoreSpec(f"memory://counted-{next(_numbers)}/checkpoint"))
        self.store = CountedStore(self.wal, self.model)
        self.checkpoint = CountedStore(self.files, self.model)
        self.query = FakeQuery(self.files, lambda _, __: [self.table()] * self.segments)
        self.targets = [self.kind.make() for _ in range(self.sinks)]

    @property
    def shape(self) -> Shape:
        rows = self.chunks * CHUNK_ROWS
        return Shape((Segments(self.segments, self.chunks, rows, CHUNK_ROWS, bytes_each=0),))

    @property
    def protocol(self) -> Protocol:
        return Protocol(self.model, self.kind.ability, self.kind.at_most_once, self.sinks, KEPT, self.pace)

    def table(self) -> pa.Table:
        return pa.table({"number": pa.array(range(self.chunks * CHUNK_ROWS), pa.int64())})

    def open(self) -> Run:
        runtime = simulated_runtime(seed=next(_numbers))
        for target in self.targets if self.pace.chunk_s else ():
            target.wait = lambda: runtime.sleep_s(self.pace.chunk_s)
        run = Run(self.store, self.checkpoint, self.settings, runtime=runtime)
        run.open([self._served_sink(run, f"sink-{number}", target) for number, target in enumerate(self.targets)])
        run.become_stager()
        return run

    def batches(self, run: Run, through: int) -> Iterator[int]:
        """Batches up to one, each staged, completed and delivered."""
        for batch_id in self.query.batches(run, through + 1):
            run.deliver_all()
            yield batch_id

    def live(self, run: Run, through: int) -> Traffic:
        """The same, and what they asked of the WAL."""
        self.store.taken()
        self.checkpoint.taken()
        assert list(self.batches(run, through))
        return self.store.taken()

    def _served_sink(self, run: Run, name: str, target: Any) -> ServedSink:
        delivery = Delivery(target, guarantee="at_most_once" if self.kind.at_most_once else None)
        served = served_sink(name, target, delivery, run.log, write_batch=self._reading_once(run))
        kept = served.promise
        assert (kept.ability, kept.at_most_once) == (self.kind.ability, self.kind.at_most_once)
        if not self.pace.on_executors:
            return served
        return replace(served, dispatcher=InShares(target, run.log, self.pace.tasks))

    def _reading_once(self, run: Run) -> Callable[[DeliveryContext, Manifest], object]:
        """Requests to the WAL of a writer that evaluates its DataFrame once."""

        def write(_: DeliveryContext, manifest: Manifest) -> None:
            for segment in manifest.segments:
                load_segment(run.log.store, segment)
            if manifest.batch_id == self.writer_dies_at:
                raise Crash("in the writer")

        return write


def plain(traffic: Traffic) -> dict[str, Requests]:
    """The traffic without folders that got no request."""
    return {folder: requests for folder, requests in sorted(traffic.items()) if requests != Requests()}


@pytest.fixture(autouse=True)
def _few_low_waters(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the second collection already is as all later ones are, and deletes the oldest low water."""
    monkeypatch.setattr(wal_sink.committer.collection, "KEPT_LOW_WATERS", 1)
    monkeypatch.setattr(counting, "KEPT_LOW_WATERS", 1)


def spread_from_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of partition 2 and later ones lie in shards, and so does the progress of 3 chunks or more."""
    monkeypatch.setattr(paths, "SPREAD_FROM", 2)


each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_shape = pytest.mark.parametrize(("segments", "chunks"), [(1, 1), (1, 4), (3, 1), (3, 4), (8, 1), (8, 4)])


@each_kind
@each_shape
@pytest.mark.parametrize("sinks", [1, 2])
def test_a_steady_batch(kind: Kind, segments: int, chunks: int, sinks: int) -> None:
    life = CountedQuery(kind, segments, chunks, sinks)
    run = life.open()
    life.live(run, 1)

    for batch_id in (2, 3):
        assert plain(life.live(run, batch_id)) == plain(life.protocol.of_batch(life.shape))


BY_TIME = [KINDS[2], KINDS[5]]
"""Idempotent and transactional."""


@pytest.mark.parametrize("kind", BY_TIME, ids=str)
@pytest.mark.parametrize("chunk_s", [0.25, 0.375, 3])
@pytest.mark.parametrize(("segments", "chunks"), [(1, 1), (1, 16), (7, 1), (3, 3), (2, 20)])
@pytest.mark.parametrize("pace", [Pace(), Pace(1, on_executors=True), Pace(3, on_executors=True)], ids=str)
def test_a_steady_batch_of_a_sink_that_takes_its_time(
    kind: Kind, segments: int, chunks: int, chunk_s: float, pace: Pace
) -> None:
    life = CountedQuery(kind, segments, chunks, pace=replace(pace, chunk_s=chunk_s))
    run = life.open()
    life.live(run, 1)

    assert plain(life.live(run, 2)) == plain(life.protocol.of_batch(life.shape))


@pytest.mark.parametrize("kind", BY_TIME, ids=str)
@pytest.mark.parametrize("dies_at", [0, 5, 12])
@pytest.mark.parametrize("on_executors", [False, True])
def test_a_batch_of_a_sink_that_takes_its_time_is_taken_over(kind: Kind, dies_at: int, on_executors: bool) -> None:
    found, expected = take_over(kind, 1, 16, dies_at, pace=Pace(1, on_executors=on_executors, chunk_s=0.25))

    assert found == expected


class InlineQuery(FakeQuery):
    """Sends the rows of small partitions inline."""

    tables: Sequence[pa.Table] = ()

    def stage(self, run: Run, batch_id: int) -> bool:
        attempt = run.begin_staging(batch_id, planned_ms=self.planned_ms(batch_id))
        assert attempt is not None
        run.end_staging(attempt, stage_tables(run, attempt, self.tables, inline_bytes=INLINE_BYTES))
        return True


@each_kind
@pytest.mark.parametrize("partitions", [1, 200, 2_000])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_steady_batch_of_small_partitions(kind: Kind, partitions: int, chunks: int) -> None:
    rows = 10 * partitions
    life = CountedQuery(kind, segments=1, chunks=chunks)
    life.query = InlineQuery(life.files, lambda _, __: [])
    life.query.tables = [pa.table({"number": pa.array(range(10), pa.int64())})] * partitions
    life.settings = lower_retention(KEPT, chunk_rows=rows // chunks)
    run = life.open()
    life.live(run, 0)
    found = life.live(run, 1)

    settings = Settings(chunk_rows=rows // chunks)
    plan = Plan(1, segments=partitions, rows_per_s=rows, batch_interval_s=1, row_bytes=8, columns=1, settings=settings)
    assert shape_of(plan).segments == 1
    assert shape_of(plan).chunks == chunks
    assert plain(found) == plain(life.protocol.of_batch(shape_of(plan)))


def test_the_budget_of_inline_rows_is_that_of_a_usual_driver() -> None:
    assert wal_sink.spark.session.cluster._MOST_INLINE_BUDGET == INLINE_BYTES


def incompressible(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(os.urandom(8 * rows))])], ["c0"]
    )


@pytest.mark.parametrize(
    ("partitions", "rows", "slots"),
    [
        (200, 10, 4),  # one segment
        (100, 20_000, 40),  # 15 MiB: some segments, for delivery on executors
        (100, 20_000, 3),
        (300, 20_000, 8),  # the last ones exceed their share of the budget
        (1300, 1_000, 5),  # packed segments in shards
        (8, 40_000, 4),  # each is too large
    ],
)
def test_partitions_are_packed_as_calculated(partitions: int, rows: int, slots: int) -> None:
    settings = Settings()
    life = CountedQuery(KINDS[0], segments=1, chunks=1, settings=settings)
    life.query.start_batch(0, 0)
    run = life.open()
    attempt = run.begin_staging(0, planned_ms=life.query.planned_ms(0))
    assert attempt is not None
    context = run.staging_context(attempt, columns=("c0",), spark_schema="", inline_bytes=INLINE_BYTES)
    tasks = [
        stage_partition(context, [incompressible(rows)], lambda: run.log, partition=number, on_executor=True)
        for number in range(partitions)
    ]
    staged = packed(context, tasks, run.log, side_by_side=slots)

    plan = Plan(
        1, segments=partitions, rows_per_s=partitions * rows, batch_interval_s=1, row_bytes=8, columns=1,
        cores_per_executor=slots, settings=settings, compression=1,
    )  # fmt: skip
    shape = shape_of(plan)
    named = [paths.parse_segment(ref.path) for ref in staged.segments]
    assert [number for group in shape.groups for number in group.partitions] == [
        each.partition for each in named if each
    ]
    assert shape.spread_segments == sum("shard-" in ref.path for ref in staged.segments)
    assert shape.rows == pytest.approx(partitions * rows, rel=0.001)


def test_the_smallest_batch_costs_six_requests() -> None:
    life = CountedQuery(KINDS[0], segments=1, chunks=1)
    found = total(life.protocol.of_batch(life.shape))
    assert found == Requests(puts=4, gets=2)


FIRST = KEPT - 1 + COLLECT_EVERY_BATCHES
"""The batch after which the first collection comes."""


@each_kind
@pytest.mark.parametrize(("segments", "chunks", "sinks"), [(1, 1, 1), (1, 4, 2), (3, 4, 1), (3, 4, 2), (8, 1, 2)])
def test_as_many_batches_as_there_are_between_two_collections(
    kind: Kind, segments: int, chunks: int, sinks: int
) -> None:
    life = CountedQuery(kind, segments, chunks, sinks)
    run = life.open()
    life.live(run, FIRST)

    found = life.live(run, FIRST + COLLECT_EVERY_BATCHES)

    batch = life.protocol.of_batch(life.shape)
    expected = joined(*[batch] * COLLECT_EVERY_BATCHES, life.protocol.of_collection(life.shape))
    assert plain(found) == plain(expected)


@pytest.mark.parametrize("sinks", [1, 2])
def test_so_do_batches_where_the_retention_has_an_age_or_bytes(sinks: int) -> None:
    life = CountedQuery(KINDS[0], 3, 4, sinks, settings=lower_retention(KEPT, retention_bytes=1))
    run = life.open()
    life.live(run, FIRST + 3 * COLLECT_EVERY_BATCHES)  # a group is deleted in each collection from here on

    found = life.live(run, FIRST + 4 * COLLECT_EVERY_BATCHES)

    protocol, batch = replace(life.protocol, makes_milestones=True), life.protocol.of_batch(life.shape)
    expected = joined(*[batch] * COLLECT_EVERY_BATCHES, protocol.of_collection(life.shape))
    assert plain(found) == plain(expected)


@pytest.mark.parametrize("page", [3, 5, 7, None])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[5]], ids=str)
def test_listings_and_deletes_by_the_page(kind: Kind, page: int | None) -> None:
    life = CountedQuery(kind, segments=8, chunks=4, model=replace(S3_MODEL, page=page))
    run = life.open()
    life.live(run, FIRST)

    found = life.live(run, FIRST + COLLECT_EVERY_BATCHES)

    batch = life.protocol.of_batch(life.shape)
    expected = joined(*[batch] * COLLECT_EVERY_BATCHES, life.protocol.of_collection(life.shape))
    assert plain(found) == plain(expected)


@each_kind
@pytest.mark.parametrize("sinks", [1, 2])
def test_a_start_that_finds_nothing_to_deliver(kind: Kind, sinks: int) -> None:
    life = CountedQuery(kind, segments=3, chunks=2, sinks=sinks)
    life.live(life.open(), FIRST)
    life.store.taken()

    life.open().deliver_all()

    assert plain(life.store.taken()) == plain(life.protocol.of_start())


@each_kind
@pytest.mark.parametrize("shape", [(20, 2, 2, 1000), (35, 1, 1, 2), (1, 4, 1, 2)])
def test_a_large_batch_in_shards_and_its_collection(
    kind: Kind, shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, chunks, sinks, page = shape
    spread_from_2(monkeypatch)
    often = 2
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", often)
    monkeypatch.setattr(counting, "COLLECT_EVERY_BATCHES", often)
    life = CountedQuery(kind, segments, chunks, sinks, model=replace(S3_MODEL, page=page))
    run = life.open()
    life.live(run, KEPT - 1 + often)

    found = life.live(run, KEPT - 1 + 2 * often)

    expected = joined(*[life.protocol.of_batch(life.shape)] * often, life.protocol.of_collection(life.shape))
    assert plain(found) == plain(expected)
    assert (counting.SHARDS_OF_BATCHES in plain(found)) == (segments > 2)


@pytest.mark.s3
@pytest.mark.parametrize("segments", [3, 6])
def test_the_same_as_s3_itself_is_asked(
    s3_server: S3Server, s3_url: str, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request of the store there is one of HTTP, retries and look-ups of s3fs included if there were any."""
    often = 4
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", often)
    monkeypatch.setattr(counting, "COLLECT_EVERY_BATCHES", often)
    wal = open_store(StoreSpec(s3_url, s3_server.storage_options))
    if segments > 3:
        spread_from_2(monkeypatch)
    life = CountedQuery(KINDS[0], segments=segments, chunks=2, sinks=2, wal=wal)
    run = life.open()
    life.live(run, KEPT - 1 + often)

    with s3_server.counting() as seen:
        found = life.live(run, KEPT - 1 + 2 * often)

    expected = joined(*[life.protocol.of_batch(life.shape)] * often, life.protocol.of_collection(life.shape))
    assert plain(found) == plain(expected)
    kinds = Counter("LIST" if "list-type" in line else line.split()[0] for line in seen)
    every = total(expected)
    assert kinds == {"PUT": every.puts, "GET": every.gets, "LIST": every.lists, "POST": every.deletes}
    assert (counting.SHARDS_OF_SINKS in plain(found)) == (segments > 3)


CRASHES = [(3, 4, 0), (3, 4, 1), (3, 4, 4), (3, 4, 6), (3, 4, 11), (1, 4, 0), (1, 4, 2), (1, 1, 0), (8, 1, 5)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.ability is not Ability.BATCH_WRITER], ids=str)
@pytest.mark.parametrize(("segments", "chunks", "dies_at"), CRASHES)
def test_a_batch_taken_over_after_a_crash(kind: Kind, segments: int, chunks: int, dies_at: int) -> None:
    found, expected = take_over(kind, segments, chunks, dies_at)

    assert found == expected


def take_over(kind: Kind, segments: int, chunks: int, dies_at: int, pace: Pace | None = None) -> tuple[object, object]:
    """Requests to take over a batch whose first run died in its `dies_at`th send, and the expected ones."""
    pace = pace or Pace()
    life = CountedQuery(kind, segments, chunks, pace=pace)
    run = life.open()
    life.live(run, 1)
    life.targets[0].dies_at = life.targets[0].taken + dies_at
    with pytest.raises(Crash):
        life.live(run, 2)
    life.targets[0].dies_at = None
    life.store.taken()

    life.open().deliver_all()

    done = done_of(kind, chunks, dies_at, pace)
    expected = joined(life.protocol.of_start(collected=False), life.protocol.of_takeover(life.shape, done))
    return plain(life.store.taken()), plain(expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.ability is not Ability.BATCH_WRITER], ids=str)
@pytest.mark.parametrize("dies_at", [1, 9, 25])
def test_a_large_batch_in_shards_taken_over_after_a_crash(
    kind: Kind, dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread_from_2(monkeypatch)

    found, expected = take_over(kind, 20, 2, dies_at)

    assert found == expected


@pytest.mark.parametrize("segments", [1, 3])
def test_a_whole_batch_taken_over_after_a_crash(segments: int) -> None:
    life = CountedQuery(KINDS[-1], segments, chunks=2, writer_dies_at=2)
    run = life.open()
    life.live(run, 1)
    with pytest.raises(Crash):
        life.live(run, 2)
    life.writer_dies_at = None
    life.store.taken()

    life.open().deliver_all()

    takeover = life.protocol.of_takeover(life.shape, Done())
    assert plain(life.store.taken()) == plain(joined(life.protocol.of_start(collected=False), takeover))


def done_of(kind: Kind, chunks: int, sent: int, pace: Pace) -> Done:
    """Progress after the crash of a sink that had taken so many chunks, segment after segment."""
    if kind.ability is Ability.SEGMENT_WRITER:
        return Done(begun=sent // chunks, whole=sent // chunks, chunks=sent // chunks * chunks)
    recorded = sent + 1 if kind.at_most_once else sent
    if kind.ability is Ability.IGNORE_KNOWN_KEYS and not kind.at_most_once:
        recorded = sent - sent % 4 if pace.chunk_s == 0.25 else 0  # once a second, here
    return Done(begun=-(-recorded // chunks), whole=recorded // chunks, chunks=recorded)


def test_reads_of_the_checkpoint() -> None:
    life = CountedQuery(KINDS[0], segments=3, chunks=1)
    run = life.open()
    life.live(run, 1)
    life.checkpoint.taken()
    assert list(life.batches(run, 2)) == [2]
    found = total(life.checkpoint.taken())
    assert found == Requests(gets=counting.checkpoint_gets(sinks=1, polls=1))

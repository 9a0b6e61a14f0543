"""The costs of a WAL as it grows: requests of a start and of waiting, memory of workers and of the driver.

The requests of a steady batch are counted in `tests/unit/protocol/test_retention.py` and, on S3, in `test_s3.py`; the
memory of staging in `test_staging.py`; what an hour of waiting costs in `tests/unit/protocol/test_threads_idle.py`.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace as replace_in
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.house.log import Log, SegmentLimits, SegmentRef, SegmentWriter, paths
from tests.house.protocol import Run, ServedSink, Staged, StagedPartition, StagingContext
from tests.house.sinks import Chunk, Position, Sink, TransactionalSink, as_sink, promise
from tests.house.stores import Store, StoreSpec, open_store
from tests.house.support import SYSTEM, side_by_side
from tests.support import small_run
from tests.support.components import require
from tests.support.fixtures.spark import processes_of
from tests.support.small_run import Place
from tests.support.streams import Home
from tests.support.waiting import wait_until
from wal_sink.errors import DeliveryError
from wal_sink.protocol.partitions import MOST_INLINE_BYTES, _encoded, inline_limit, packed
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.spark import tasks
from wal_sink.support.limits import DeliverySlots
from wal_sink.testing import FakeQuery, FaultyStore, simulated_runtime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
PROC = Path("/proc")
MIB = 1 << 20


def nothing(chunk: Chunk) -> None:
    """A sink that takes everything."""


# --- requests

LISTED_PER_REQUEST = 1000
"""As many names as S3 lists in one answer."""


class Paged(FaultyStore):
    """Counts requests as S3 would: a listing costs one for every thousand names."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, self._count)
        self._lock = threading.Lock()
        self.requests = 0

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = super().list(prefix, after=after, recursive=recursive)
        with self._lock:
            self.requests += max(0, len(names) - 1) // LISTED_PER_REQUEST
        return names

    def _count(self, what: str, _: str) -> None:
        with self._lock:
            self.requests += what.startswith("before")


def requests_of_a_start(place: Place) -> int:
    store = Paged(place.wal)
    run = Run(store, place.checkpoint, Settings(), runtime=simulated_runtime())
    run.open([small_run.served_sink(run, "a", nothing)])
    run.become_stager()
    run.deliver_all()
    return store.requests


def test_a_start_costs_as_many_requests_after_10000_batches_as_after_10() -> None:
    """Of the 10,000 the last 600 are run: the WAL collects the rest, and holds no more after 600 than after 300."""
    young, old = Place(), Place()
    young.stream(young.open({"a": nothing}, settings=Settings()), 9)
    complete_without_wal(old, through=9_399)
    run = old.open({"a": nothing}, settings=Settings())
    old.stream(run, 9_699)
    objects = len(old.wal.list("", recursive=True))
    old.stream(run, 9_999)

    assert len(old.wal.list("", recursive=True)) == pytest.approx(objects, abs=20)
    assert abs(requests_of_a_start(old) - requests_of_a_start(young)) <= 2


def test_a_start_with_nothing_to_deliver_costs_21_requests() -> None:
    place = Place()
    place.stream(place.open({"a": nothing}), 5)
    assert requests_of_a_start(place) == 21


def test_the_first_batch_of_a_new_wal_waits_for_two_answers_before_its_rows_are_staged() -> None:
    """The look for lost objects is one round, and makes no listing for each sink and role. Then the record is made."""
    place, waiting = Place(), Waiting()
    runtime = replace_in(simulated_runtime(seed=98), side_by_side=waiting)
    run = place.open({"a": nothing, "b": nothing}, runtime=runtime)
    query = place.query()
    query.start_batch(0, 0)
    place.requests.clear()
    waiting.calls.clear()

    run.begin_staging(0, planned_ms=query.planned_ms(0))

    asked, made = place.requests[:-1], place.requests[-1]
    assert waiting.calls == [len(asked)]
    assert sorted(asked) == ["list ", "list sinks", "list terms", "read wal.json"]
    assert made == "create wal.json"


def test_the_first_batch_of_a_query_that_goes_on_costs_a_read_and_a_listing() -> None:
    place = Place()
    place.stream(place.open({"a": nothing}), 1)
    run = place.open({"a": nothing})
    query = place.query()
    query.start_batch(2, 2)
    place.requests.clear()

    run.begin_staging(2, planned_ms=query.planned_ms(2))

    assert place.requests == [f"read {paths.release(2)}", "list low-water"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_start_in_the_middle_of_1000_segments_reads_each_record_once_and_several_at_once(idempotent: bool) -> None:
    segments, sent = 1_000, 400
    place = Place(rows=lambda _: [1] * segments)
    first, second = Sends(sent, idempotent=idempotent), Sends(segments, idempotent=idempotent)
    run = place.open({"a": first}, retry=Retry(attempts=1))
    for _ in place.query().batches(run, 1):
        with pytest.raises(DeliveryError, match="no more"):
            run.deliver_all()
    recorded = len(place.wal.list(paths.progress_folder("a", 0)))
    assert recorded == sent
    store, waiting = Paged(place.wal), Waiting()
    run = Run(store, place.checkpoint, Settings(), runtime=replace_in(simulated_runtime(seed=99), side_by_side=waiting))
    run.open([small_run.served_sink(run, "a", second)])
    before = store.requests
    waiting.calls.clear()

    run.deliver_all()

    assert waiting.calls[0] == recorded
    read_back = 1 + recorded  # a listing, and the records
    each = 2 if idempotent else 4  # the segment and its record; a look, and whether the chunk was answered before
    others = 9  # the term, the release, the markers, dead letters, the marker
    assert store.requests - before == read_back + each * (segments - sent) + others
    assert (first.sent, second.sent) == (sent, segments - sent)


class Sends(Sink):
    """Takes so many chunks."""

    def __init__(self, most: int, *, idempotent: bool) -> None:
        self.idempotent = idempotent
        self.most, self.sent = most, 0

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002 - it only counts
        if self.sent == self.most:
            raise RuntimeError("no more")
        self.sent += 1


class Waiting:
    """Stands for `side_by_side`, and notes of how many calls each round was."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, function: Callable[[T], R], items: Iterable[T]) -> Sequence[R]:
        given = list(items)
        self.calls += [len(given)] if given else []
        return side_by_side(function, given)


def complete_without_wal(place: Place, *, through: int) -> None:
    """As if the query had run so far before it was given a WAL."""
    query = FakeQuery(place.checkpoint, lambda *_: [])
    query.start_batch(through, through)
    query.complete_batch(through)


def test_a_draining_process_that_waits_costs_one_small_read_of_the_checkpoint_a_poll() -> None:
    place = Place()
    place.stream(place.open({"a": nothing}), 2)
    asked: list[str] = []
    checkpoint = FaultyStore(place.checkpoint, lambda what, where: asked.append(f"{what} {where}"))
    run = Run(FaultyStore(place.wal, place._note), checkpoint, Settings(), runtime=simulated_runtime())
    run.open([small_run.served_sink(run, "a", nothing)])
    run.deliver_all()
    asked.clear()
    place.requests.clear()

    for _ in range(10):
        assert not run.advance(run.committers[0])

    assert asked == ["before read commits/3"] * 10
    assert place.requests == []


# --- memory


class Memory:
    """How much more resident memory some processes have had, at their peak, than when this was made. Linux only."""

    def __init__(self, pids: list[int]) -> None:
        _give_back_what_is_free()
        self._before = {pid: _kib(pid, "VmRSS") for pid in pids}
        for pid in pids:
            (PROC / str(pid) / "clear_refs").write_text("5")  # forget the peak so far

    def grown_mib(self, pids: list[int]) -> int:
        """The most of any of the processes; one that is new is measured against the smallest that was there."""
        least = min(self._before.values())
        return max(_kib(pid, "VmHWM") - self._before.get(pid, least) for pid in pids) >> 10


def assert_sees_growth_of_this_process(memory: Memory) -> None:
    """Show that the measurement works. Few MiB may find room in what earlier tests left free, and show no growth."""
    block = b"x" * (64 * MIB)
    assert memory.grown_mib([os.getpid()]) > 0, len(block)


def _give_back_what_is_free() -> None:
    """Give back memory that earlier tests left free: it would hide memory that is taken from now on."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # the C library is glibc, or there is nothing to ask
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _kib(pid: int, what: str) -> int:
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


class JvmHeap:
    """The heap of the driver's JVM, which in the tests' local mode is that of the executors too."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        beans = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        self._pools = [pool for pool in beans if pool.getType().toString() == "Heap memory"]
        self.pid = int(jvm.java.lang.ProcessHandle.current().pid())
        self._before = self._live_mib()
        for pool in self._pools:
            pool.resetPeakUsage()

    def kept_mib(self) -> float:
        """Return how much is still alive, after a full collection, of all that came since this was made."""
        return self._live_mib() - self._before

    def peak_mib(self) -> float:
        """At most so much more was ever used, garbage that nobody collected included: each generation at its worst."""
        return sum(float(pool.getPeakUsage().getUsed()) for pool in self._pools) / MIB - self._before

    def _live_mib(self) -> float:
        for _ in range(3):  # what only finalizers and soft caches hold goes with the next ones
            self._jvm.java.lang.System.gc()
        return sum(float(pool.getUsage().getUsed()) for pool in self._pools) / MIB


@pytest.fixture
def measurable() -> None:
    require(sys.platform == "linux", "peaks of memory are read from /proc, which only Linux has")


def taking_everything() -> Sink:
    """Travels by value, so that workers need not import this module."""
    sink = as_sink(lambda _: None)
    assert isinstance(sink, Sink)
    return sink


class OnExecutors:
    """A run on local files that delivers on Spark's executors, in one task, whatever its batches hold."""

    def __init__(self, spark: SparkSession, folder: Path, sink: Sink, *, threads: int = 1) -> None:
        self._threads = threads
        self._spark = spark
        self._sink = sink
        self.store = StoreSpec(str(folder / "wal"))
        self.checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
        self.run = Run(open_store(self.store), self.checkpoint, Settings())
        self.run.open([self._served_sink()])
        self.run.become_stager()

    def deliver(self, segments: list[SegmentRef]) -> None:
        """Stage the segments as batch 0, complete it and deliver it."""
        query = FakeQuery(self.checkpoint, lambda *_: [])
        query.start_batch(0, 0)

        attempt = self.run.begin_staging(0, planned_ms=query.planned_ms(0))
        assert attempt is not None
        self.run.end_staging(attempt, Staged(segments, columns=("text",)))
        query.complete_batch(0)
        self.run.deliver_all()
        assert self.run.committers[0].marked_through == 0

    def _served_sink(self) -> ServedSink:
        from tests.house.spark import ExecutorDispatcher  # noqa: PLC0415 - tests without Spark import this module
        from wal_sink.spark.delivery import pickled  # noqa: PLC0415

        dispatcher = ExecutorDispatcher(
            self._spark,
            pickled(self._sink, "default"),
            self.store,
            run_id=self.run.log.run_id,
            job_group="test-costs",
            slots=DeliverySlots(lambda: 1),
            should_stop=lambda: False,
            threads_per_task=self._threads,
        )
        delivery = Delivery(self._sink)
        return ServedSink("default", delivery, promise(self._sink, delivery, "default"), dispatcher)


def written(run: OnExecutors, batches: Iterator[pa.RecordBatch]) -> list[SegmentRef]:
    limits = SegmentLimits(Settings().chunk_rows, Settings().chunk_bytes, Settings().segment_bytes)
    log = run.run.log
    with SegmentWriter(log.store, folder="given", partition=0, limits=limits, new_id=log.runtime.new_id) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


def repeated(segments: list[SegmentRef], times: int) -> list[SegmentRef]:
    """Make a large batch quickly: the same objects under as many references, each with another id."""
    return [replace(ref, id=f"{number:04x}{ref.id[4:]}") for number in range(times) for ref in segments]


def large_strings(rows: int) -> Iterator[pa.RecordBatch]:
    """Strings of 1 MiB; base64 of random bytes shrinks to three quarters at best."""
    text = base64.b64encode(os.urandom(12 * MIB)).decode()
    for row in range(rows):
        start = row * 7_919_111 % (15 * MIB)
        yield pa.record_batch([pa.array([text[start : start + MIB]])], ["c0"])


@pytest.mark.spark
@pytest.mark.usefixtures("measurable")
@pytest.mark.parametrize("threads", [1, 3])
def test_delivering_segments_of_2_gib_takes_a_worker_less_than_400_mib_more_for_each_thread(
    spark: SparkSession, tmp_path: Path, own_workers: str, threads: int
) -> None:
    run = OnExecutors(spark, tmp_path, taking_everything(), threads=threads)
    spark.sparkContext.parallelize(range(2), 2).count()
    few = written(run, large_strings(rows=360))
    segments = repeated(few, -(-2048 * MIB // sum(ref.bytes for ref in few)))
    assert sum(ref.bytes for ref in segments) >= 2048 * MIB
    memory = Memory(list(processes_of(own_workers)))

    run.deliver(segments)

    assert 0 < memory.grown_mib(list(processes_of(own_workers))) < 400 * threads


def searched(_: int) -> bool | None:
    """Run in a worker: whether collections search our modules. None if this worker has settled after no store."""
    if not any(process == os.getpid() for process, _ in tasks._settled):
        return None
    return any(each is vars(paths) for each in gc.get_objects())


@pytest.mark.spark
def test_a_collection_in_a_worker_does_not_search_the_modules_after_each_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark gives a task to any idle worker, and workers of earlier tests may have settled after as many stores as
    they ever do. So any store counts, and tasks are sent until a worker that settled has answered.
    """
    place = Home(tmp_path)
    place.feed.add([1])
    place.run(spark, Delivery(place.lines, where="executors"))
    answers: set[bool | None] = set()

    def one_that_settled_answered() -> bool:
        answers.update(spark.sparkContext.parallelize(range(4), 4).map(searched).collect())
        return answers != {None}

    wait_until(one_that_settled_answered, "a worker that has settled")
    assert answers - {None} == {False}


class Positions(TransactionalSink):
    """Keeps positions and no rows, a file each: what a transactional target costs the driver, and no more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last(self, slot: str) -> Position | None:
        held = self._file(slot)
        return Position(slot, *json.loads(held.read_text())) if held.exists() else None

    def write(self, chunk: Chunk) -> None:
        at = chunk.position
        self._file(at.slot).write_text(json.dumps([at.batch_id, at.rows, at.segment_id]))

    def _file(self, slot: str) -> Path:
        return self.folder / slot.replace("/", "-")


@pytest.mark.spark
@pytest.mark.usefixtures("measurable")
def test_a_batch_of_5000_segments_takes_the_driver_less_than_200_mib_more(spark: SparkSession, tmp_path: Path) -> None:
    """A transactional sink: its marker names the rows of every segment. So the driver is Python and JVM, each of them.

    What *staging* as many takes is measured by `python -m benchmarks.driver_memory`, since 5,000 tasks take minutes.
    """
    (tmp_path / "positions").mkdir()
    run = OnExecutors(spark, tmp_path, Positions(tmp_path / "positions"))
    one = written(run, iter([pa.record_batch([pa.array(["a"])], ["c0"])]))
    segments = repeated(one, 5_000)
    heap = JvmHeap(spark)
    memory, of_jvm = Memory([os.getpid()]), Memory([heap.pid])

    run.deliver(segments)

    assert memory.grown_mib([os.getpid()]) < 200
    assert_sees_growth_of_this_process(memory)
    peak, resident = heap.peak_mib(), of_jvm.grown_mib([heap.pid])
    assert heap.kept_mib() < 16, "a batch that is delivered is forgotten, but for what Spark itself notes of its job"
    assert 0 < peak < 200
    assert resident < 200


def inline_rows(size: int) -> bytes:
    """A row that takes up to `size` bytes as a task returns it, a single byte at least. It cannot be compressed."""
    empty = len(_encoded([pa.record_batch([pa.array([b""])], ["c0"])]))
    return _encoded([pa.record_batch([pa.array([os.urandom(max(1, size - empty - 64))])], ["c0"])])


@pytest.mark.usefixtures("measurable")
@pytest.mark.parametrize(("partitions", "least_mib"), [(2_000, 60), (40_000, 100)])
def test_packing_as_much_as_the_tasks_may_return_takes_the_driver_less_than_100_mib_more(
    tmp_path: Path, partitions: int, least_mib: int
) -> None:
    """What a job with as many real tasks takes of the JVM is measured by `python -m benchmarks.driver_memory`."""
    budget = 16 * MIB
    returned = [
        StagedPartition((), {}, number, inline_rows(inline_limit(budget, number))) for number in range(partitions)
    ]
    total = sum(len(each.inline) for each in returned)
    assert (
        least_mib * MIB < total <= budget * (1 + math.log(partitions * MOST_INLINE_BYTES / budget)) + partitions * 600
    )
    limits = SegmentLimits(Settings().chunk_rows, Settings().chunk_bytes, Settings().segment_bytes)
    log = Log(open_store(StoreSpec(str(tmp_path / "wal"))), SYSTEM, "run")
    memory = Memory([os.getpid()])

    staged = packed(StagingContext("given", limits), returned, log, side_by_side=40)

    assert memory.grown_mib([os.getpid()]) < 100
    assert 30 < len(staged.segments) <= 40
    assert sum(ref.rows for ref in staged.segments) == partitions

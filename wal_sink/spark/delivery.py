"""Delivery on Spark's executors: tasks get references to segments, so no rows pass through the driver. Sinks travel
pickled, and are checked there before the first batch.

Spark starts a copy of a task when it lost the task, or in parallel to a slow one. A copy sends nothing. Spark takes the
first answer of the two and kills the other task. So a copy that answered at once would end a healthy original in the
middle of a send. Instead, it waits as long as the original shows progress: new records in the WAL, or new positions in
a transactional target.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from py4j.protocol import Py4JError
from pyspark import Broadcast, TaskContext, cloudpickle
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError, PermanentError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, SegmentRef
from wal_sink.protocol.dispatch import DispatcherLostError, LocalDispatcher, carry_out, failed, is_small
from wal_sink.protocol.messages import DeliveryContext, SegmentResult, SegmentTask
from wal_sink.protocol.segment_delivery import RECORD_S
from wal_sink.sinks.base import MakeSink, Sink, TransactionalSink
from wal_sink.sinks.calls import call_sink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import Failure, FailureKind, failure_of
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.sinks.ledger import slot_name
from wal_sink.spark.private import described, is_running
from wal_sink.spark.tasks import settle, telling_line
from wal_sink.stores.base import Store
from wal_sink.stores.measured import measured
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.calls import TimedCall
from wal_sink.support.clock import SYSTEM
from wal_sink.support.limits import DeliverySlots
from wal_sink.support.measures import RequestCounts
from wal_sink.support.texts import name_of, told

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_WAYS_OUT = (
    "Your options: use Delivery(…, where='driver'), so that the sink is called in the driver's process; or create "
    "connections and locks in open() instead of __init__; or, if the workers do not have a module, install it there, "
    "call spark.sparkContext.addPyFile(…) or cloudpickle.register_pickle_by_value(module)"
)


@dataclass(frozen=True, slots=True)
class PickledSink:
    """A sink as bytes for the executors. Each call returns a fresh copy of the sink."""

    payload: bytes = field(repr=False)
    broadcasts: tuple[Broadcast[Any], ...] = field(default=(), repr=False)
    """Those that the sink refers to. Spark ships a broadcast with the jobs whose function it is pickled with."""

    def __call__(self) -> Sink:
        """Unpickle the sink. Raises `PermanentError` if it cannot be unpickled: a retry would not help."""
        try:
            return unpickle(self.payload)
        except (ImportError, AttributeError, pickle.UnpicklingError) as error:
            raise PermanentError(f"it cannot be unpickled here ({told(error)})") from error


def pickled(sink: Sink, name: str) -> PickledSink:
    """Pickle the sink; code in `__main__` is pickled by value. Raises `ConfigError` if it cannot be pickled."""
    try:
        return PickledSink(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's __reduce__ may raise anything
        raise ConfigError(
            f"sink {name!r}: {name_of(sink)} cannot be pickled for the executors ({told(error)}). {_WAYS_OUT}"
        ) from error


def unpickle(payload: bytes) -> Sink:
    """A fresh copy of the pickled sink."""
    return cast("Sink", pickle.loads(payload))  # noqa: S301 - our own bytes, from the driver's memory


def check_on_executor(spark: SparkSession, travelling: PickledSink, sink: Sink, name: str) -> None:
    """Check in one task, before any batch depends on it, that the sink unpickles on an executor as the same kind.

    Raises `ConfigError`. Runs one small Spark job.
    """
    ask = partial(problem_of, expected=ability_of(sink))
    with described(spark.sparkContext, f"wal-sink: can sink {name} be used on executors?"):
        problem = spark.sparkContext.parallelize([travelling.payload], 1).map(ask).collect()[0]
    if problem:
        raise ConfigError(f"sink {name!r}: {name_of(sink)} cannot be used on executors ({problem}). {_WAYS_OUT}")


def problem_of(payload: bytes, expected: Ability) -> str:
    """The reason why a pickled sink cannot be used in this process; empty if it can.

    A sink of another kind is refused, because it would break the guarantee: it could send rows without their position,
    for example.
    """
    try:
        sink: object = unpickle(payload)
        found = ability_of(sink).value if isinstance(sink, Sink) else type(sink).__name__
    except Exception as error:  # noqa: BLE001 - every error is an answer
        return told(error)
    if found == expected.value:
        return ""
    return (
        f"it is “{expected.value}” in the driver, but “{found}” after unpickling on an executor: either its __reduce__ "
        "or __getstate__ returns another object, or the executor has another version of its module"
    )


class ExecutorDispatcher:
    """Delivers in one Spark job per call, in its own job group. All sinks of the run share the task slots.

    With a `driver`, that one delivers small batches, and asks the target about the others. Both use unpickled copies of
    the sink.
    """

    whole_batch = False

    def __init__(
        self,
        spark: SparkSession,
        sink: PickledSink,
        store: StoreSpec,
        *,
        run_id: str,
        job_group: str,
        slots: DeliverySlots,
        should_stop: Callable[[], bool],
        max_concurrency: int | None = None,
        threads_per_task: int = 1,
        driver: LocalDispatcher | None = None,
    ) -> None:
        self._context = spark.sparkContext
        self._copies = are_run_beside(self._context)
        self._driver = driver
        self._sink = sink
        self._store = store
        self._run_id = run_id
        self._job_group = job_group
        self._slots = slots
        self._max_concurrency = max_concurrency
        self._threads_per_task = threads_per_task
        self._should_stop = should_stop
        self._s_per_byte = math.inf
        """Seconds per byte of one task in the last job; infinite if it is not known."""

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,
    ) -> list[SegmentResult]:
        """Deliver the segments in shares, one Spark task each; a task stops at its first failure.

        With `confirm`, the target confirms the batch after all others are done. The driver asks, since that is one
        question about few numbers, and a job would wait behind the tasks that stage the next batch; without a driver, a
        second job of one task does. Raises `DispatcherLostError` if a job was lost.
        """
        if self._driver is not None and is_small(manifest, tasks):
            return self._driver.deliver(delivery_context, manifest, tasks, confirm=confirm)
        results = self._carry_out(delivery_context, manifest, tasks) if tasks else []
        if confirm and not any(result.failure for result in results):
            if self._driver is None:
                return results + self._confirm(delivery_context, manifest)
            return results + self._driver.deliver(delivery_context, manifest, (), confirm=True)
        return results

    def _confirm(self, delivery_context: DeliveryContext, manifest: Manifest) -> list[SegmentResult]:
        with self._slots.taken(1, should_stop=self._should_stop, work_s=0.0) as granted:
            if not granted:
                return failed((), Failure(FailureKind.STOPPED, "the run is ending"))
            return self._run_job(delivery_context, manifest, ((),), confirms=manifest.segments)

    def _carry_out(
        self, delivery_context: DeliveryContext, manifest: Manifest, tasks: Sequence[SegmentTask]
    ) -> list[SegmentResult]:
        wanted = min(len(tasks), self._max_concurrency or len(tasks))
        size = max(1, sum(segment_task.segment.bytes for segment_task in tasks))
        with self._slots.taken(wanted, should_stop=self._should_stop, work_s=self._s_per_byte * size) as granted:
            if not granted:
                return failed(tasks, Failure(FailureKind.STOPPED, "the run is ending"))
            began_s, self._s_per_byte = SYSTEM.monotonic_s(), math.inf  # unknown, unless the whole job succeeds
            results = self._run_job(delivery_context, manifest, shared_out(tasks, granted))
            if not any(result.failure for result in results):
                self._s_per_byte = (SYSTEM.monotonic_s() - began_s) * granted / size
            return results

    def _run_job(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        shares: tuple[tuple[SegmentTask, ...], ...],
        *,
        confirms: tuple[SegmentRef, ...] | None = None,
    ) -> list[SegmentResult]:
        threads = self._threads_of(shares)
        at_once = sum(min(threads, len(share)) for share in shares) or 1
        given = _for_one_of(at_once, delivery_context)
        task = _DeliveryTask(self._sink, self._store, self._run_id, given, shares, confirms, self._copies, threads)
        description = f"wal-sink {self._store.safe_url} batch {manifest.batch_id}: deliver to {delivery_context.sink}"
        if not is_running(self._context):
            raise DispatcherLostError(f"{description}: the Spark context was stopped")
        try:
            with described(self._context, description, group=self._job_group):
                return self._context.parallelize(range(len(shares)), len(shares)).mapPartitions(task).collect()
        except (Py4JError, PySparkException, OSError) as error:
            raise DispatcherLostError(f"{description}: the Spark job ended with {telling_line(error)}") from error

    def _threads_of(self, shares: tuple[tuple[SegmentTask, ...], ...]) -> int:
        """The threads of each task of a job. All of them together stay within the sink's `max_concurrency`."""
        threads = min(self._threads_per_task, max(len(share) for share in shares) or 1)
        if self._max_concurrency is None:
            return threads
        return max(1, min(threads, self._max_concurrency // len(shares)))


@dataclass(frozen=True, slots=True)
class _DeliveryTask:
    """Task that runs on executors, once per partition, with the number of its share. Yields results, raises nothing."""

    sink: PickledSink
    store: StoreSpec
    run_id: str
    delivery_context: DeliveryContext
    shares: tuple[tuple[SegmentTask, ...], ...]
    confirms: tuple[SegmentRef, ...] | None = None
    """The segments that the target must confirm, in a task that delivers none itself."""
    copies: bool = False
    """Whether Spark may run a copy of this task while the original still runs."""
    threads: int = 1
    """The number of segments of a share that are sent at once, each through its own sink."""

    def __call__(self, numbers: Iterable[int]) -> Iterator[SegmentResult]:
        for number in numbers:
            yield from self._deliver(self.shares[number])

    def _deliver(self, tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        if _is_repeated():
            if self.copies:
                outwait(partial(self._recorded, tasks), window_s(self.delivery_context), SYSTEM.sleep_s)
            text = "Spark ran a delivery task again; the earlier run of the task may still be sending"
            return failed(tasks, Failure(FailureKind.LOST, text))
        counts = RequestCounts() if self.delivery_context.measured else None
        try:
            log = Log(measured(open_store(self.store), counts), SYSTEM, self.run_id)
            log.store.begin(is_there=True)
        except WalSinkError as error:
            return failed(tasks, failure_of(error))
        except Exception as error:  # noqa: BLE001 - a raise would make Spark retry; only the driver may decide that
            text = self.store.scrub(f"{self.store.safe_url} cannot be opened: {told(error)}")
            return failed(tasks, Failure(FailureKind.RETRIABLE, text))
        shares = (tasks,) if self.threads == 1 else shared_out(tasks, self.threads)
        carried_out = SYSTEM.side_by_side(partial(self._carry_out, log), shares)
        results = [result for results in carried_out for result in results]
        settle(self.store)
        if counts is not None and results:  # there is a result for each task, or one that confirms
            results[-1] = replace(results[-1], requests=counts.counted())
        return results

    def _carry_out(self, log: Log, tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        return carry_out(
            self.delivery_context,
            tasks,
            self.sink,
            SYSTEM.new_timed_call(),
            log,
            on_executor=True,
            confirms=self.confirms,
        )

    def _recorded(self, tasks: Sequence[SegmentTask]) -> object:
        """The records of the original so far, in the WAL and in the target; None if one of them cannot be read."""
        try:
            records = recorded(open_store(self.store), self.delivery_context, tasks)
            return records, acknowledged(self.delivery_context, self.sink, tasks, SYSTEM.new_timed_call())
        except Exception:  # noqa: BLE001 - the copy then reports the original as lost, which is always correct
            return None


def _for_one_of(side_by_side: int, delivery_context: DeliveryContext) -> DeliveryContext:
    """The context for one of several parallel tasks: each may use its part of the rate limit."""
    rate = delivery_context.rows_per_s
    return delivery_context if rate is None else replace(delivery_context, rows_per_s=rate / side_by_side)


def shared_out(tasks: Sequence[SegmentTask], most: int) -> tuple[tuple[SegmentTask, ...], ...]:
    """Split the segments into at most `most` shares of about equal bytes; each share begins with its largest."""
    shares: list[list[SegmentTask]] = [[] for _ in range(min(most, len(tasks)))]
    weights = [0] * len(shares)
    for segment_task in sorted(tasks, key=lambda segment_task: segment_task.segment.bytes, reverse=True):
        lightest = weights.index(min(weights))
        shares[lightest].append(segment_task)
        weights[lightest] += segment_task.segment.bytes
    return tuple(tuple(share) for share in shares)


def _is_repeated() -> bool:
    """Whether this is a repeated attempt of a task. Raises `RuntimeError` outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a delivery task was called outside of a Spark task")
    return context.attemptNumber() > 0


def are_run_beside(context: SparkContext) -> bool:
    """Whether Spark may run a copy while the original still runs: with speculation only."""
    return str(context.getConf().get("spark.speculation", "false")).strip().lower() != "false"


def outwait(look: Callable[[], object], window_s: float, sleep_s: Callable[[float], None]) -> None:
    """Return after the original showed nothing new for `window_s` seconds. Spark ends the copy if the original ends.

    `look` returns the records of the original so far; None if they cannot be read, so that nothing shows that the
    original lives.
    """
    seen = look()
    while True:
        sleep_s(window_s)
        now = look()
        if now is None or now == seen:
            return
        seen = now


def window_s(given: DeliveryContext) -> float:
    """The longest time without news from a healthy original, in seconds: one call, the pause for its rate limit, and
    the time between two records.

    A two-phase sink that prepares a segment again may take longer: its transaction is invisible until it is prepared.
    """
    pause_s = 0.0 if given.rows_per_s is None else given.chunk_rows / given.rows_per_s
    record_s = RECORD_S if given.by_time is not None and given.by_time.records else 0.0
    return given.attempt_timeout_s + pause_s + record_s


def recorded(store: Store, given: DeliveryContext, tasks: Sequence[SegmentTask]) -> frozenset[str]:
    """The paths of the progress records, prepared records and dead letters of these segments.

    Costs one listing, and one more if rejected rows are kept.
    """
    ordinals = {task.ordinal for task in tasks}
    folders = {paths.progress_folder(given.sink, given.batch_id)} if ordinals else set()
    if ordinals and given.keeps_rejected:
        folders.add(paths.dead_letter_folder(given.sink, given.batch_id))
    listed = [(folder, name) for folder in sorted(folders) for name in store.list(folder)]
    return frozenset(f"{folder}/{name}" for folder, name in listed if _ordinal(name) in ordinals)


def _ordinal(name: str) -> int | None:
    """The ordinal of the segment that a record belongs to; None if it is no record of a segment."""
    found = paths.parse_progress(name) or paths.parse_prepared(name) or paths.parse_dead_letter(name)
    return None if found is None else found.ordinal


Acknowledged: TypeAlias = tuple[Position | None, ...]
"""The position of each slot."""


def acknowledged(
    given: DeliveryContext, make_sink: MakeSink, tasks: Sequence[SegmentTask], timed_call: TimedCall
) -> Acknowledged:
    """The positions of these segments in a transactional target, which keeps no records in the WAL.

    Empty for every other kind of sink: its records in the WAL show its progress. The sink is opened as for any share of
    the batch; it may be open in several tasks at the same time. Raises `SinkFailedError` if the target does not answer
    within the time of one call.
    """
    what = f"positions of {len(tasks)} slots"
    try:
        return call_sink(timed_call, what, _asked, given, make_sink, tasks, timeout_s=given.attempt_timeout_s)
    finally:
        timed_call.close()


def _asked(given: DeliveryContext, make_sink: MakeSink, tasks: Sequence[SegmentTask]) -> Acknowledged:
    sink = make_sink()
    if not isinstance(sink, TransactionalSink) or not tasks:
        return ()
    slots = [slot_name(given.wal_id, given.sink, task.ordinal) for task in tasks]
    sink.open(given.context(on_executor=True))
    try:
        found = sink.positions(slots)
        return tuple(found[slot] for slot in slots)
    finally:
        sink.close()

"""`Committers`: the committers of one `WalSink`, opened at most once, and ended once. With Spark or without.

`Placement` decides where each sink runs, driver or executors: once, before the query starts, and logs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError
from wal_sink.log.holders import TakeOver
from wal_sink.log.log import Log
from wal_sink.metrics.prometheus import Metrics, events_of, meter_of
from wal_sink.protocol.committer_pool import CommitterPool
from wal_sink.protocol.committer_thread import BEAT_EVERY_S, Liveness
from wal_sink.protocol.dispatch import (
    LocalDispatcher,
    SegmentDispatcher,
    ServedSink,
    WholeBatchDispatcher,
    copier,
    serve,
)
from wal_sink.protocol.location import GonePlace, refuse_shared_folder, refuse_target_folder
from wal_sink.protocol.run import Run
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.sinks.held import hold, objects_of
from wal_sink.spark.checkpoint_files import checkpoint_files, checkpoint_location
from wal_sink.stores.measured import MeasuredStore, SlowRequests
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import S3, StoreSpec
from wal_sink.support.events import OFF, Events, OnEvent
from wal_sink.support.exit_hooks import Owner, at_exit
from wal_sink.support.limits import DeliverySlots
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import name_of, pending_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal_sink.spark.delivery import PickledSink

_logger = logger_of(__name__)


class Placement:
    """Decides where the sinks of one run work, given the run's log, its store, and Spark if there is one.

    `max_tasks` limits the task slots that all sinks of the run take together. None: one less than the cluster has, and
    all of them for deliveries that take only seconds. Raises `ConfigError` if the executors do not see the driver's
    store.
    """

    def __init__(
        self,
        log: Log,
        store: StoreSpec,
        spark: SparkSession | None,
        max_tasks: int | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self.log = log
        self.store = store
        self.spark = spark
        self.should_stop = should_stop
        self._of_query: SparkSession | None = None  # the user's session that started the latest query
        self._clones: dict[str, SparkSession] = {}  # one for each sink of whole batches, from `use_session` on
        self._slots = DeliverySlots(lambda: max_tasks or max(1, _slots(spark) - 1), lambda: max_tasks or _slots(spark))
        if spark is not None:
            from wal_sink.spark.cluster import check_shared_store  # noqa: PLC0415 - the core runs without Spark

            check_shared_store(spark, store, log.runtime)

    def serve(self, name: str, sink: Sink | BatchSink, delivery: Delivery) -> ServedSink:
        """Build the served sink. Raises `ConfigError` if its guarantee or its place is impossible."""
        dispatcher, where, payload = self._dispatcher(name, sink, delivery)
        _logger.info("sink %s: %s runs %s", name, name_of(sink), where)
        return serve(name, sink, delivery, dispatcher, self.log, travels=payload)

    def use_session(self, session: SparkSession | None, state: SparkSession | None) -> None:
        """Give each sink of whole batches a clone of `state`, so that it shares views and settings with nobody.

        `session` is the one that started the query whose batches follow; without it, none follow. Raises `ConfigError`
        if the query before it was of another session.
        """
        if not self._clones or state is None:
            return
        from wal_sink.spark.private import cloned, private  # noqa: PLC0415 - the core runs without Spark

        mine, before = (each and private(each, "_jsparkSession") for each in (session, self._of_query))
        if mine and before and mine != before:
            raise ConfigError(
                "this query belongs to another SparkSession than the query before it. Batches of that query may still "
                f"be due to {sorted(self._clones)}. Close this WalSink, and create a new one for this query"
            )
        if mine or not before:
            self._of_query, self._clones = session, {name: cloned(state) for name in self._clones}

    def cancel_jobs(self, names: Iterable[str]) -> None:
        """Cancel the Spark jobs that deliver to these sinks. The outcome of their chunks in flight is unknown."""
        if self.spark is None:
            return
        from wal_sink.spark.private import is_running  # noqa: PLC0415 - the core runs without Spark

        if is_running(self.spark.sparkContext):
            for name in names:
                self.spark.sparkContext.cancelJobGroup(self._job_group(name))

    def _job_group(self, name: str) -> str:
        return f"wal-sink-{self.log.run_id}-{name}"

    def _dispatcher(
        self, name: str, sink: Sink | BatchSink, delivery: Delivery
    ) -> tuple[SegmentDispatcher, str, PickledSink | None]:
        """The dispatcher of a sink, its place in words, and the pickled sink if it runs on executors."""
        if delivery.threads_per_task > 1 and (isinstance(sink, BatchSink) or sink.driver_only):
            raise ConfigError(
                f"sink {name!r}: threads_per_task={delivery.threads_per_task} sends several segments at once on "
                f"executors, and {name_of(sink)} can only run on the driver. Leave out threads_per_task"
            )
        if isinstance(sink, BatchSink):
            return self._whole_batch(name, sink, delivery), "on the driver, a batch at a time", None
        if delivery.where == "executors" and (self.spark is None or sink.driver_only):
            missing = (
                "there is no Spark session" if self.spark is None else f"{name_of(sink)} can only run on the driver"
            )
            raise ConfigError(
                f"sink {name!r}: where='executors' is not possible: {missing}. Use where='driver' or where='auto'"
            )
        if self.spark is None and sink.needs_tasks:
            _logger.warning(
                "sink %s: %s runs in this process, because there is no classic Spark session: its rows have the time "
                "zone of the session that staged them, and TaskContext.get() returns None",
                name,
                name_of(sink),
            )
        if self.spark is None or sink.driver_only or delivery.where == "driver":
            here = LocalDispatcher(
                lambda: sink, self.log, should_stop=self.should_stop, copy_sink=copier(sink), objects=objects_of(sink)
            )
            return here, "in this process", None
        return self._with_executors(self.spark, name, sink, delivery)

    def _with_executors(
        self, spark: SparkSession, name: str, sink: Sink, delivery: Delivery
    ) -> tuple[SegmentDispatcher, str, PickledSink]:
        from wal_sink.spark.delivery import (  # noqa: PLC0415 - the core runs without Spark
            ExecutorDispatcher,
            check_on_executor,
            pickled,
        )
        from wal_sink.spark.private import private  # noqa: PLC0415

        # Its broadcasts stay noted for this thread until a job takes them along.
        make = pickled(sink, name)
        make = replace(make, broadcasts=tuple(private(spark.sparkContext, "_pickled_broadcast_vars")))
        check_on_executor(spark, make, sink, name)
        only_executors = delivery.where == "executors" or sink.needs_tasks or bool(make.broadcasts)
        here = LocalDispatcher(make, self.log, should_stop=self.should_stop, copy_sink=make)
        executors = ExecutorDispatcher(
            spark,
            make,
            self.store,
            run_id=self.log.run_id,
            job_group=self._job_group(name),
            slots=self._slots,
            max_concurrency=concurrency(sink, delivery),
            threads_per_task=delivery.threads_per_task,
            should_stop=self.should_stop,
            driver=None if only_executors else here,
        )
        where = "on executors" if only_executors else "on executors, for small batches as a copy in the driver"
        return executors, where, make

    def _whole_batch(self, name: str, sink: BatchSink, delivery: Delivery) -> WholeBatchDispatcher:
        if self.spark is None:
            raise ConfigError(
                f"sink {name!r}: {name_of(sink)} receives whole batches as DataFrames, so it needs a classic Spark "
                "session: drain in a process that has one"
            )
        if delivery.where == "executors":
            raise ConfigError(
                f"sink {name!r}: {name_of(sink)} receives whole batches on the driver, so where='executors' is not "
                "possible"
            )
        from wal_sink.spark.whole_batch import batch_writer  # noqa: PLC0415 - the core runs without Spark

        self._clones[name] = self.spark
        write = batch_writer(lambda: self._clones[name], sink, self.store, job_group=self._job_group(name))
        return WholeBatchDispatcher(
            write,
            self.log,
            what=name_of(sink),
            limit_s=delivery.retry.budget_s,
            objects=objects_of(sink),
            cancel=lambda: self.cancel_jobs([name]),
        )


def concurrency(sink: Sink, delivery: Delivery) -> int | None:
    """The number of tasks that may call the sink in parallel; None: any number."""
    return min((most for most in (sink.max_concurrency, delivery.max_concurrency) if most is not None), default=None)


def _slots(spark: SparkSession | None) -> int:
    from wal_sink.spark.private import task_slots  # noqa: PLC0415 - the core runs without Spark

    if spark is None:
        return 1
    return task_slots(spark.sparkContext) or 1  # unknown: one slot may be slow, but is never wrong


def check_environment(spark: SparkSession, store: StoreSpec) -> None:
    """Raise `ConfigError` if Spark's workers cannot stage."""
    from wal_sink.spark.cluster import WORKER_MODULES, check_workers  # noqa: PLC0415
    from wal_sink.spark.environment import check_versions  # noqa: PLC0415 - draining needs no Spark

    check_versions(spark)
    check_workers(spark, (*WORKER_MODULES, "s3fs") if store.scheme == S3 else WORKER_MODULES)


GRACE_S = 30.0
"""How long a run that ends by an exception waits for the chunks in flight."""
CANCEL_S = 5.0
"""How long it then waits for cancelled Spark jobs. A call that takes longer is left running."""


def _nothing() -> None:
    return


@dataclass(slots=True, eq=False, repr=False)  # its arguments may hold secrets
class Committers:
    """The arguments of a `WalSink`, and its committers once its WAL is open. Threads may share it."""

    owner: str
    """The `WalSink` in messages, without secrets."""
    spec: StoreSpec
    checkpoint: str
    """As the user wrote it; its full address once the WAL is open."""
    checkpoint_options: Mapping[str, object] | None
    settings: Settings
    deliveries: Mapping[str, Delivery]
    sinks: Mapping[str, Sink | BatchSink]
    moved_from: str | GonePlace | None
    take_over: TakeOver
    on_event: OnEvent | None
    metrics: Metrics | None
    pool: CommitterPool | None = None
    events: Events = OFF
    liveness: Liveness | None = None
    is_closed: bool = False
    opening: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    """Set: the committers finish the chunks in flight and keep the rest."""
    _knows_spark: bool = False
    _placement: Placement | None = None
    _process: Owner = field(default_factory=Owner)  # that opened it: a forked child has none of its threads
    _leave_exit: Callable[[], None] = _nothing
    _let_go: Callable[[], None] = _nothing  # of the sinks' objects

    def open(
        self,
        session: Callable[[], SparkSession | None],
        *,
        is_needed: bool,
        on_failure: Callable[[], None],
        at_end: Callable[[], None],
    ) -> CommitterPool:
        """The committer pool, made and started at the first call. `on_failure` is called if a sink gives up, `at_end`
        if the process exits before the end. `is_needed`: whether the caller needs the `session`.

        Waits for no sink, or it could wait for ever: a sink that gives up stops the query, the stop waits for `stage`,
        and `stage` calls this method.
        """
        self.refuse_fork()
        made = None
        try:
            with self.opening:
                self.refuse_closed()
                if self.pool is None:
                    made = self.pool = self._make_pool(session(), on_failure, at_end)
                elif is_needed and not self._knows_spark:
                    raise ConfigError(
                        f"{self.owner} was opened before a SparkSession existed. So the sinks run in this process, and "
                        "the checkpoint was read without Spark. Create the SparkSession before you enter the with "
                        "block and before you call any method"
                    )
                pool = self.pool
        finally:
            try:
                self.events.tell_queued()  # before a committer's first event
            finally:
                if made is not None:
                    made.start()
        return pool

    def begin(self, pool: CommitterPool, session: SparkSession | None, state: SparkSession | None) -> None:
        """Let the sinks of whole batches begin, each in a clone of `state`. `session` is that of a query, if there is
        one.
        """
        if session is not None:
            from wal_sink.spark import cluster  # noqa: PLC0415 - draining needs no Spark

            cluster.check_kept_batches(session, self.settings.retention_batches)
            cluster.warn_of_unchecked_shuffles(session)
        if self._placement is not None:
            self._placement.use_session(session, state)
        pool.start(whole_batches=True)

    def _make_pool(
        self, spark: SparkSession | None, on_failure: Callable[[], None], at_end: Callable[[], None]
    ) -> CommitterPool:
        self._process = Owner()
        with ExitStack() as held:
            held.callback(hold(self.sinks.values(), self.owner))
            run = self._open_run(spark)
            self._let_go = held.pop_all().close
        self._knows_spark = spark is not None
        pool = CommitterPool(run, stopping=self._stopping, on_failure=on_failure)
        self._leave_exit = at_exit(at_end)  # runs before Spark's own hook, which is older
        return pool

    def _open_run(self, spark: SparkSession | None) -> Run:
        opened = open_store(self.spec)  # first, since it names a missing package; no request
        events = self.events = events_of(opened.root, self.on_event, self.metrics)
        store = MeasuredStore(opened, meter_of(opened.root, self.metrics), SlowRequests(opened.root, events))
        if spark is not None:
            check_environment(spark, self.spec)
        self.checkpoint = checkpoint_location(self.checkpoint, spark)
        refuse_shared_folder(self.spec.url, self.checkpoint)
        for name, sink in self.sinks.items():
            if isinstance(sink, Sink) and sink.writes_files_to is not None:  # no other sink says it
                refuse_target_folder(name, sink.writes_files_to, self.spec.url, self.checkpoint)
        checkpoint = checkpoint_files(self.checkpoint, self.checkpoint_options, self.spec, spark)
        run = Run(store, checkpoint, self.settings, pause=self._pause, events=events)
        placement = Placement(run.log, self.spec, spark, self.settings.max_delivery_tasks, self._should_stop)
        served_sinks = [placement.serve(name, sink, self.deliveries[name]) for name, sink in self.sinks.items()]
        run.open_or_end(served_sinks, moved_from=self.moved_from, take_over=self.take_over)
        self._placement = placement
        return run

    # --- while they run

    def _pause(self, seconds: float) -> bool:
        """Wait on a committer's thread. True if the run is ending."""
        left_s = seconds
        while not self._should_stop():
            if self._stopping.wait(min(left_s, BEAT_EVERY_S)):
                return True
            left_s -= BEAT_EVERY_S
            if left_s <= 0:
                return False
        return True

    def _should_stop(self) -> bool:
        """Whether the run is ending. A committer that asks makes progress."""
        if self.liveness is not None and self.pool is not None:
            self.liveness.beat(threading.current_thread().name, self.pool.running)
        return self._stopping.is_set()

    def refuse_fork(self) -> None:
        """Call it before taking a lock: a lock that a thread of the parent held at the fork stays locked here."""
        if self.pool is not None:
            self._process.refuse_child(self.owner)

    def refuse_own_thread(self, call: str) -> None:
        """Call it before taking a lock: another thread may hold that lock while it waits for this thread."""
        if self.pool is not None and self.pool.is_own_thread:
            raise ConfigError(
                f"{self.owner}: {call} was called on a thread that delivers, for example by on_event or a logging "
                "handler. The call would wait for its own thread. In the hook, only set a flag or an Event; make the "
                "call on another thread"
            )

    def refuse_closed(self) -> None:
        if self.is_closed:
            raise ConfigError(f"{self.owner} was closed. Create a new WalSink")

    def pending(self) -> str:
        """How many batches of this run wait for the next start. No request."""
        if self.pool is None:
            return pending_text(0)
        history = self.pool.run.history
        return pending_text(history.pending(before=history.newest_known + 1)[0])

    def is_complete(self, batch_id: int) -> bool:
        """Whether Spark may have completed the batch; true if the checkpoint was never opened, since it may have."""
        return self.pool is None or self.pool.run.gate.ask_now(batch_id)

    # --- ending

    @property
    def can_close(self) -> bool:
        """False if it was closed before, or if the process that opened it is another one."""
        return not self.is_closed and (self.pool is None or self._process.is_here)

    def close(self) -> None:
        """Open no more."""
        self.is_closed = True
        self._leave_exit()

    def stop(self) -> None:
        """Finish the chunks in flight and keep the rest."""
        if self.pool is None or self.pool.stop(GRACE_S):
            self._let_go()
            return
        if self._placement is not None:
            self._placement.cancel_jobs(self.sinks)
        if self.pool.stop(CANCEL_S):
            self._let_go()
            return
        _logger.warning(
            "%s: a call of a sink or of on_event is still running. It is not known whether the target received the "
            "last chunks of this sink. End this process, because it uses the sink until the call returns. The next "
            "start handles these chunks according to the guarantee of the sink",
            self.owner,
        )
        self.pool.end_later(self._let_go)  # until then the sink stays held: no other WalSink calls it meanwhile

"""The place where each sink runs, driver or executors: decided once, before the query starts, and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError
from wal_sink.log.log import Log
from wal_sink.protocol.dispatch import (
    LocalDispatcher,
    SegmentDispatcher,
    ServedSink,
    WholeBatchDispatcher,
    copier,
    serve,
)
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.sinks.held import objects_of
from wal_sink.stores.spec import S3, StoreSpec
from wal_sink.support.limits import DeliverySlots
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import name_of

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
        return serve(name, sink, delivery, dispatcher, travels=payload)

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
                "this query belongs to another SparkSession than the one before it, whose batches may still be due to "
                f"{sorted(self._clones)}. Close this WalSink, and create a new one for this query"
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
                "sink %s: %s runs in this process, as there is no classic Spark session: its rows have the time zone "
                "of the session that staged them, and TaskContext.get() returns None",
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

"""Checks of a cluster before it is relied on: its task slots, its settings, and whether its executors see the WAL.

All of it runs on the driver; only `_CreateThere` travels to a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError, StoreError
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import told
from wal_sink.spark.session.error_lines import telling_line
from wal_sink.spark.session.job_properties import described, is_running
from wal_sink.spark.session.private import private
from wal_sink.spark.session.workers import classic_context
from wal_sink.stores.base import ObjectExists, ObjectMissing
from wal_sink.stores.opening import open_store
from wal_sink.stores.probe import new_object
from wal_sink.stores.spec import LOCAL, StoreSpec

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from wal_sink.runtime.clock import Runtime

LOG = logger_of(__name__)

REPEAT_CHECKS = tuple(
    f"spark.sql.shuffle.orderIndependentChecksum.{name}" for name in ("enabled", "enableFullRetryOnMismatch")
)
"""Whether Spark notices that a shuffle it repeats comes out otherwise. On since 4.2; 4.0 does not know them."""
_OLD_FETCHES = "spark.shuffle.useOldFetchProtocol"
"""With it the outputs of a shuffle do not tell which task wrote them: `wal_sink.spark.staging.repeated_shuffles`."""
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"

_MOST_TRIED = 16
_SHARE_IT = (
    "The WAL must lie where driver and executors see the same: s3://…, gs://…, abfs://…, or a folder that every "
    "machine mounts under the same path"
)


def task_slots(context: SparkContext) -> int | None:
    """How many tasks the cluster can run at once now; None if that is not known, and each caller says what follows.

    It is not known of a Spark that was stopped, before the first executor is there, and where this version of Spark
    counts in another way (`SparkContext.maxNumConcurrentTasks` is not public). Never 0.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - `wal_sink.spark.placement` names this module without Spark

    if not is_running(context):
        return None
    try:
        cluster = private(context, "_jsc").sc()
        found = int(cluster.maxNumConcurrentTasks(cluster.resourceProfileManager().defaultResourceProfile()))
    except (Py4JError, OSError):
        return None
    return found if found > 0 else None


def check_shared_store(spark: SparkSession, spec: StoreSpec, runtime: Runtime) -> None:
    """Let executors create objects in the WAL and read them here: `memory://` fails, and each machine's own folder.

    Each object is looked for before it is created. So a store, a mount or a proxy shows itself that remembers missing
    objects: it would hide a newer process's term.

    Runs one small Spark job. On a local folder it has a task for each slot, since one executor may share the driver's
    machine, and as many tasks as are ever tried where the slots are not known.
    Raises `ConfigError` if the executors' store is not the driver's, `StoreError` if a shared one cannot be used.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    context = classic_context(spark)
    tries = min(task_slots(context) or _MOST_TRIED, _MOST_TRIED) if spec.scheme == LOCAL else 1
    objects = [new_object(runtime) for _ in range(tries)]
    open_store(spec).begin()  # an earlier run of this process may have lost another folder of the same name
    for path, _ in objects:
        _refuse_known(path, spec)
    try:
        with described(context, f"wal-sink {spec.safe_url}: do the executors see it?"):
            answers = context.parallelize(objects, tries).map(_CreateThere(spec)).collect()
    except (Py4JError, PySparkException) as error:
        raise ConfigError(f"a task that tries {spec.safe_url} failed: {telling_line(error)}. {_SHARE_IT}") from error
    try:
        _raise_first(answers, spec, runtime)
        _read_here(objects, spec)
    finally:
        with suppress(StoreError):
            open_store(spec).delete([path for path, _ in objects])


@dataclass(frozen=True, slots=True)
class _Answer:
    """The problem that one executor met; empty if it created its object."""

    problem: str = ""
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class _CreateThere:
    """In a task: create an object. The store's options travel in it and are shown nowhere."""

    spec: StoreSpec

    def __call__(self, wanted: tuple[str, bytes]) -> _Answer:
        try:
            store = open_store(self.spec)
            store.begin()  # as on the driver, where the worker served an earlier run
            with suppress(ObjectExists):  # of this task's first attempt
                store.create(*wanted)
            if self.spec.scheme == LOCAL and not self.spec.single_writer:
                return _Answer(store.create_doubt)  # each machine mounts it in its own way
        except StoreError as error:
            return _Answer(str(error), may_pass=self.spec.scheme != LOCAL)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver tells the user
            return _Answer(self.spec.scrub(told(error)))
        return _Answer()


def _raise_first(answers: Sequence[_Answer], spec: StoreSpec, runtime: Runtime) -> None:
    for answer in answers:
        if answer.problem:
            kind = StoreError if answer.may_pass else ConfigError
            if spec.scheme == LOCAL:
                _raise_if_refused_here_too(spec, runtime)
            raise kind(f"Spark's executors cannot write to {spec.safe_url}: {answer.problem}. {_SHARE_IT}")


def _raise_if_refused_here_too(spec: StoreSpec, runtime: Runtime) -> None:
    """Try the same here: if the driver may not write either, its own error says so, and sharing is not the problem."""
    store, (path, data) = open_store(spec), new_object(runtime)
    store.create(path, data)
    store.delete([path])


def _refuse_known(path: str, spec: StoreSpec) -> None:
    try:
        found = open_store(spec).read(path)
    except ObjectMissing:
        return
    raise ConfigError(
        f"{spec.safe_url}/{path}: expected nothing under a name that was just made up, found {len(found)} bytes. This "
        "store, or a proxy before it, answers for objects that are not there; take it out of the way"
    )


def _read_here(objects: Sequence[tuple[str, bytes]], spec: StoreSpec) -> None:
    store = open_store(spec)
    for path, data in objects:
        try:
            found = store.read(path)
        except ObjectMissing:
            found = None
        if found != data:
            raise ConfigError(
                f"{spec.safe_url}: the driver does not find there what Spark's executors wrote: each has its own, or "
                f"what was not there before is remembered as missing (a caching proxy, a mount). {_SHARE_IT}"
            )


def check_kept_batches(spark: SparkSession, retention_batches: int) -> None:
    """A checkpoint rolled back to a batch that Spark keeps must find it in the WAL. Raises `ConfigError` if it may not.

    Nothing is guessed where this Spark does not know the setting: it may keep any number under another name.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        kept = int(spark.conf.get(_KEPT_BATCHES) or "")
    except (PySparkException, ValueError) as error:
        raise ConfigError(
            f"this Spark does not tell {_KEPT_BATCHES}, the number of batches it keeps: {telling_line(error)}. Use a "
            "version of Spark that README.md names, or a newer wal-sink"
        ) from error
    if kept > retention_batches:
        raise ConfigError(
            f"{_KEPT_BATCHES} is {kept}, but retention_batches={retention_batches}: a checkpoint rolled back to a "
            "batch that Spark keeps must find it in the WAL; raise retention_batches"
        )


def warn_of_unchecked_shuffles(spark: SparkSession) -> None:
    """Tell that nobody notices if a shuffle that Spark repeats gives the tasks other rows: neither Spark nor wal-sink.

    Only the user can switch it on: Spark plans the shuffles of a batch before `foreachBatch` is called.
    """
    if spark.conf.get(_OLD_FETCHES, "false") != "true":
        return  # every staging job looks for itself
    found = {key: spark.conf.get(key, None) for key in REPEAT_CHECKS}
    if all(value == "true" for value in found.values()):
        return
    way_out = "use Spark 4.1 or newer" if None in found.values() else "set them to true before the query starts"
    LOG.warning(
        "%s: if an executor is lost after a shuffle by a value that is not deterministic (such as repartition by a "
        "random function), Spark loses and doubles rows of the batch, and nobody sees it. If the query has such a "
        "shuffle, make its value deterministic, set %s to false, or %s",
        ", ".join(f"{key} is {value or 'not known'}" for key, value in {_OLD_FETCHES: "true", **found}.items()),
        _OLD_FETCHES,
        way_out,
    )

"""Checks of a cluster before use: its task slots, its settings, and whether its executors see the WAL.

All code runs on the driver, except `_CreateThere`, which runs in a worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError, StoreError
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import told
from wal_sink.spark.session.configuration import setting_of
from wal_sink.spark.session.error_lines import telling_line
from wal_sink.spark.session.job_properties import described, is_running
from wal_sink.spark.session.private import private, understood
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
"""Settings with which Spark detects that a repeated shuffle gives another result. On since 4.2; unknown to 4.0."""
_OLD_FETCHES = "spark.shuffle.useOldFetchProtocol"
"""With this setting, the outputs of a shuffle do not tell which task wrote them. So
`wal_sink.spark.staging.repeated_shuffles` cannot check them."""
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"

_MOST_TRIED = 16
_MOST_INLINE_BUDGET = 16 << 20
_RESULT_SIZE = "spark.driver.maxResultSize"
"""The size that the results of a job may have together; 0 for no limit, 1g by default."""
_SIZE = re.compile(r"(\d+)([bkmgtp]?)b?")
_SHARE_IT = (
    "Driver and executors must see the same WAL: use s3://…, gs://…, abfs://…, or a folder that every machine mounts "
    "under the same path"
)


def task_slots(context: SparkContext) -> int | None:
    """The number of tasks that the cluster can run at once now, never 0; None if it is not known.

    It is unknown after Spark was stopped, before the first executor registered, and if this version of Spark counts in
    another way (`SparkContext.maxNumConcurrentTasks` is not public). Each caller decides what to do without it.
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


def inline_budget(context: SparkContext) -> int:
    """Return the budget of inline rows, in bytes, for the jobs of this driver; see `wal_sink.wal.inline_rows`.

    It is a 64th of what a job may return (`spark.driver.maxResultSize`) or of the driver's heap, whichever is less, and
    at most 16 MiB. So even the inline rows of 40,000 tasks take less than an eighth of either.
    """
    with understood(context.version, "how much a job may return to the driver"):
        heap = int(private(context, "_jvm").java.lang.Runtime.getRuntime().maxMemory())
        # In every batch, and `SparkContext.getConf` would copy each setting to Python, one call each.
        setting = private(context, "_jsc").getConf().get(_RESULT_SIZE, "1g")
        permitted = size_of(setting)
        if permitted is None:
            raise ValueError(f"{_RESULT_SIZE} is {setting!r}")
    return min(heap // 64, (permitted or heap) // 64, _MOST_INLINE_BUDGET)


def size_of(setting: str | None) -> int | None:
    """Return a size in bytes. Spark writes sizes as `64m`, `67108864b` or `67108864`; None for anything else."""
    match = _SIZE.fullmatch(setting.strip().lower()) if setting else None
    return None if match is None else int(match[1]) << (10 * "bkmgtp".index(match[2] or "b"))


def check_shared_store(spark: SparkSession, spec: StoreSpec, runtime: Runtime) -> None:
    """Check that the driver can read objects that executors create in the WAL.

    `memory://` fails this check, and so does a folder that each machine has for itself. Each object is looked for
    before it is created: this finds a store, a mount or a proxy that remembers missing objects, which would hide the
    term of a newer process.

    Runs one small Spark job. On a local folder it has one task per slot, because a single executor may share the
    driver's machine; if the number of slots is unknown, it has the maximum number of tasks.
    Raises `ConfigError` if the executors' store is not the driver's, `StoreError` if a shared one cannot be used.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    context = classic_context(spark)
    tries = min(task_slots(context) or _MOST_TRIED, _MOST_TRIED) if spec.scheme == LOCAL else 1
    objects = [new_object(runtime) for _ in range(tries)]
    open_store(spec).begin()  # an earlier run of this process may have lost a folder of the same name
    for path, _ in objects:
        _refuse_known(path, spec)
    try:
        with described(context, f"wal-sink {spec.safe_url}: do the executors see it?"):
            answers = context.parallelize(objects, tries).map(_CreateThere(spec)).collect()
    except (Py4JError, PySparkException) as error:
        raise ConfigError(f"a task that tests {spec.safe_url} failed: {telling_line(error)}. {_SHARE_IT}") from error
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
    """In a task: create an object. It carries the store's options, which are never shown."""

    spec: StoreSpec

    def __call__(self, wanted: tuple[str, bytes]) -> _Answer:
        try:
            store = open_store(self.spec)
            store.begin()  # needed if this worker served an earlier run, as on the driver
            with suppress(ObjectExists):  # created by the first attempt of this task
                store.create(*wanted)
            if self.spec.scheme == LOCAL and not self.spec.single_writer:
                return _Answer(store.create_doubt)  # each machine may mount the folder differently
        except StoreError as error:
            return _Answer(str(error), may_pass=self.spec.scheme != LOCAL)
        except Exception as error:  # noqa: BLE001 - the driver reports every error to the user
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
    """Try the same on the driver. If it cannot write either, its own error is raised: sharing is not the problem."""
    store, (path, data) = open_store(spec), new_object(runtime)
    store.create(path, data)
    store.delete([path])


def _refuse_known(path: str, spec: StoreSpec) -> None:
    try:
        found = open_store(spec).read(path)
    except ObjectMissing:
        return
    raise ConfigError(
        f"{spec.safe_url}/{path}: expected no object under a new random name, found {len(found)} bytes. This store, or "
        "a proxy in front of it, returns data for objects that do not exist. Use the store without it"
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
                f"{spec.safe_url}: the driver does not find an object that Spark's executors wrote there. Either each "
                f"machine has its own folder, or a caching proxy or a mount remembers objects as missing. {_SHARE_IT}"
            )


def check_kept_batches(spark: SparkSession, retention_batches: int) -> None:
    """Raise `ConfigError` if Spark keeps more batches than the WAL: a checkpoint may be rolled back to each of them.

    A Spark that does not know the setting is refused too: it may keep any number of batches under another setting.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        kept = int(setting_of(spark, _KEPT_BATCHES).value or "")
    except (PySparkException, ValueError) as error:
        raise ConfigError(
            f"the number of batches that Spark keeps ({_KEPT_BATCHES}) cannot be read: {telling_line(error)}. Use a "
            "version of Spark that README.md lists, or a newer wal-sink"
        ) from error
    if kept > retention_batches:
        raise ConfigError(
            f"{_KEPT_BATCHES} is {kept}, but retention_batches={retention_batches}. The WAL must keep every batch that "
            "Spark keeps, because a checkpoint may be rolled back to it. Raise retention_batches"
        )


def warn_of_unchecked_shuffles(spark: SparkSession) -> None:
    """Warn if wal-sink cannot detect that Spark repeated a part of a shuffle with other rows.

    Spark's own check covers the shuffles that SQL plans. Only the user can switch it on: Spark plans the shuffles of a
    batch before it calls `foreachBatch`.
    """
    if not setting_of(spark, _OLD_FETCHES).is_true:
        return  # every staging job checks its own shuffles
    found = {key: setting_of(spark, key) for key in REPEAT_CHECKS}
    if all(each.is_true for each in found.values()):
        which, way_out = "a shuffle of an RDD (Spark compares only those that SQL plans)", ""
    else:
        which = "a shuffle"
        is_known = all(each.is_known for each in found.values())
        way_out = "; or " + ("set them to true before the query starts" if is_known else "use Spark 4.1 or newer")
    LOG.warning(
        "%s: Spark may lose or duplicate rows of a batch and report no error. This happens if an executor is lost "
        "after %s on a value that is not deterministic (for example, repartition by a random function). If the "
        "query has such a shuffle, do one of the following: use a deterministic value for the shuffle; set %s to "
        "false%s",
        ", ".join(f"{key} is {value}" for key, value in {_OLD_FETCHES: "true", **found}.items()),
        which,
        _OLD_FETCHES,
        way_out,
    )

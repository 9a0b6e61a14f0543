"""Checks of a cluster before use: the Python of its workers, whether they see the WAL, and its settings.

All code runs on the driver, except `_CreateThere` and the function that `_look_for` returns: they run in a worker.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.private import described, private, setting_of, task_slots, understood
from wal_sink.spark.tasks import telling_line
from wal_sink.stores.base import ObjectExists, ObjectMissing
from wal_sink.stores.creation import new_object
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import LOCAL, StoreSpec
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import told

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from wal_sink.support.clock import Runtime


_Packages = dict[str, tuple[str, str]]
_logger = logger_of(__name__)
WORKER_MODULES = ("pyarrow", "pandas", "fsspec", "msgspec", "wal_sink")
"""The modules that staging and delivery import in Spark's workers. A WAL on S3 needs `s3fs` too."""
OURS = frozenset({"wal_sink"})
"""Those of them that a zip file of `--py-files` can bring. The others are compiled."""
_BY_PY_FILES = (
    "ship wal-sink alone, with spark-submit --py-files and a zip file that has the folders wal_sink and "
    "wal_sink_backends at its top"
)
PACKAGES = ("wal_sink", "wal_sink_backends")
"""The packages that must be the same in the workers as in the driver: they exchange pickled objects."""
_MOST_ASKED = 16
REPEAT_CHECKS = tuple(
    f"spark.sql.shuffle.orderIndependentChecksum.{name}" for name in ("enabled", "enableFullRetryOnMismatch")
)
"""Settings with which Spark detects that a repeated shuffle gives another result. On since 4.2; unknown to 4.0."""
_OLD_FETCHES = "spark.shuffle.useOldFetchProtocol"
"""With this setting, the outputs of a shuffle do not tell which task wrote them. So
`wal_sink.spark.staging` cannot check them."""
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


@dataclass(frozen=True, slots=True)
class WorkerPython:
    """The Python that one Spark task runs in, as that task sees it."""

    executable: str
    version: str
    missing: Mapping[str, str]
    """Modules that cannot be imported there, with the reason."""
    host: str = ""
    packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of each of `PACKAGES` that is there: its place, and a digest of its source."""


def check_workers(spark: SparkSession, modules: Sequence[str] = WORKER_MODULES) -> WorkerPython:
    """Run one tiny job that checks whether Spark's workers can run wal-sink.

    `spark` is a classic session, not a Connect one. `modules` are the names that a worker must be able to import. On a
    cluster the job has a task for each slot, up to 16, because the hosts may differ; if no slot is known yet, it has
    one task. The first call takes about a second, because Spark starts its first workers; later calls take tens of
    milliseconds. Returns the Python of the first task.

    This interpreter replaces an unsuitable one if Spark runs on this machine alone and took `python3` from PATH because
    no setting names a Python. PySpark 4 reads `SparkContext.pythonExec` whenever it wraps a function, so later tasks
    use it.

    Raises `ConfigError` with the interpreter, the versions, the missing modules and the ways out.
    """
    context = spark.sparkContext
    try:
        return _checked(context, modules)
    except ConfigError:
        if not _may_correct(context):
            raise
        return _corrected(context, modules)


def _corrected(context: SparkContext, modules: Sequence[str]) -> WorkerPython:
    before = context.pythonExec
    context.pythonExec = sys.executable
    try:
        worker = _checked(context, modules)
    except ConfigError:
        context.pythonExec = before
        raise
    _logger.warning(
        "Spark's workers would run %r, but this Python does not have the modules that wal-sink needs. From now on, "
        "the workers run %s. To choose another Python, set PYSPARK_PYTHON before the session is created.",
        before,
        sys.executable,
    )
    return worker


def _may_correct(context: SparkContext) -> bool:
    """Whether to replace the workers' interpreter: no setting chose it, and the workers run on this machine."""
    return _is_local(context) and context.pythonExec in {"", "python3"} and not os.environ.get("PYSPARK_PYTHON")


def _is_local(context: SparkContext) -> bool:
    """Whether the workers run on this machine alone, all of them with the same Python."""
    return re.fullmatch(r"local(\[.*\])?", context.master or "") is not None


def _checked(context: SparkContext, modules: Sequence[str]) -> WorkerPython:
    workers = _ask_workers(context, modules)
    worker = next((worker for worker in workers if worker.missing), None)
    if worker is None:
        _refuse_other_code(context, workers)
        return workers[0]
    lines = "; ".join(f"{name} ({reason})" for name, reason in worker.missing.items())
    raise ConfigError(
        f"Spark's workers run {worker.executable} (Python {worker.version}){_where(context, worker)}, but this Python "
        f"cannot import these modules: {lines}. {_driver()} {_ways_out(context, worker.missing)}"
    )


def _refuse_other_code(context: SparkContext, workers: Sequence[WorkerPython]) -> None:
    """Refuse workers with another wal-sink than the driver's. A package that a worker lacks is not compared: a task
    that needs it says so.
    """
    here = _packages_of()(PACKAGES)
    for worker in workers:
        for name, (place, digest) in worker.packages.items():
            if name in here and here[name][1] != digest:
                raise ConfigError(
                    f"Spark's workers run {worker.executable} (Python {worker.version}){_where(context, worker)}, "
                    f"whose {name} in {place} is another version than that of the driver in {here[name][0]} (digests "
                    f"of the source: {digest} and {here[name][1]}). Driver and workers exchange Python objects. Bring "
                    "the driver's version to every host: install it there, or ship it with --py-files or spark.archives"
                )


def _ask_workers(context: SparkContext, modules: Sequence[str]) -> list[WorkerPython]:
    tasks = 1 if _is_local(context) else min(task_slots(context) or 1, _MOST_ASKED)
    try:
        with described(context, "wal-sink: which Python do the workers run?"):
            answers = context.parallelize(range(tasks), tasks).map(_look_for(tuple(modules))).collect()
    except (Py4JError, PySparkException) as error:
        raise ConfigError(_translated(str(error), context)) from error
    return [WorkerPython(*answer) for answer in answers]


def _look_for(modules: tuple[str, ...]) -> Callable[[int], tuple[str, str, dict[str, str], str, _Packages]]:
    """The function that runs in a worker. It is nested so that it is pickled by value: it must run without wal_sink."""
    packages_of, packages = _packages_of(), PACKAGES

    def look(_: int) -> tuple[str, str, dict[str, str], str, _Packages]:
        import importlib  # noqa: PLC0415 - this body runs in a worker
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        missing = {}
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - every error of an import is an answer
                missing[name] = traceback.format_exception_only(error)[-1].strip()  # none of our modules may be there
        return sys.executable, platform.python_version(), missing, platform.node(), packages_of(packages)

    return look


def _packages_of() -> Callable[[Sequence[str]], _Packages]:
    """The function that finds packages, by their source, in a folder or a zip file. Nested for the same reason."""

    def find(names: Sequence[str]) -> _Packages:
        import hashlib  # noqa: PLC0415 - this body runs in a worker
        import importlib.util  # noqa: PLC0415
        import pathlib  # noqa: PLC0415
        import zipfile  # noqa: PLC0415

        found = {}
        for name in names:
            spec = importlib.util.find_spec(name)
            if spec is None or not spec.submodule_search_locations:
                continue
            place = next(iter(spec.submodule_search_locations))
            archive = getattr(spec.loader, "archive", None)
            root: Any = pathlib.Path(place)
            if archive:  # `--py-files` brought it
                root = zipfile.Path(archive, place[len(archive) :].strip("/\\") + "/")
            digest, todo = hashlib.sha256(), [("", root)]
            while todo:
                path, folder = todo.pop()
                for each in sorted(folder.iterdir(), key=lambda entry: str(entry.name)):
                    inner = f"{path}/{each.name}"
                    if each.is_dir():
                        todo.append((inner, each))
                    elif inner.endswith(".py"):
                        digest.update(f"{inner} {len(each.read_bytes())} ".encode() + each.read_bytes())
            found[name] = (str(place), digest.hexdigest()[:12])
        return found

    return find


def _translated(text: str, context: SparkContext) -> str:
    mismatch = re.search(r"PYTHON_VERSION_MISMATCH\S*\s+Python in worker has different version: (\S+?)\.? than", text)
    if mismatch or "PYTHON_VERSION_MISMATCH" in text:
        version = f" (Python {mismatch.group(1)})" if mismatch else ""
        trouble = (
            f"Spark's workers run {context.pythonExec}{version}, but PySpark needs the driver's minor version there."
        )
    elif "Cannot run program" in text:
        trouble = (
            f"Spark could not start its workers' Python {context.pythonExec!r}: this program does not exist on the "
            "machine."
        )
    else:
        trouble = f"Spark's workers run {context.pythonExec}, and a first task failed there: {telling_line(text)}."
    return f"{trouble} {_driver()} {_ways_out(context)}"


def _driver() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"The driver runs {sys.executable} (Python {version})."


def _where(context: SparkContext, worker: WorkerPython) -> str:
    return "" if _is_local(context) else f" on host {worker.host}"


def _ways_out(context: SparkContext, missing: Collection[str] = ()) -> str:
    is_local = (context.master or "").startswith("local")
    way = (
        f"set PYSPARK_PYTHON={sys.executable}"
        if is_local
        else "set PYSPARK_PYTHON to a Python of the same minor version with wal-sink,"
    )
    only_ours = "" if set(missing) - OURS or not missing else f"{_BY_PY_FILES}; "
    return (
        f"Your options: {only_ours}{way} before the session is created (with spark-submit, also pass "
        "--conf spark.pyspark.python=...); install wal-sink into the Python that the workers run; or ship an "
        "environment that contains it with spark.archives."
    )


@lru_cache(maxsize=1)  # it takes nine questions to the JVM, and a context keeps its settings
def inline_budget(context: SparkContext) -> int:
    """Return the budget of inline rows, in bytes, for the jobs of this driver; see `wal_sink.protocol.partitions`.

    It is a 64th of what a job may return (`spark.driver.maxResultSize`) or of the driver's heap, whichever is less, and
    at most 16 MiB. So even the inline rows of 40,000 tasks take less than an eighth of either.
    """
    with understood(context.version, "how much a job may return to the driver"):
        heap = int(private(context, "_jvm").java.lang.Runtime.getRuntime().maxMemory())
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
    context = spark.sparkContext
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
    _logger.warning(
        "%s: Spark may lose or duplicate rows of a batch and report no error. This happens if an executor is lost "
        "after %s on a value that is not deterministic (for example, repartition by a random function). If the "
        "query has such a shuffle, do one of the following: use a deterministic value for the shuffle; set %s to "
        "false%s",
        ", ".join(f"{key} is {value}" for key, value in {_OLD_FETCHES: "true", **found}.items()),
        which,
        _OLD_FETCHES,
        way_out,
    )

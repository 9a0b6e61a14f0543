"""The single access to Spark's private interface, used where Spark has no public one.

A missing name or an unexpected answer is an error; it never counts as "nothing there". `docs/ASSUMPTIONS.md` lists what
wal-sink assumes about each name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError
from wal_sink.redaction import redacted
from wal_sink.spark.session.versions import KNOWN_VERSIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
            f"{owner.__module__}.{owner.__qualname__} has no {name} in PySpark {_version()}, but wal-sink needs it. "
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


def _version() -> str:
    from pyspark import __version__  # noqa: PLC0415 - a caller that has an object of PySpark has imported it

    return __version__

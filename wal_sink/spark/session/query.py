"""Start, check and stop of the streaming query that a WAL belongs to. Driver only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, PySparkValueError

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.redaction import mask_url
from wal_sink.runtime.stopped import StoppedError
from wal_sink.spark.session.connect import OVER_CONNECT, is_connect
from wal_sink.spark.session.leftovers import CHECKPOINT, remember_ours
from wal_sink.spark.session.versions import check_versions
from wal_sink.spark.session.writer_check import check_stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

_ASYNC_PROGRESS = "AsyncProgressTracking"


def session_of(writer: DataStreamWriter) -> SparkSession:
    """The user's session behind a writer. Raises `ConfigError` if `writer` is no `DataStreamWriter`, for a version that
    wal-sink does not know.
    """
    check_stream_writer(writer)
    check_classic(writer)
    spark = cast("SparkSession", cast("Any", writer)._spark)  # noqa: SLF001 - PySpark has no public way
    check_versions(spark)
    return spark


def check_classic(thing: object) -> None:
    """Refuse a DataFrame of Spark Connect, whose `foreachBatch` runs in a process of the server. `ConfigError`."""
    if is_connect(thing):
        raise ConfigError(
            "stage() cannot be called over Spark Connect: foreachBatch runs there in a process of the server, where "
            f"no committer can run. {OVER_CONNECT}"
        )


def schema_of(writer: DataStreamWriter) -> StructType:
    """The schema of the batches that a query will have. Raises `ConfigError` for a type that PySpark lacks."""
    df = cast("Any", writer)._df  # noqa: SLF001 - PySpark has no public way
    try:
        return cast("StructType", df.schema)
    except PySparkValueError as error:  # PySpark 3.5 has no class for Spark's calendar interval
        columns = df._jdf.schema().catalogString()  # noqa: SLF001
        said = f"PySpark lacks a type of {columns} ({error}). Cast the column to a string"
        raise ConfigError(f"This DataFrame cannot be staged: {said}") from error


def start_query(
    writer: DataStreamWriter, checkpoint: str, on_batch: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Start the query with `on_batch` as its function; `refuse_leftovers` must have accepted the writer.

    Raises `ConfigError` for a trigger that cannot work, before the query runs.
    """
    remember_ours(writer.foreachBatch(on_batch))
    try:
        query = writer.option(CHECKPOINT, checkpoint).start()
    except (AnalysisException, IllegalArgumentException) as error:
        raise ConfigError(
            f"Spark refuses this query for wal-sink: {error}. wal-sink needs micro-batches (trigger availableNow, "
            "processingTime, once or none); continuous and real-time triggers have no micro-batches"
        ) from error
    except Py4JJavaError as error:
        raise ConfigError(
            f"Spark cannot start this query with checkpointLocation {mask_url(checkpoint)}: {_cause_of(error)}"
        ) from error
    if _ASYNC_PROGRESS in _execution_class(query):
        query.stop()
        raise ConfigError(
            "asynchronous progress tracking is on: Spark would complete batches before their checkpoint is "
            "written. Remove the option asyncProgressTrackingEnabled"
        )
    return query


def wait_for_end(query: StreamingQuery) -> None:
    """Wait until a query ended. Raises Spark's error if the query failed.

    Another thread waits for the JVM. A signal handler may raise while the caller waits. In the middle of a call of the
    JVM this would leave an answer on the caller's connection. Every later call on it, such as the stop of the query,
    would then wait for ever (measured).
    """
    ended: Future[None] = Future()

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=wait, name="wal-sink-wait-for-query", daemon=True).start()
    ended.result()


def stop_query(query: StreamingQuery) -> None:
    """Stop a query and wait for its thread, so that the checkpoint is final. Does nothing if the query has ended."""
    try:
        query.stop()
    except (Py4JError, PySparkException) as error:
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - no public way; the query ended with its context
            return
        raise WalSinkError(
            f"the query cannot be stopped: {error}. The WAL keeps every batch that the query completes. End the driver "
            "process of the query, then start the query again"
        ) from error


def sleep_in_stream(df: DataFrame, seconds: float) -> None:
    """Sleep inside `foreachBatch`, on the JVM's thread of the stream. `query.stop()` interrupts it: `StoppedError`.

    Spark searches the text of that error to distinguish its own interruption from a failure of the query. It searches
    with a regular expression that overflows the stack if Java's stack trace follows the text (both measured).
    """
    try:
        cast("Any", df.sparkSession.sparkContext)._jvm.java.lang.Thread.sleep(int(seconds * 1000))  # noqa: SLF001
    except Py4JJavaError as error:
        raise StoppedError(
            "the query was stopped (py4j.protocol.Py4JJavaError: An error occurred while calling "
            f"z:java.lang.Thread.sleep: {_cause_of(error)})"
        ) from None


def _cause_of(error: Py4JJavaError) -> str:
    return str(error.java_exception).partition("\n")[0]


def _execution_class(query: StreamingQuery) -> str:
    wrapper = cast("Any", query)._jsq  # noqa: SLF001 - PySpark has no public way
    execution = wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper
    return str(execution.getClass().getName())

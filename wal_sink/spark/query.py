"""Start, check and stop of the streaming query that a WAL belongs to. Driver only.

Settings of the user's writer that a WAL would override silently are refused. `DataStreamWriter` has no getters, so the
JVM's private fields are read (they are the same in Spark 3.5 to 4.3). A field that cannot be read is an error:
otherwise the checkpoint of an old query would be replaced silently, and its whole history delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, PySparkValueError

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.spark.checkpoint_files import checkpoint_location
from wal_sink.spark.connect import CHECKPOINT, asked, check_classic, check_stream_writer
from wal_sink.spark.environment import check_versions
from wal_sink.spark.identity import Place, compare
from wal_sink.spark.private import understood
from wal_sink.support.clock import StoppedError
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import mask_url
from wal_sink.support.texts import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from wal_sink.sinks.base import BatchSink, Sink


_FOREACH_BATCH = "foreachBatch"
_COMPLETE = "Complete"
_NO_SINKS: Mapping[str, Sink | BatchSink] = MappingProxyType({})
_logger = logger_of(__name__)
_ours: WeakKeyDictionary[DataStreamWriter, Any] = WeakKeyDictionary()
"""Our function that each writer was started with. A writer may be started again, and must then not be refused."""
_ASYNC_PROGRESS = "AsyncProgressTracking"


def refuse_leftovers(
    writer: DataStreamWriter, spark: SparkSession, checkpoint: str, sinks: Mapping[str, Sink | BatchSink] = _NO_SINKS
) -> None:
    """Refuse a writer that already has another target or another checkpoint. Raises `ConfigError`. Sends no request.

    `checkpoint` is the full address that the WAL was given. Trigger, output mode and query name stay as they are. With
    output mode complete, a warning names each of `sinks` that would get the same rows in every batch.
    """
    fields = _Fields(writer)
    found = fields.option(CHECKPOINT)
    # The user wrote both addresses. If it is undecided whether they name one folder, the user must remove one of them.
    if found is not None and compare(spark, checkpoint_location(found, spark), checkpoint) is not Place.SAME:
        raise ConfigError(
            f'the writer has option("{CHECKPOINT}", "{mask_url(found)}"), but WalSink was given the checkpoint '
            f"{mask_url(checkpoint)}. The checkpoint of WalSink would replace the checkpoint of the writer, and the "
            f"query would start from the beginning. To keep the checkpoint of the writer, pass {mask_url(found)} to "
            "WalSink. To use the checkpoint of WalSink, remove the option. Nothing was started"
        )
    if (target := _target(writer, fields)) is not None:
        raise ConfigError(
            f"the writer has {target}. WalSink would override this setting, because WalSink decides where the rows go. "
            "Remove this setting from the writer. Nothing was started"
        )
    if str(fields.read("outputMode")) == _COMPLETE:
        _warn_of_repeats({name: sink for name, sink in sinks.items() if not sink.replaces_rows})


def _warn_of_repeats(appending: Mapping[str, Sink | BatchSink]) -> None:
    for name, sink in appending.items():
        _logger.warning(
            "the query's output mode is complete: each batch holds the whole result, not only the changes. Sink %r "
            "(%s) adds the rows of each batch to those of earlier ones. Use a sink that replaces rows by their key, "
            "wrap.spark_writer(format, options, mode='overwrite') or wrap.foreach_batch(fn). Or use "
            "outputMode('update') or 'append', because these modes send a row only when it changes or is final",
            name,
            name_of(sink),
        )


def _target(writer: DataStreamWriter, fields: _Fields) -> str | None:
    function, source = fields.read("foreachBatchWriter"), fields.read("source")
    ours = _ours.get(writer)
    if function is not None and not (ours is not None and function.equals(ours)):
        return f"{_FOREACH_BATCH}(…)"
    if fields.read("foreachWriter") is not None:
        return "foreach(…)"
    if source not in {_FOREACH_BATCH, fields.default_source()}:
        return f'format("{source}")'
    if (path := fields.option("path")) is not None:
        return f'path("{mask_url(path)}") as an option'
    for name, call in (("partitioningColumns", "partitionBy"), ("clusteringColumns", "clusterBy")):
        if hasattr(writer, call) and fields.is_given(name):  # Spark 3.5 has no clusterBy, so nobody can have called it
            return f"{call}(…)"
    return None


class _Fields:
    """The private fields of a writer's JVM half. Raises `ConfigError` for one that cannot be read."""

    def __init__(self, writer: DataStreamWriter) -> None:
        self._session = cast("Any", writer)._spark  # noqa: SLF001 - PySpark has no public way
        self._half = cast("Any", writer)._jwrite  # noqa: SLF001

    def read(self, name: str) -> Any:
        with self._understood(name):
            field = self._half.getClass().getDeclaredField(name)
            field.setAccessible(True)
            return field.get(self._half)

    def option(self, name: str) -> str | None:
        """The value of an option, its name in any case; None if it was not given."""
        options = self.read("extraOptions")
        with self._understood("extraOptions"):
            found = options.get(name)
            return str(found.get()) if found.isDefined() else None

    def is_given(self, name: str) -> bool:
        """Whether a field of Scala's type `Option` has a value."""
        found = self.read(name)
        with self._understood(name):
            return bool(found.isDefined())

    def default_source(self) -> str:
        """The format of a writer that has no explicit one."""
        with self._understood("default format"):
            return str(self._session._jsparkSession.sessionState().conf().defaultDataSourceName())  # noqa: SLF001

    def _understood(self, name: str) -> AbstractContextManager[None]:
        return understood(self._session.version, f"a setting of the writer ({name}) that would be overridden")


def session_of(writer: DataStreamWriter) -> SparkSession:
    """The user's session behind a writer. Raises `ConfigError` if `writer` is no `DataStreamWriter`, for a version that
    wal-sink does not know.
    """
    check_stream_writer(writer)
    check_classic(writer)
    spark = cast("SparkSession", cast("Any", writer)._spark)  # noqa: SLF001 - PySpark has no public way
    check_versions(spark)
    return spark


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
    writer = writer.foreachBatch(on_batch)
    _ours[writer] = _Fields(writer).read("foreachBatchWriter")
    try:
        query = writer.option(CHECKPOINT, checkpoint).start()
    except (AnalysisException, IllegalArgumentException) as error:
        raise ConfigError(
            f"Spark refuses this query for wal-sink: {error}. wal-sink needs micro-batches (trigger availableNow, "
            "processingTime, once or none); continuous and real-time triggers have no micro-batches"
        ) from error
    except Py4JJavaError as error:
        raise ConfigError(
            f"Spark cannot start this query with checkpointLocation {mask_url(checkpoint)}: {_cause_of(error)}. "
            "Correct the address, or add the connector of its scheme to Spark (for s3a:// the package hadoop-aws)"
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
    asked(query.awaitTermination)


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
    """The first line of Java's exception, and of its innermost cause: that one names a connector which Spark lacks."""
    outer = inner = error.java_exception
    while (cause := inner.getCause()) is not None:
        inner = cause
    return "; ".join(dict.fromkeys(str(each).partition("\n")[0] for each in (outer, inner)))


def _execution_class(query: StreamingQuery) -> str:
    wrapper = cast("Any", query)._jsq  # noqa: SLF001 - PySpark has no public way
    execution = wrapper.streamingQuery() if hasattr(wrapper, "streamingQuery") else wrapper
    return str(execution.getClass().getName())

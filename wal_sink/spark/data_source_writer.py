"""A writer of PySpark's Python data source API as a sink: `write` on executors, `commit` or `abort` on the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, StringType, StructField, StructType

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import BatchSink, ReleasedBatch
from wal_sink.spark.foreach_writer import dumped, readable, spark_rows, unpickled
from wal_sink.spark.private import thread_properties
from wal_sink.spark.schema import arrow_schema, positional_names
from wal_sink.spark.tasks import surfaced_errors
from wal_sink.support.arguments import check_method, check_ran
from wal_sink.support.arrow_types import InUtc
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_logger = logger_of(__name__)

_BATCH_ID_KEY = "streaming.sql.batchId"
_RESULT = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("message", BinaryType()),
        StructField("error", StringType()),
        StructField("permanent", BooleanType()),
    ]
)
_ARROW_WRITER = "DataSourceStreamArrowWriter"
"""The class exists since PySpark 4.1. It is recognised by name: if it moved, it would otherwise get rows instead of
record batches."""


class WriteFailedError(Exception):
    """`write` failed in at least one task; `abort` was called. Another attempt may succeed."""


class DataSourceSink(BatchSink):
    """One Spark job per batch: a task per segment calls `write`; then the driver calls `commit` with all messages.

    As in PySpark, each task and each `commit` or `abort` gets a fresh copy of the writer. A change of `self` in one
    copy is invisible to the others; only messages pass between them. Unlike in PySpark, Spark does not repeat a task
    whose `write` raised: the whole batch is aborted and retried within the budgets of its `Delivery`.
    """

    def __init__(self, writer: object, *, idempotent: bool) -> None:
        """Raises `ConfigError` if `writer` is no stream writer or cannot be pickled."""
        _check(writer)
        self._name = type(writer).__qualname__
        self._payload = _pickled(writer)
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.data_source_writer({self._name})"

    describe = __repr__

    def write_batch(self, batch: ReleasedBatch) -> None:
        """Write, then commit; abort if either failed. Raises the error of the failed step. Runs on the driver."""
        df = batch.read()
        with thread_properties(batch.spark.sparkContext, {_BATCH_ID_KEY: str(batch.batch_id)}):
            written = self._write(df, batch.batch_id)
        messages = [part.message for part in written]
        failed = [part for part in written if part.error]
        if failed:
            self._abort(messages, batch.batch_id)
            kind = PermanentError if any(part.permanent for part in failed) else WriteFailedError
            raise kind(f"{len(failed)} of {len(written)} calls of write failed; the first: {failed[0].error}")
        self._commit(messages, batch.batch_id)

    def _write(self, df: DataFrame, batch_id: int) -> list[_Part]:
        try:
            task = _WritingTask(self._payload, df.schema)
            with surfaced_errors(f"batch {batch_id}: {self!r}"):
                rows = df.toDF(*positional_names(df.schema)).mapInArrow(task, _RESULT).collect()
            return sorted((_part(row) for row in rows), key=lambda part: part.partition)
        except BaseException:
            self._abort(_no_messages(df), batch_id)
            raise

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        try:
            check_ran("commit", unpickled(self._payload).commit(list(messages), batch_id))
        except BaseException:
            self._abort(messages, batch_id)
            raise

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Call the writer's `abort`. Its errors are only logged: the caller raises the error that led here."""
        try:
            check_ran("abort", unpickled(self._payload).abort(list(messages), batch_id))
        except Exception as error:  # noqa: BLE001 - a user's abort may raise anything
            _logger.warning("%r, batch %s: abort raised %s", self, batch_id, told(error))


@dataclass(frozen=True, slots=True)
class _Part:
    """The result of one call of `write`."""

    partition: int
    message: WriterCommitMessage | None
    error: str | None
    permanent: bool


@dataclass(frozen=True, slots=True)
class _WritingTask:
    """The task that runs on executors, once per segment. Yields one row: the message, or the error of the writer, which
    is not raised.
    """

    payload: bytes = field(repr=False)
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        message, error, permanent = None, None, False
        try:
            message = self._write(iter(batches))
        except Exception as raised:  # noqa: BLE001 - a user's writer may raise anything; it becomes the task's result
            error = told(raised)
            permanent = isinstance(raised, PermanentError)
        context = cast("TaskContext", TaskContext.get())
        row = {"partition": context.partitionId(), "message": message, "error": error, "permanent": permanent}
        yield pa.RecordBatch.from_pylist([row], arrow_schema(_RESULT))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> bytes:
        writer = unpickled(self.payload)
        returned = writer.write(self._input(writer, batches))
        check_ran("write", returned)
        if not isinstance(returned, WriterCommitMessage):
            raise PermanentError(
                f"write() returned {type(returned).__name__}, but PySpark expects a WriterCommitMessage"
            )
        return dumped(returned)

    def _input(self, writer: object, batches: Iterator[pa.RecordBatch]) -> Iterator[Row] | Iterator[pa.RecordBatch]:
        if _takes_batches(writer):
            return (batch.rename_columns(self.schema.names) for batch in batches)
        return readable(spark_rows, (pa.Table.from_batches([batch]) for batch in map(InUtc(), batches)), self.schema)


def _no_messages(df: DataFrame) -> list[WriterCommitMessage | None]:
    """A list with one None for each task of a job that failed as a whole."""
    try:
        return [None] * df.rdd.getNumPartitions()
    except Exception:  # noqa: BLE001 - Spark itself may be gone, and the caller raises the error that led here
        return []


def _part(row: Row) -> _Part:
    message = None if row.message is None else cast("WriterCommitMessage", pickle.loads(row.message))  # noqa: S301
    return _Part(row.partition, message, row.error, row.permanent)


def _check(writer: object) -> None:
    if isinstance(writer, DataSourceStreamWriter) or _takes_batches(writer):
        for method, *arguments in (
            ("write", "iterator"),
            *((end, "messages", "batch_id") for end in ("commit", "abort")),
        ):
            check_method(writer, method, *arguments)
        return
    name = writer.__name__ if isinstance(writer, type) else type(writer).__name__
    raise ConfigError(
        f"{name}: expected a DataSourceStreamWriter or DataSourceStreamArrowWriter object, as "
        "streamWriter(schema, overwrite) of a Python data source returns it"
    )


def _takes_batches(writer: object) -> bool:
    return any(base.__name__ == _ARROW_WRITER for base in type(writer).__mro__)


def _pickled(writer: object) -> bytes:
    try:
        return dumped(writer)
    except Exception as error:  # a user's __reduce__ may raise anything
        raise ConfigError(
            f"{type(writer).__name__} cannot be pickled for the executors ({told(error)}): keep "
            "plain data in __init__ and connect in write, commit and abort, as PySpark also requires"
        ) from error

"""The staging job: one Spark job that streams a DataFrame into segments and evaluates it fully, exactly once."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from wal_sink.messages import StagedPartition, StagingContext
from wal_sink.runtime.clock import SYSTEM
from wal_sink.spark.session.cluster import size_of
from wal_sink.spark.session.environment import SPARK_3_5, version_of
from wal_sink.spark.session.private import changed, described, setting_of, task_slots
from wal_sink.spark.session.tasks import (
    RepeatedShuffleError,
    SparkJobError,
    marked_errors,
    named_errors,
    settle,
    surfaced_errors,
)
from wal_sink.spark.staging.empty_lists import with_offsets
from wal_sink.spark.staging.repeated_shuffles import RepeatedShuffles
from wal_sink.spark.staging.schema import are_resolved_by_name, check_schema, not_null_paths, positional_names
from wal_sink.stores.measured import measured
from wal_sink.stores.opening import open_store
from wal_sink.telemetry.measures import RequestCounts
from wal_sink.two_phase.prepare import packed, stage_partition
from wal_sink.wal.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from wal_sink.stores.spec import StoreSpec

ARROW_BATCH_BYTES = 4 << 20
"""The maximum number of bytes in one Arrow batch that Spark sends to a worker."""

_BATCH_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_TOP_ROWS_KEY = "spark.sql.execution.topKSortFallbackThreshold"
"""Spark plans smaller limits of sorted rows as one node, `TakeOrderedAndProject`."""
_COUNT = StructType([StructField("rows", LongType())])
_RESULT = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("task", LongType()),
        StructField("staged", BinaryType()),
        StructField("inline", BinaryType()),
    ]
)


def stage_dataframe(df: DataFrame, *, store: StoreSpec, context: StagingContext, description: str) -> StagedPartition:
    """Write every row of `df` into segments and two-phase targets; return what was written, in order of partitions.

    The rows of small partitions come back with their tasks, and the driver writes them into common segments.

    Runs on the driver, on the thread of the stream, as one Spark job in that thread's job group. Partitions without
    rows make no segment. Names of segments are unique to an attempt; segments of failed attempts stay unreferenced.
    Spark's UI shows `description`. A worker's memory does not grow with the rows of its partition.

    Raises `ConfigError` for a schema that cannot be staged and for a null in a column declared 'not null', `StoreError`
    if the store fails in all of Spark's attempts at a task. Errors of the DataFrame itself are PySpark's own, or
    `SparkJobError` in place of a page of Java. Raises `RepeatedShuffleError` if Spark repeated a part of a shuffle
    meanwhile: the next job computes all shuffles again.
    """
    schema = df.schema
    check_schema(schema)
    task = _StagingTask(store, context)
    not_null = ", ".join(not_null_paths(schema))
    with (
        described(df.sparkSession.sparkContext, description),
        _small_batches(df.sparkSession),
        _lasting_shuffles(df.sparkSession),
        surfaced_errors(description, not_null, in_stream=True),
    ):
        resolved = df if are_resolved_by_name(schema) else df.toDF(*positional_names(schema))
        collected = resolved.mapInArrow(task, _RESULT)
        rows = collected.collect()
    in_order = _in_order(rows, description)
    shuffles = RepeatedShuffles(collected)
    if found := shuffles.found([row.task for row in in_order]):
        shuffles.forget()
        raise RepeatedShuffleError(
            f"{description}: Spark repeated a part of a shuffle while other tasks read it ({found})"
        )
    counts = RequestCounts()
    log = Log(measured(open_store(store), counts if context.measured else None), SYSTEM, context.run_id)
    # Where the slots are not known, one segment after the other is packed: only slower.
    slots = task_slots(df.sparkSession.sparkContext) or 1
    with named_errors(description):
        partitions = [_staged(row) for row in in_order]
        staged = packed(context, partitions, log, side_by_side=slots)
    for partition in partitions:
        counts.merge(partition.requests)
    return msgspec.structs.replace(staged, requests=counts.counted())


def evaluate_without_staging(df: DataFrame, *, description: str) -> int:
    """Evaluate `df` once and fully, keep nothing, and return its number of rows.

    In a replay, stateful operators must still commit their state, so every row of every partition is read. Runs on the
    driver, as one Spark job like the staging job. Raises the same errors as `stage_dataframe`.
    """
    schema = df.schema
    check_schema(schema)
    with (
        described(df.sparkSession.sparkContext, description),
        _small_batches(df.sparkSession),
        surfaced_errors(description, ", ".join(not_null_paths(schema)), in_stream=True),
    ):
        resolved = df if are_resolved_by_name(schema) else df.toDF(*positional_names(schema))
        return sum(row.rows for row in resolved.mapInArrow(_counted, _COUNT).collect())


@dataclass(frozen=True, slots=True)
class _StagingTask:
    """The task that runs on executors, once per partition, with its record batches. Yields references and its id as
    one row.
    """

    store: StoreSpec
    staging: StagingContext

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _task()
        partition = context.partitionId()
        counts = RequestCounts()
        opened: list[Log] = []
        with marked_errors():
            log = partial(self._log, counts, opened)
            staged = stage_partition(
                self.staging, map(with_offsets, batches), log, partition=partition, on_executor=True
            )
        settle(self.store if opened else None)
        staged = msgspec.structs.replace(staged, requests=counts.counted())
        result: list[pa.Array[Any]] = [
            pa.array([partition], pa.int32()),
            pa.array([context.taskAttemptId()], pa.int64()),
            pa.array([msgspec.json.encode(msgspec.structs.replace(staged, inline=b""))]),
            pa.array([staged.inline]),
        ]
        yield pa.record_batch(result, _RESULT.names)

    def _log(self, counts: RequestCounts, opened: list[Log]) -> Log:
        store = measured(open_store(self.store), counts if self.staging.measured else None)
        log = Log(store, SYSTEM, self.staging.run_id)
        log.store.begin(is_there=True)
        opened.append(log)
        return log


def _staged(row: Row) -> StagedPartition:
    staged = msgspec.json.decode(row.staged, type=StagedPartition)
    return msgspec.structs.replace(staged, inline=bytes(row.inline))


def _in_order(rows: Iterable[Row], description: str) -> list[Row]:
    """Sort by partition. Raises `SparkJobError` if one appears twice: the manifest would name its rows twice."""
    by_partition: dict[int, Row] = {}
    for row in rows:
        if by_partition.setdefault(row.partition, row) is not row:
            raise SparkJobError(
                f"{description}: expected one result from each partition, found two from partition {row.partition}. "
                "Nothing was staged. Start the query again"
            )
    return [by_partition[partition] for partition in sorted(by_partition)]


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that runs on executors, once per partition of a replay: it yields the number of rows."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([rows], pa.int64())], _COUNT.names)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a staging task was called outside of a Spark task")
    return context


def _batch_bytes(setting: str | None) -> int:
    """The smaller of the user's limit and ours, in bytes."""
    found = size_of(setting)
    return ARROW_BATCH_BYTES if found is None else min(found, ARROW_BATCH_BYTES)


@contextmanager
def _small_batches(spark: SparkSession) -> Iterator[None]:
    """Limit the bytes of Spark's Arrow batches: with the default of 64 MiB, rows of 1 MiB doubled a worker's memory."""
    limit = str(_batch_bytes(setting_of(spark, _BATCH_BYTES_KEY).value))
    with changed(spark, _BATCH_BYTES_KEY, limit):
        yield


@contextmanager
def _lasting_shuffles(spark: SparkSession) -> Iterator[None]:
    """Let Spark 3.5 plan `orderBy(…).limit(…)` as a sort, whose shuffle is that of the job when it is looked for later.

    The node that it takes for small limits makes a new shuffle each time. Later versions keep the first.
    """
    if version_of(spark.version) != SPARK_3_5:
        yield
        return
    with changed(spark, _TOP_ROWS_KEY, "0"):
        yield

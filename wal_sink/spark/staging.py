"""Staging a batch on Spark: one job streams a DataFrame into segments and evaluates it fully, exactly once."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.java_gateway import is_instance_of
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from wal_sink.errors import ConfigError
from wal_sink.log.log import Log
from wal_sink.protocol.messages import SMALL_BATCH_BYTES
from wal_sink.protocol.partitions import StagedPartition, StagingContext, packed, stage_partition
from wal_sink.protocol.run import Run
from wal_sink.protocol.stage import Attempt, Staged, compare_replay
from wal_sink.spark.cluster import inline_budget, size_of
from wal_sink.spark.environment import SPARK_3_5, version_of
from wal_sink.spark.identity import QueryIdentity
from wal_sink.spark.private import changed, described, private, setting_of, task_slots, understood
from wal_sink.spark.schema import (
    are_resolved_by_name,
    check_schema,
    not_null_paths,
    positional_names,
    schema_json,
)
from wal_sink.spark.tasks import (
    RepeatedShuffleError,
    ResultTooLargeError,
    SparkJobError,
    marked_errors,
    named_errors,
    settle,
    surfaced_errors,
)
from wal_sink.stores.measured import measured
from wal_sink.stores.opening import open_store
from wal_sink.support.arrow_types import with_offsets
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of
from wal_sink.support.measures import RequestCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from wal_sink.stores.spec import StoreSpec

ARROW_BATCH_BYTES = 4 << 20
"""The maximum number of bytes in one Arrow batch that Spark sends to a worker."""
SMALL_ROWS = 2000
"""The maximum number of rows in one where only rows are counted, since so many take less than `ARROW_BATCH_BYTES`."""
MANY_ROWS = 10_000
"""The rows of a batch from which on the next one's rows are counted: for fewer it is not worth the questions."""

_UNLIMITED_BYTES = 2**31 - 1
"""Spark then does not ask after each row how large the batch is. It is no version's default: somebody chose it."""
_ATTEMPTS = 3
"""How many attempts in a row stage a batch if Spark repeats its shuffles."""
_BATCH_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
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

_PLAN = "== Physical Plan =="
_STEP_NAMES = re.compile(r"^[\W\d]*([a-z]\w*)", re.MULTILINE | re.IGNORECASE)
"""The first word of each line: `*(1) Project [id#20L]`, `+- MapInArrow …`."""
_IN_PYTHON = re.compile("py|pandas|arrow|external|rdd", re.IGNORECASE)
"""A part of the names of all steps that may run in Python. Another name that has it costs time, and nothing else."""
_NOT_WHOLE = re.compile(r"\d more characters|\(redacted\)")
"""The text that Spark leaves in place of a part of a plan."""
_SHUFFLE = "org.apache.spark.ShuffleDependency"
_SHUFFLE_IN_TEXT = "+-"
"""The mark of a shuffle in `RDD.toDebugString`. If a name contains it by accident, the full check runs: no harm."""

_logger = logger_of(__name__)


def stage_batch(run: Run, store: StoreSpec, df: DataFrame, identity: QueryIdentity, *, as_given: bool) -> None:
    """Stage `df` as the batch of `identity`. A replay of a released batch is evaluated, counted and dropped.

    `as_given`: it is the DataFrame that Spark gave to `foreachBatch`, without further steps. Its Arrow batches are
    limited by rows alone if the rows of this run of the query were small and many, and no step of this batch runs in
    Python. Such a step would get batches without a limit of bytes, too, and its rows may be large.
    """
    _check_query(run, identity.query_id)
    _begin_with_the_run(run, identity)
    what = f"wal-sink {store.safe_url} batch {identity.batch_id}"

    def write(attempt: Attempt) -> Staged:
        columns, schema = tuple(df.schema.names), schema_json(df.schema)
        budget = inline_budget(df.sparkSession.sparkContext)
        context = run.staging_context(attempt, columns=columns, spark_schema=schema, inline_bytes=budget)
        description = f"{what}: stage attempt {attempt.number}"
        most, rows = run.seen_rows.get(identity.run_id, (0, 0))
        is_worth_it = as_given and rows >= MANY_ROWS and not _has_python_steps(identity.query, df.sparkSession.version)
        row_bytes = most if is_worth_it else 0
        staged = stage_dataframe(df, store=store, context=context, description=description, row_bytes=row_bytes)
        run.seen_rows = {identity.run_id: (max(most, staged.row_bytes), sum(ref.rows for ref in staged.segments))}
        return Staged(
            staged.segments, columns, schema, staged.prepared, staged.timing, staged.requests, staged.time_zone
        )

    if not _stage(run, identity, write):
        found = evaluate_without_staging(df, description=f"{what}: replay, already released")
        compare_replay(run.log, identity.batch_id, found, what=what)


def _stage(run: Run, identity: QueryIdentity, write: Callable[[Attempt], Staged]) -> bool:
    """Stage a batch in one Spark job; False if it is a replay.

    If Spark may have lost rows of an attempt, that attempt gets no manifest and a new one follows.
    """
    seen = ""
    for _ in range(_ATTEMPTS):
        attempt = run.begin_staging(identity.batch_id, planned_ms=identity.planned_ms)
        if attempt is None:
            return False
        try:
            staged = write(attempt)
        except RepeatedShuffleError as error:
            seen = str(error)
            _logger.warning("%s: no row of this attempt is used. Spark computes the shuffles again", seen)
        except ResultTooLargeError as error:
            if not run.inline_rows:
                raise
            run.inline_rows = False
            seen = str(error)
            _logger.warning(
                "%s: the batch is staged again. From now on the tasks of this run write the rows of small partitions "
                "themselves, and no rows travel to the driver. Raise spark.driver.maxResultSize, so that batches cost "
                "fewer requests",
                seen,
            )
        else:
            run.end_staging(attempt, staged)
            return True
    raise RepeatedShuffleError(
        f"{seen}; {_ATTEMPTS} attempts in a row ended like this, and nothing was staged. Find out why executors are "
        "lost, and start the query again"
    )


def _check_query(run: Run, running: str) -> None:
    """Refuse a checkpoint of another query than the running one: its gate would open for other batches."""
    if run.history.is_owned_by(running):
        run.history.refuse_other_query(running)
        return
    owner = run.checkpoint.query_id()
    found = f"query {owner}" if owner else "no query (it is empty or does not exist)"
    raise ConfigError(
        f"the running query is {running}, but the checkpoint {run.checkpoint.root} belongs to {found}. Pass WalSink "
        "the checkpointLocation of the query that calls stage()"
    )


def _begin_with_the_run(run: Run, identity: QueryIdentity) -> None:
    """Bind a new WAL to the earliest batch that this run of the query completed, or that was completed while the WAL
    was open.

    A WAL may begin with any batch of a checkpoint, but not after one of those: they were lost. If the WAL begins with
    the earliest of them, the stager finds it missing, now and after a restart.
    """
    history = run.history
    if history.wal is not None:
        return  # it began before
    earliest = min(_first_of_the_run(identity), history.first_since_opened(identity.batch_id))
    if earliest < identity.batch_id and history.poll_owner() is None:
        history.bind(earliest)


def _first_of_the_run(identity: QueryIdentity) -> int:
    """The earliest batch that this run of the query is known to have completed; the current batch if there is none.

    Batch ids are contiguous: a run that completed any batch completed the one before this. How many earlier ones Spark
    remembers depends on `spark.sql.streaming.numRecentProgressUpdates`; it may be none.
    """
    if identity.is_first:
        return identity.batch_id
    return min([identity.batch_id - 1, *(progress.batchId for progress in identity.query.recentProgress)])


def stage_dataframe(
    df: DataFrame, *, store: StoreSpec, context: StagingContext, description: str, row_bytes: int = 0
) -> StagedPartition:
    """Write every row of `df` into segments and two-phase targets; return what was written, in order of partitions.

    The rows of small partitions come back with their tasks, and the driver writes them into common segments.

    Runs on the driver, on the thread of the stream, as one Spark job in that thread's job group. Partitions without
    rows make no segment. Names of segments are unique to an attempt; segments of failed attempts stay unreferenced.
    Spark's UI shows `description`. A worker's memory does not grow with the rows of its partition. `row_bytes`: the
    bytes that a row of this batch is taken to have; 0 if that is not known.

    Raises `ConfigError` for a schema that cannot be staged and for a null in a column declared 'not null', `StoreError`
    if the store fails in all of Spark's attempts at a task. Errors of the DataFrame itself are PySpark's own, or
    `SparkJobError` in place of a page of Java. Raises `RepeatedShuffleError` if Spark repeated a part of a shuffle
    meanwhile: the next job computes all shuffles again.
    """
    task = _StagingTask(store, context)
    with _job(df, description, row_bytes) as resolved, _lasting_shuffles(df.sparkSession):
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
    with named_errors(description):
        partitions = [_staged(row) for row in in_order]
        # Slots matter to rows that the driver does not deliver. Unknown ones: one segment is packed after the other.
        are_many = sum(len(each.inline) for each in partitions) > SMALL_BATCH_BYTES
        slots = (are_many and task_slots(df.sparkSession.sparkContext)) or 1
        staged = packed(context, partitions, log, side_by_side=slots)
    for partition in partitions:
        counts.merge(partition.requests)
    return msgspec.structs.replace(staged, requests=counts.counted())


def evaluate_without_staging(df: DataFrame, *, description: str) -> int:
    """Evaluate `df` once and fully, keep nothing, and return its number of rows.

    In a replay, stateful operators must still commit their state, so every row of every partition is read. Runs on the
    driver, as one Spark job like the staging job. Raises the same errors as `stage_dataframe`.
    """
    with _job(df, description) as resolved:
        return sum(row.rows for row in resolved.mapInArrow(_counted, _COUNT).collect())


@contextmanager
def _job(df: DataFrame, description: str, row_bytes: int = 0) -> Iterator[DataFrame]:
    """The context of a job of the stream; `df` in it, with names that Spark resolves."""
    schema, spark = df.schema, df.sparkSession
    check_schema(schema)
    not_null = ", ".join(not_null_paths(schema))
    with (
        described(spark.sparkContext, description),
        _small_batches(spark, row_bytes),
        surfaced_errors(description, not_null, in_stream=True),
    ):
        yield df if are_resolved_by_name(schema) else df.toDF(*positional_names(schema))


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
        sizes = _RowSizes()
        with marked_errors():
            log, sound = partial(self._log, counts, opened), map(with_offsets, batches)
            staged = stage_partition(self.staging, map(sizes, sound), log, partition=partition, on_executor=True)
        settle(self.store if opened else None)
        staged = msgspec.structs.replace(staged, requests=counts.counted(), row_bytes=sizes.most)
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


class _RowSizes:
    """Passes record batches on. Keeps the largest mean size of their rows in bytes, rounded up."""

    def __init__(self) -> None:
        self.most = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            self.most = max(self.most, math.ceil(batch.nbytes / batch.num_rows))
        return batch


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


def _has_python_steps(query: StreamingQuery, version: str) -> bool:
    """Whether steps of a stream's running batch may run in Python, going by the names in its plan.

    Each batch has its own plan: a step whose source has no new rows is not in it.
    """
    is_extended = False
    with understood(version, "the steps of the query"):
        plan = str(private(query, "_jsq").explainInternal(is_extended))
    if not plan.startswith(_PLAN) or _NOT_WHOLE.search(plan):
        return True  # Spark does not tell all
    return any(_IN_PYTHON.search(name) for name in _STEP_NAMES.findall(plan.removeprefix(_PLAN)))


@contextmanager
def _small_batches(spark: SparkSession, row_bytes: int = 0) -> Iterator[None]:
    """Limit Spark's Arrow batches: with the default of 64 MiB, rows of 1 MiB doubled a worker's memory.

    Counting bytes takes a fourth of the JVM's time, since Spark asks after each row. So small rows are only counted.
    """
    found = size_of(setting_of(spark, _BATCH_BYTES_KEY).value)
    if found == _UNLIMITED_BYTES:
        limits = {_BATCH_BYTES_KEY: found}
    elif found is None or found < ARROW_BATCH_BYTES or not 0 < row_bytes * SMALL_ROWS <= ARROW_BATCH_BYTES:
        limits = {_BATCH_BYTES_KEY: min(found or ARROW_BATCH_BYTES, ARROW_BATCH_BYTES)}
    else:
        rows = int(setting_of(spark, _BATCH_ROWS_KEY).value or 0)  # 0 or less: Spark has no limit
        limits = {
            _BATCH_BYTES_KEY: _UNLIMITED_BYTES,
            _BATCH_ROWS_KEY: min(rows, SMALL_ROWS) if rows > 0 else SMALL_ROWS,
        }
    with ExitStack() as stack:
        for key, limit in limits.items():
            stack.enter_context(changed(spark, key, str(limit)))
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


class RepeatedShuffles:
    """The shuffles of a collected DataFrame, as they are after its job. On the driver.

    All tasks of a job must read the same output of each shuffle: Spark must repeat no part in between.

    Spark gives its tasks ascending ids, and the output of a shuffle has the ids of the tasks that wrote it. If a part
    was written by a later task than one that read the shuffle, Spark repeated that part after the read. These ids come
    from the driver's own tables, which are complete when the job ends. Events and the data of Spark's UI may be late or
    dropped.

    Spark's own comparison of repeated outputs (on since 4.2) covers only the shuffles that SQL plans, not those of an
    RDD behind a DataFrame. So this check runs beside it.
    """

    def __init__(self, collected: DataFrame) -> None:
        self._context = collected.sparkSession.sparkContext
        self._collected = collected

    def found(self, tasks: list[int]) -> str | None:
        """The sign that rows may be lost or duplicated, in words; None if all tasks read the same outputs.

        `tasks`: the ids of the tasks whose results count, one for each partition. Raises `ConfigError` if this Spark
        does not tell.
        """
        with understood(self._context.version, "whether it repeated a shuffle"):
            rdd = self._rdd()
            if _SHUFFLE_IN_TEXT not in rdd.toDebugString():
                return None
            if len(tasks) != (partitions := rdd.getNumPartitions()):
                return f"only {len(tasks)} of {partitions} tasks reported their ids"
            return self._below(rdd, min(tasks)) if tasks else None  # without partitions, no task read anything

    def forget(self) -> None:
        """Make the next job compute every shuffle again, including those that were not repeated."""
        with understood(self._context.version, "the shuffles of a batch, to repeat them"):
            tracker = self._tracker()
            todo, done = [self._rdd()], set[int]()
            while todo:
                for shuffle in _read_by(self._context, todo.pop()):
                    if (number := shuffle.shuffleId()) not in done:
                        done.add(number)
                        tracker.unregisterAllMapAndMergeOutput(number)
                        todo.append(shuffle.rdd())

    def _below(self, rdd: Any, first_reader: int) -> str | None:
        """The same check for the tasks that computed `rdd`, the first of which was `first_reader`, and for all earlier
        shuffles.
        """
        for shuffle in _read_by(self._context, rdd):
            number = shuffle.shuffleId()
            writers = self._writers(number)
            if None in writers:
                return f"{writers.count(None)} of {len(writers)} outputs of shuffle {number} are gone"
            known = [writer for writer in writers if writer is not None]
            if late := sum(writer > first_reader for writer in known):
                return (
                    f"{late} of {len(known)} outputs of shuffle {number} were written after task {first_reader} began"
                )
            if known and (found := self._below(shuffle.rdd(), min(known))):
                return found
        return None

    def _writers(self, shuffle: int) -> list[int | None]:
        """The id of the task that wrote each output of a shuffle; None for a missing output."""
        outputs = self._tracker().shuffleStatuses().apply(shuffle).mapStatuses()
        return [None if (output := outputs[index]) is None else output.mapId() for index in range(len(outputs))]

    def _rdd(self) -> Any:
        return private(self._collected, "_jdf").queryExecution().toRdd()

    def _tracker(self) -> Any:
        # Read as a field: py4j cannot call methods of SparkEnv, because one needs a class that Spark 4.3 does not ship.
        kind = private(self._context, "_jvm").java.lang.Class.forName("org.apache.spark.SparkEnv")
        field = kind.getDeclaredField("mapOutputTracker")
        field.setAccessible(True)
        return field.get(private(self._context, "_jsc").sc().env())


def _read_by(context: SparkContext, rdd: Any) -> Iterator[Any]:
    """The shuffles that are read by the tasks which compute `rdd`."""
    gateway = private(context, "_gateway")
    todo, seen = [rdd], set[int]()
    while todo:
        current = todo.pop()
        if (number := current.id()) in seen:
            continue
        seen.add(number)
        dependencies = current.dependencies()
        for index in range(dependencies.size()):
            dependency = dependencies.apply(index)
            if is_instance_of(gateway, dependency, _SHUFFLE):
                yield dependency
            else:
                todo.append(dependency.rdd())

"""The stream writer of `format("wal_sink")`: `write` on executors, `commit` on the driver, each in a worker of Spark.

Spark makes a writer for each batch in the worker that plans it, and pickles it for the tasks. It makes another writer
in the worker that commits, and never pickles that one. So the batch begins when a writer is pickled: then an attempt to
stage it begins. `commit` creates the manifest. Both exist before Spark writes `commits/N`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from wal_sink.errors import ConfigError, FencedError, HistoryError
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import SegmentRef
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.partitions import StagedPartition, StagingContext, joined, stage_partition
from wal_sink.protocol.run import Run
from wal_sink.protocol.stage import Attempt, Staged, compare_replay, create_manifest
from wal_sink.spark.checkpoint_files import checkpoint_files
from wal_sink.spark.cluster import REPEAT_CHECKS
from wal_sink.spark.environment import Version
from wal_sink.spark.schema import check_schema, schema_json
from wal_sink.spark.source_options import WriteOptions
from wal_sink.stores.measured import MeasuredStore, SlowRequests
from wal_sink.stores.opening import open_store
from wal_sink.support.arrow_types import with_offsets
from wal_sink.support.clock import SYSTEM

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_BATCH_ID_KEY = "streaming.sql.batchId"
_QUERY_ID_KEY = "sql.streaming.queryId"
_CHECKS_ARE_DEFAULT: Version = (4, 2)
"""The first version in which Spark compares the outputs of a repeated shuffle unless it is told not to."""
_stagers: dict[tuple[object, ...], _Stager] = {}
"""By WAL, checkpoint, settings and query. Spark keeps a worker for the next batch, but may end it at any time."""


@dataclass
class StagedMessage(WriterCommitMessage):
    """The result of one task."""

    begun: BegunBatch
    partition: int
    rows: int
    staged: StagedPartition | None
    """None for a replay."""


class WalSinkWriter(DataSourceStreamArrowWriter):
    """Stages one batch. The copy in a task knows the batch that the driver began; the copy that commits does not."""

    def __init__(self, options: WriteOptions, schema: StructType, version: Version) -> None:
        self._options = options
        self._schema = schema
        self._version = version
        self._begun: BegunBatch | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        """Begin the batch, once: Spark pickles this writer for the tasks of the batch, and at no other time."""
        if self._begun is None:
            self._begun = begin_batch(self._options, self._schema)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> StagedMessage:
        """Stage the record batches of one partition. Runs in a task, on an executor.

        Names of segments are unique to the task's attempt.
        """
        begun, task = self._begun, TaskContext.get()
        if begun is None or task is None:
            raise HistoryError("a task of format('wal_sink') got no batch: Spark did not pickle the writer for it")
        self._check(begun, task)
        counted = _Counted(iterator)
        partition = task.partitionId()
        if begun.context is None:
            for _ in counted:
                pass
            return StagedMessage(begun, partition, counted.rows, None)
        staged = stage_partition(begun.context, counted, self._log, partition=partition, on_executor=True)
        return StagedMessage(begun, partition, counted.rows, staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the staged batch known to the WAL. Runs on the driver, before Spark writes `commits/N`."""
        results = _results(messages, batchId)
        begun = only_batch([result.begun for result in results], self._options, self._schema)
        staged = {result.partition: result.staged for result in results if result.staged is not None}
        end_batch(self._options, begun, batchId, staged, sum(result.rows for result in results))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: no manifest names the segments of this attempt. They are deleted with the batch."""

    def _log(self) -> Log:
        begun = self._begun
        log = Log(open_store(self._options.store), SYSTEM, begun.run_id if begun is not None else "")
        log.store.begin(is_there=True)
        return log

    def _check(self, begun: BegunBatch, task: TaskContext) -> None:
        """Refuse a task of another batch or query than the one that was begun, and shuffles that nothing checks."""
        found = task.getLocalProperty(_QUERY_ID_KEY), task.getLocalProperty(_BATCH_ID_KEY)
        if found != (begun.query_id, str(begun.batch_id)):
            raise FencedError(
                f"batch {begun.batch_id} of query {begun.query_id} is planned in {self._options.checkpoint}, but Spark "
                f"runs batch {found[1]} of query {found[0]}. Another query runs on this checkpoint, or "
                "checkpointLocation is not that of this query. Nothing was staged; stop this query"
            )
        for key in REPEAT_CHECKS:
            value = (task.getLocalProperty(key) or "").lower()
            if value != "true" and not (value == "" and self._version >= _CHECKS_ARE_DEFAULT):
                raise ConfigError(
                    f"format('wal_sink') needs {' and '.join(REPEAT_CHECKS)} to be true in Spark {self._version[0]}."
                    f"{self._version[1]}: only Spark can tell here whether it repeated a part of a shuffle with other "
                    "rows. Set both for the session, or stage with WalSink.start. Nothing was staged"
                )


class _Counted:
    """Record batches, counted as they are taken."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield with_offsets(batch)


def _results(messages: Sequence[WriterCommitMessage | None], batch_id: int) -> list[StagedMessage]:
    results = [message for message in messages if isinstance(message, StagedMessage)]
    if len(results) != len(messages):
        raise FencedError(
            f"batch {batch_id}: expected the results of {len(messages)} tasks, found {len(results)}. Nothing was "
            "staged. Start the query again"
        )
    partitions = sorted(result.partition for result in results)
    if partitions != list(range(len(results))):
        raise FencedError(
            f"batch {batch_id}: expected the results of partitions 0 to {len(results) - 1}, found those of "
            f"{partitions[:20]}. Nothing was staged. Start the query again"
        )
    return results


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch that was begun, as its tasks and its commit know it. Spark sends it to executors and back."""

    batch_id: int
    query_id: str
    columns: tuple[str, ...]
    spark_schema: str
    run_id: str = ""
    attempt: Attempt | None = None
    """None: the batch is a replay of a released one. Its rows are evaluated, counted and dropped."""
    context: StagingContext | None = None
    """The context of the staging tasks; None for a replay."""


@dataclass(slots=True)
class _Stager:
    """The run of one query in this worker, and the last batch that it began."""

    run: Run
    last: int = NOTHING


def begin_batch(options: WriteOptions, schema: StructType) -> BegunBatch:
    """Begin an attempt to stage the batch that Spark planned last.

    The first batch in this worker opens the WAL and claims the next term of the stager. Raises `ConfigError` for a
    schema that cannot be staged, `HistoryError` if the checkpoint has no batch or contradicts the WAL, and
    `FencedError` if a newer process stages into this WAL.
    """
    check_schema(schema)
    checkpoint = _checkpoint(options)
    query_id, batch_id = checkpoint.query_id(), checkpoint.newest_planned()
    if query_id is None or batch_id == NOTHING:
        raise HistoryError(
            f"{checkpoint.root} holds no planned batch, but a batch is running. Pass the full address of the "
            "checkpoint as checkpointLocation: wal-sink reads an address without a scheme as a local folder"
        )
    key = (options.store, options.checkpoint, options.settings, query_id)
    stager = _stagers.get(key)
    # After a restart elsewhere, the query continues with a later batch: then it is a new run, with the next term.
    if stager is None or batch_id not in {stager.last, stager.last + 1}:
        stager = _stagers[key] = _Stager(_opened(options))
    stager.last = batch_id
    try:
        return _begun(stager.run, batch_id, query_id, schema)
    except FencedError:
        del _stagers[key]  # a query that a user starts again stages under a new term
        if not stager.run.is_superseded_by_siblings():
            raise
    # Another worker of this driver began this batch, and Spark plans it again here after a failure. Spark runs one
    # query on a checkpoint at a time, so the other worker is done.
    stager = _stagers[key] = _Stager(_opened(options), batch_id)
    return _begun(stager.run, batch_id, query_id, schema)


def _opened(options: WriteOptions) -> Run:
    files = checkpoint_files(options.checkpoint, None, options.store, None)
    store = open_store(options.store)
    run = Run(MeasuredStore(store, slow=SlowRequests(store.root)), files, options.settings)
    run.open()
    run.become_stager()
    return run


def _begun(run: Run, batch_id: int, query_id: str, schema: StructType) -> BegunBatch:
    run.history.refuse_other_query(query_id)
    columns, spark_schema = tuple(schema.names), schema_json(schema)
    # No other source tells when the running query planned the batch. `end_batch` compares the entry once more, and each
    # task compares query and batch with what Spark says there.
    planned_ms = run.checkpoint.require_offsets(batch_id).planned_ms
    if planned_ms is None:
        raise FencedError(
            f"batch {batch_id}: {run.checkpoint.root}/offsets/{batch_id} does not say when the batch was planned. "
            "Every known Spark writes this. Nothing was written; restore the checkpoint"
        )
    attempt = run.begin_staging(batch_id, planned_ms=planned_ms)
    if attempt is None:
        return BegunBatch(batch_id, query_id, columns, spark_schema)
    run.history.note_begun(batch_id)  # a worker that commits has another history
    context = run.staging_context(attempt, columns=columns, spark_schema=spark_schema)
    return BegunBatch(batch_id, query_id, columns, spark_schema, run.log.run_id, attempt, context)


def end_batch(
    options: WriteOptions, begun: BegunBatch, batch_id: int, staged: Mapping[int, StagedPartition], rows: int
) -> None:
    """Create the manifest of a batch whose tasks are done; of a replay, compare the rows.

    `staged`: the results by partition; `rows`: how many rows they have. Raises `FencedError` if Spark commits another
    batch, or the checkpoint's entry is another one than at the beginning.
    """
    if begun.batch_id != batch_id:
        raise FencedError(
            f"batch {batch_id} of {options.store.safe_url}: batch {begun.batch_id} was staged. Another query runs on "
            f"the checkpoint {options.checkpoint}. Nothing was released; stop one of the two queries"
        )
    log = Log(open_store(options.store), SYSTEM, begun.run_id)
    log.store.begin(is_there=True)
    if begun.attempt is None or begun.context is None:
        compare_replay(log, batch_id, rows, what=f"wal-sink {options.store.safe_url} batch {batch_id}")
        return
    _refuse_other_entry(options, begun.attempt)
    all_staged = joined([staged[partition] for partition in sorted(staged)])
    _refuse_unseen(log, all_staged.segments)
    timing, zone = all_staged.timing, all_staged.time_zone
    whole = Staged(all_staged.segments, begun.columns, begun.spark_schema, timing=timing, time_zone=zone)
    create_manifest(log, begun.attempt, whole, chunk_rows=options.settings.chunk_rows)


def only_batch(begun: Sequence[BegunBatch], options: WriteOptions, schema: StructType) -> BegunBatch:
    """The batch that all tasks took part in. A batch without tasks is begun here.

    Raises `FencedError` if tasks took part in different attempts.
    """
    if not begun:
        return begin_batch(options, schema)
    if any(each != begun[0] for each in begun):
        raise FencedError(
            f"batch {begun[0].batch_id} of {options.store.safe_url}: expected results of one attempt to stage the "
            "batch, found results of several. Nothing was staged. Start the query again"
        )
    return begun[0]


def _refuse_unseen(log: Log, segments: Sequence[SegmentRef]) -> None:
    """Refuse segments that the driver does not see: an executor may have written to a disk that no other machine has.

    One listing for each folder of segments; there is one.
    """
    by_folder: dict[str, set[str]] = {}
    for segment in segments:
        folder, _, name = segment.path.rpartition("/")
        by_folder.setdefault(folder, set()).add(name)
    for folder, names in by_folder.items():
        if missing := sorted(names.difference(log.store.list(folder))):
            raise ConfigError(
                f"{log.store.url_of(folder)}: executors wrote {len(missing)} segments that the driver does not see, "
                f"the first {missing[0]}. Driver and executors must see the same WAL: use s3://…, gs://…, abfs://…, or "
                "a folder that every machine mounts under the same path. The batch was not staged"
            )


def _refuse_other_entry(options: WriteOptions, attempt: Attempt) -> None:
    checkpoint = _checkpoint(options)
    if checkpoint.offsets_text(attempt.batch_id) != attempt.offsets.text:
        raise FencedError(
            f"batch {attempt.batch_id}: {checkpoint.root}/offsets/{attempt.batch_id} changed or vanished while the "
            "batch was staged. Another query runs on this checkpoint, or the checkpoint was restored to another "
            "state. The batch was not released; stop this query"
        )


def _checkpoint(options: WriteOptions) -> Checkpoint:
    return Checkpoint(checkpoint_files(options.checkpoint, None, options.store, None))

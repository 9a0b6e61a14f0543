"""The stream writer of `format("wal_sink")`: `write` on executors, `commit` on the driver, each in a worker of Spark.

Spark makes a writer for each batch in the worker that plans it, and pickles it for the tasks. It makes another writer
in the worker that commits, and never pickles that one. So the batch begins when a writer is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from wal_sink.errors import ConfigError, FencedError, HistoryError
from wal_sink.messages import StagedPartition
from wal_sink.runtime.clock import SYSTEM
from wal_sink.spark.session.cluster import REPEAT_CHECKS
from wal_sink.spark.session.versions import Version
from wal_sink.spark.source.batches import BegunBatch, begin_batch, end_batch, only_batch
from wal_sink.spark.source.options import WriteOptions
from wal_sink.spark.staging.empty_lists import with_offsets
from wal_sink.stores.opening import open_store
from wal_sink.two_phase.prepare import stage_partition
from wal_sink.wal.log import Log

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BATCH_ID_KEY = "streaming.sql.batchId"
_QUERY_ID_KEY = "sql.streaming.queryId"
_CHECKS_ARE_DEFAULT: Version = (4, 2)
"""The first version in which Spark compares the outputs of a repeated shuffle unless it is told not to."""


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

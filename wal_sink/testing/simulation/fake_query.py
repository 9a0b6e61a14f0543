"""`FakeQuery`: a streaming query with its checkpoint, without Spark.

It writes in Spark's order: `offsets/N`, then the sink's `stage`, then `commits/N`. After a restart it begins as Spark
does: with the last batch again if that has no commit, else with the next one.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from wal_sink.log.segment_writer import segment_names
from wal_sink.protocol.checkpoint_formats import planned_ms
from wal_sink.protocol.partitions import packed, stage_partition
from wal_sink.protocol.run import Run
from wal_sink.protocol.stage import Attempt, Staged
from wal_sink.stores.base import Store
from wal_sink.stores.parquet import parquet_writer
from wal_sink.testing.data.tables import Partitions, spark_schema_of

QUERY_ID = "5e9f0f6e-0000-4000-8000-00000000fa4e"
_FIRST_PLAN_MS = 1_767_225_600_000
_SLOTS = 4
"""Task slots of the cluster, among which the rows of small partitions may be divided."""
_plans = itertools.count(_FIRST_PLAN_MS)


class StoppedByQuery(Exception):
    """The error of a query that was stopped after staging, before Spark could complete the batch."""


class FakeQuery:
    """A query over numbered input, with its checkpoint in a store.

    `evaluate` is the query: it gets a batch id and the batch's end offset and returns the rows, one table per
    partition. It is called again when a batch is replayed, and may then return other rows, as a query with `uuid()`
    does.

    For tests of a sink, `query_into(sink)` makes a whole query with WAL, checkpoint and processes.
    """

    def __init__(
        self, checkpoint: Store, evaluate: Callable[[int, int], Partitions], *, query_id: str = QUERY_ID
    ) -> None:
        self._checkpoint = checkpoint
        self._evaluate = evaluate
        self._query_id = query_id
        self._planned_ms: dict[int, int] = {}

    def batches(
        self, run: Run, count: int, *, end_offset: Callable[[int], int] = lambda batch_id: batch_id
    ) -> Iterator[int]:
        """Run batches until `count` are complete. Yield each id after its commit."""
        self._write_metadata()
        while (batch_id := self._newest("commits") + 1) < count:
            self.start_batch(batch_id, end_offset(batch_id))
            self.stage(run, batch_id)
            self.complete_batch(batch_id)
            yield batch_id

    def start_batch(self, batch_id: int, end_offset: int) -> None:
        """Write the files that Spark writes before it calls the sink, unless an earlier run already did."""
        self._write_metadata()
        if batch_id > self._newest("offsets"):
            conf = {"batchWatermarkMs": 0, "batchTimestampMs": next(_plans), "conf": {}}
            text = f"v1\n{json.dumps(conf)}\n{json.dumps({'end': end_offset})}"
            self._checkpoint.create(f"offsets/{batch_id}", text.encode())
        self._planned_ms[batch_id] = self._entry_ms(batch_id)

    def stage(self, run: Run, batch_id: int) -> bool:
        """Call the sink as Spark does. Return False if the batch is a replay, which is not staged."""
        end_offset = json.loads(self._checkpoint.read(f"offsets/{batch_id}").splitlines()[2])["end"]
        partitions = self._evaluate(batch_id, end_offset)
        attempt = run.begin_staging(batch_id, planned_ms=self.planned_ms(batch_id))
        if attempt is None:
            return False
        run.end_staging(attempt, stage_tables(run, attempt, partitions))
        return True

    def complete_batch(self, batch_id: int) -> None:
        """Write the file that Spark writes after the sink returned."""
        self._checkpoint.create(f"commits/{batch_id}", b'v1\n{"nextBatchWatermarkMs":0}')

    def roll_back(self, through: int) -> None:
        """Restore the checkpoint to just after batch `through`."""
        for folder in ("offsets", "commits"):
            newer = [name for name in self._checkpoint.list(folder) if int(name) > through]
            self._checkpoint.delete(f"{folder}/{name}" for name in newer)

    def planned_ms(self, batch_id: int) -> int:
        """Return when this query planned a batch, for `Run.begin_staging`.

        For a batch that an earlier query started, the checkpoint tells the time, as it does for Spark.
        """
        return self._planned_ms[batch_id] if batch_id in self._planned_ms else self._entry_ms(batch_id)

    def _entry_ms(self, batch_id: int) -> int:
        planned = planned_ms(self._checkpoint.read(f"offsets/{batch_id}").decode())
        if planned is None:
            raise ValueError(f"offsets/{batch_id} lacks batchTimestampMs, the time at which Spark planned the batch")
        return planned

    def _write_metadata(self) -> None:
        if "metadata" not in self._checkpoint.list(""):
            self._checkpoint.create("metadata", json.dumps({"id": self._query_id}).encode())

    def _newest(self, folder: str) -> int:
        return max((int(name) for name in self._checkpoint.list(folder)), default=-1)


def stage_tables(
    run: Run,
    attempt: Attempt,
    partitions: Partitions,
    *,
    numbers: Sequence[int] | None = None,
    inline_bytes: int = 0,
) -> Staged:
    """Stage Arrow tables as Spark's tasks stage partitions. `numbers`: the partitions' numbers (default: 0, 1, …).

    `inline_bytes`: the budget of inline rows. By default no two partitions share a segment.
    """
    columns = tuple(partitions[0].column_names) if partitions else ()
    schema = spark_schema_of(partitions[0].schema) if partitions else ""
    context = run.staging_context(attempt, columns=columns, spark_schema=schema, inline_bytes=inline_bytes)
    tasks = [
        stage_partition(
            context,
            table.to_batches(),
            lambda: run.log,
            partition=number,
            on_executor=False,
            runtime=run.log.runtime,
        )
        for number, table in zip(numbers or range(len(partitions)), partitions, strict=True)
    ]
    staged = packed(context, tasks, run.log, side_by_side=_SLOTS)
    return Staged(staged.segments, columns, schema, staged.prepared, staged.timing)


def segment_of(table: pa.Table) -> bytes:
    """Return the rows as a segment of the WAL holds them."""
    table = table.rename_columns(segment_names(table.column_names))
    file = io.BytesIO()
    with parquet_writer(file, table, encoded=True) as writer:
        writer.write_table(table)
    return file.getvalue()

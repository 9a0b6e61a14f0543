"""Whole batches for existing writers: the staged rows as a DataFrame, on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.log.records import Manifest, SegmentRef
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.protocol.messages import DeliveryContext
from wal_sink.sinks.base import BatchSink, ReleasedBatch
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.spark.private import active, described, of_unknown_size
from wal_sink.spark.schema import positional, positional_names, schema_of_manifest
from wal_sink.spark.tasks import marked_errors, surfaced_errors
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def batch_writer(
    session: Callable[[], SparkSession], sink: BatchSink, store: StoreSpec, *, job_group: str
) -> Callable[[DeliveryContext, Manifest], object]:
    """The function of a `WholeBatchDispatcher`; calls `sink.write_batch` with the released batch, in `session()`."""

    def write(delivery_context: DeliveryContext, manifest: Manifest) -> object:
        spark = session()
        description = f"wal-sink {store.safe_url} batch {manifest.batch_id}: deliver to {delivery_context.sink}"
        renaming = delivery_context.renaming
        renaming.places(manifest.columns)  # raises before anything runs
        batch = ReleasedBatch(
            batch_id=manifest.batch_id,
            term=delivery_context.term.number,
            spark=spark,
            read=lambda: _dataframe(spark, store, manifest, renaming),
        )
        with active(spark), described(spark.sparkContext, description, group=job_group), surfaced_errors(description):
            return sink.write_batch(batch)

    return write


def _dataframe(spark: SparkSession, store: StoreSpec, manifest: Manifest, renaming: Renaming = SAME) -> DataFrame:
    return read_segments(
        spark,
        store=store,
        segments=manifest.segments,
        schema=schema_of_manifest(manifest),
        chunk_rows=manifest.chunk_rows,
        renaming=renaming,
    )


def read_segments(
    spark: SparkSession,
    *,
    store: StoreSpec,
    segments: Sequence[SegmentRef],
    schema: StructType,
    chunk_rows: int,
    renaming: Renaming = SAME,
) -> DataFrame:
    """A batch DataFrame with the rows of `segments`, one partition each. Every evaluation gives the same rows.

    Runs on the driver and starts no job. Every task reads one segment through its own store, so Spark needs no
    connector for it, and verifies the checksum. `schema` is that of the staged DataFrame, `chunk_rows` that of the
    manifest. The result has exactly this schema: names (including dotted and equal ones), nullability and metadata,
    unless `renaming` leaves out columns or gives them other names.

    Inside `surfaced_errors` of `wal_sink.spark.tasks`, the evaluation raises `CorruptError` or
    `StoreError`; elsewhere it raises Spark's `PythonException` with the same message.
    """
    names, places = positional_names(schema), renaming.places(schema.names)
    task = _ReadingTask(store, tuple(segments), chunk_rows, tuple(names))
    ordinals = spark.range(0, len(segments), 1, max(1, len(segments)))  # one ordinal a partition (measured)
    rows = of_unknown_size(ordinals).mapInArrow(task, positional(schema))
    if renaming.names:
        rows = rows.select(*(names[place] for place, _ in places))
    return rows.toDF(*(name for _, name in places))


@dataclass(frozen=True, slots=True)
class _ReadingTask:
    """The task that runs on executors: it gets ordinals of segments and yields their rows under positional names."""

    store: StoreSpec
    segments: tuple[SegmentRef, ...]
    chunk_rows: int
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked_errors():
            for batch in batches:
                for ordinal in batch.column(0):
                    yield from self._rows(self.segments[int(ordinal.as_py())])

    def _rows(self, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
        store = open_store(self.store)
        data = load_segment(store, ref)
        where = store.url_of(ref.path)
        for *_, table in read_chunks(data, ref, chunk_rows=self.chunk_rows, columns=self.columns, where=where):
            yield from table.to_batches()

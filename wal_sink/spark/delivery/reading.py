"""The staged rows of a batch as a Spark DataFrame, with their original schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.spark.session.private import of_unknown_size
from wal_sink.spark.session.schema import positional, positional_names
from wal_sink.spark.session.tasks import marked_errors
from wal_sink.stores.opening import open_store
from wal_sink.wal.records import SegmentRef
from wal_sink.wal.segment_reader import load_segment, read_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from wal_sink.stores.spec import StoreSpec


def read_segments(
    spark: SparkSession, *, store: StoreSpec, segments: Sequence[SegmentRef], schema: StructType, chunk_rows: int
) -> DataFrame:
    """A batch DataFrame with the rows of `segments`, one partition each. Every evaluation gives the same rows.

    Runs on the driver and starts no job. Every task reads one segment through its own store, so Spark needs no
    connector for it, and verifies the checksum. `schema` is that of the staged DataFrame, `chunk_rows` that of the
    manifest. The result has exactly this schema: names (including dotted and equal ones), nullability and metadata.

    Inside `surfaced_errors` of `wal_sink.spark.session.tasks`, the evaluation raises `CorruptError` or
    `StoreError`; elsewhere it raises Spark's `PythonException` with the same message.
    """
    task = _ReadingTask(store, tuple(segments), chunk_rows, tuple(positional_names(schema)))
    ordinals = spark.range(0, len(segments), 1, max(1, len(segments)))  # one ordinal a partition (measured)
    return of_unknown_size(ordinals).mapInArrow(task, positional(schema)).toDF(*schema.names)


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

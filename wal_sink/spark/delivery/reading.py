"""Reading: the staged rows of a batch as a Spark DataFrame again, with the schema they had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.spark.session.task_errors import marked_errors
from wal_sink.spark.staging.schema import positional, positional_names
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
    """A batch DataFrame of the rows of `segments`, a partition each: the same rows however often it is evaluated.

    Runs on the driver and starts no job. Every task reads one segment through its own store, so that Spark needs no
    connector for it, and verifies the checksum. `schema` is that of the staged DataFrame, `chunk_rows` the manifest's.
    The result has exactly this schema: names (dotted and equal ones too), nullability and metadata.

    Evaluating it raises `CorruptError` or `StoreError` inside `surfaced_errors` of
    `wal_sink.spark.session.task_errors`, and Spark's `PythonException` with the same message elsewhere.
    """
    task = _ReadingTask(store, tuple(segments), chunk_rows, tuple(positional_names(schema)))
    ordinals = spark.range(0, len(segments), 1, max(1, len(segments)))  # one ordinal a partition (measured)
    return ordinals.mapInArrow(task, positional(schema)).toDF(*schema.names)


@dataclass(frozen=True, slots=True)
class _ReadingTask:
    """What runs on executors: given the ordinal of a segment, yields its rows under positional names."""

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

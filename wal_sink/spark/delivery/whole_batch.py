"""Whole batches for existing writers: the staged rows as a DataFrame, on the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError
from wal_sink.messages import DeliveryContext
from wal_sink.sinks.base import BatchSink, ReleasedBatch
from wal_sink.spark.delivery.manifest_schema import schema_from_json
from wal_sink.spark.delivery.reading import read_segments
from wal_sink.spark.session.private import active, described
from wal_sink.spark.session.tasks import surfaced_errors
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.records import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def batch_writer(
    session: Callable[[], SparkSession], sink: BatchSink, store: StoreSpec, *, job_group: str
) -> Callable[[DeliveryContext, Manifest], object]:
    """The function of a `WholeBatchDispatcher`; calls `sink.write_batch` with the released batch, in `session()`."""

    def write(delivery_context: DeliveryContext, manifest: Manifest) -> object:
        spark = session()
        description = f"wal-sink {store.safe_url} batch {manifest.batch_id}: deliver to {delivery_context.sink}"
        batch = ReleasedBatch(
            batch_id=manifest.batch_id,
            term=delivery_context.term.number,
            spark=spark,
            read=lambda: _dataframe(spark, store, manifest),
        )
        with active(spark), described(spark.sparkContext, description, group=job_group), surfaced_errors(description):
            return sink.write_batch(batch)

    return write


def _dataframe(spark: SparkSession, store: StoreSpec, manifest: Manifest) -> DataFrame:
    if not manifest.spark_schema:
        raise ConfigError(
            f"batch {manifest.batch_id} was staged without Spark, so it has no Spark schema and cannot become a "
            "DataFrame"
        )
    schema = schema_from_json(manifest.spark_schema, what=f"batch {manifest.batch_id}")
    return read_segments(spark, store=store, segments=manifest.segments, schema=schema, chunk_rows=manifest.chunk_rows)

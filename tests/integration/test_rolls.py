"""Rolls under a running query: many small batches are one file and one commit, wherever the sink runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.support.iceberg_tables import NAME, catalog_in, loaded
from tests.support.streams import Home
from wal_sink import ConfigError, Delivery
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.iceberg import IcebergSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BATCHES = 6
TEMPLATE = "batch={batch_id}/{partition}-{file_index}.{ext}"


@pytest.mark.parametrize("where", ["auto", "executors"])
def test_many_small_batches_are_one_file_and_one_commit(spark: SparkSession, tmp_path: Path, where: Any) -> None:
    place, catalog = Home(tmp_path), catalog_in(tmp_path)
    sinks = {
        "lake": Delivery(DeltaSink(f"{tmp_path}/table", create=True), roll_s=3600, where=where),
        "iceberg": Delivery(IcebergSink(NAME, catalog=catalog, create=True), roll_s=3600, where=where),
        "files": Delivery(
            TwoPhaseFilesSink(f"{tmp_path}/files", name_template=TEMPLATE, format="parquet"), roll_s=3600, where=where
        ),
    }
    for run in range(2):
        place.feed.add(*(range(10 * batch, 10 * batch + 10) for batch in range(run * BATCHES, (run + 1) * BATCHES)))
        place.run(spark, sinks)
        ids = list(range(10 * BATCHES * (run + 1)))
        table = DeltaTable(f"{tmp_path}/table")
        assert sorted(table.to_pyarrow_table().to_pydict()["id"]) == ids
        assert (table.version(), len(table.file_uris())) == (run + 1, run + 1), "version 0 is that of the new table"
        iceberg = loaded(catalog).load_table(NAME)
        assert sorted(iceberg.scan().to_arrow().to_pydict()["id"]) == ids
        assert (len(iceberg.snapshots()), len(iceberg.inspect.files())) == (run + 1, run + 1)
        files: Any = ds.dataset(f"{tmp_path}/files", format="parquet", partitioning="hive")
        assert sorted(files.to_table().to_pydict()["id"]) == ids
        assert len(files.files) == run + 1
    with pytest.raises(ConfigError, match="registered with rolls"):
        place.run(spark, {name: Delivery(each.to) for name, each in sinks.items()})

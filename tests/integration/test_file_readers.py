"""What readers make of the files that the sinks write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from wal_sink.testing.bench import Held, chunks_of, commit, opened, prepare
from wal_sink_backends import TwoPhaseFilesSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEMPLATE = "batch={batch_id}/{partition}-{roll}.{ext}"


def written(folder: Path, table: pa.Table, *, batch_id: int, publish: bool) -> Held:
    sink = TwoPhaseFilesSink(str(folder), name_template=TEMPLATE)
    chunks = chunks_of(table, batch_id=batch_id)
    with opened(sink, chunks[0]):
        held = prepare(sink, chunks)
        if publish:
            commit(sink, held)
    return held


@pytest.mark.parametrize("recursive", ["true", "false"])
@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/*/*", "/**/*"])
def test_spark_reads_no_row_that_is_held_back(
    spark: SparkSession, tmp_path: Path, pattern: str, recursive: str
) -> None:
    written(tmp_path, pa.table({"id": [1]}), batch_id=0, publish=True)
    written(tmp_path, pa.table({"id": [2]}), batch_id=1, publish=False)
    found = spark.read.option("recursiveFileLookup", recursive).json(f"{tmp_path}{pattern}").collect()
    assert [row["id"] for row in found] == [1]
    files: Any = ds.dataset(str(tmp_path), format="csv")
    assert len(files.files) == 1

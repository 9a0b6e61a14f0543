"""A small pipeline, run by `installs.py` with an installed wal-sink: files through a WAL to SQLite and further targets.

    python pipeline.py JSON

JSON: `wal`, `storage_options`, `targets` (name to URL). It works in the current folder, and prints JSON. It stands
alone: nothing of the checkout may be imported here.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

import wal_sink
import wal_sink_backends
from wal_sink import Metrics, Settings, WalSink

FILES = 2
ROWS_PER_FILE = 30
CONF: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(given: dict[str, Any]) -> None:
    """Write the input, run the query until all is delivered, and print which files were imported."""
    source = Path("input")
    source.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        pq.write_table(pa.table({"id": ids, "name": [f"row {row}" for row in ids]}), source / f"{number}.parquet")
    spark = SparkSession.builder.master("local[2]").config(map=CONF).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1)
    targets = {"database": "sqlite:///rows.db?table=rows", **given["targets"]}
    options = {"storage_options": given["storage_options"]} if given["storage_options"] else {}
    settings = Settings(chunk_rows=20, chunk_bytes=2_000_000)  # DynamoDB takes no larger transactions
    metrics = Metrics() if given["is_watched"] else None
    given_to_all = {"wal": given["wal"], "checkpoint": "checkpoint", "metrics": metrics}
    with WalSink(targets, settings=settings, **given_to_all, **options) as sink:
        sink.run(reader.parquet(str(source)).writeStream.trigger(availableNow=True))
    if metrics is not None:
        address = metrics.serve("127.0.0.1:0")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            assert f"}} {FILES * ROWS_PER_FILE}.0" in answer.read().decode()  # the rows that were staged
    spark.stop()
    imported = [wal_sink.__file__, wal_sink_backends.__file__, pyspark.__file__]
    told = {"imported": imported, "path": sys.path, "prefix": sys.prefix, "version": version("wal-sink")}
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

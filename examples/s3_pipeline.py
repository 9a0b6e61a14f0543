# python examples/s3_pipeline.py
"""JSON files → a Spark query → Parquet objects on S3, each row once, with the write-ahead log on S3 too.

Without arguments, it starts a local S3 server (moto, on this machine, in memory). With `--bucket`, it uses that bucket
and the credentials of your environment. Spark itself needs no S3 connector: its executors write and read through
wal-sink.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import s3fs
from pyspark.sql import DataFrame, SparkSession

from wal_sink import WalSink
from wal_sink.spark import check_java, prepare_python
from wal_sink_backends import TwoPhaseFilesSink

ROWS_PER_FILE = 1_000
FILES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", help="an existing bucket; without it a local S3 server is started")
    bucket = parser.parse_args().bucket
    with tempfile.TemporaryDirectory() as folder:
        if bucket:
            run(Path(folder), bucket, {})
        else:
            with local_s3("lake") as options:
                run(Path(folder), "lake", options)


def run(folder: Path, bucket: str, options: Mapping[str, object]) -> None:
    """Write input, run the query to its end, and count what arrived."""
    check_java()
    prepare_python()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write_input(folder / "in")

    target = TwoPhaseFilesSink(f"s3://{bucket}/orders", format="parquet", storage_options=options)
    with WalSink(
        target, wal=f"s3://{bucket}/wal/orders", checkpoint=str(folder / "checkpoint"), storage_options=options
    ) as sink:
        sink.run(orders(spark, folder / "in").writeStream.trigger(availableNow=True))
        print(sink.guarantee()["default"])

    files = s3fs.S3FileSystem(**options)
    arrived = ds.dataset(f"{bucket}/orders", filesystem=files, format="parquet").to_table()
    expected = FILES * ROWS_PER_FILE
    assert sorted(arrived["id"].to_pylist()) == list(range(expected))
    spark.stop()
    print(f"ok: {arrived.num_rows} rows in s3://{bucket}/orders, each of {expected} once")


def orders(spark: SparkSession, folder: Path) -> DataFrame:
    """The streaming query: one micro-batch per file."""
    stream = spark.readStream.schema("id long, price double").option("maxFilesPerTrigger", 1).json(str(folder))
    return stream.selectExpr("id", "price", "price > 50 as dear")


def write_input(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        lines = (json.dumps({"id": row, "price": row % 100}) for row in ids)
        (folder / f"{number}.json").write_text("\n".join(lines))


@contextmanager
def local_s3(bucket: str) -> Iterator[dict[str, object]]:
    """Start moto's S3 server on this machine with one bucket; yields fsspec's options for it."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - only needed without a bucket

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        options: dict[str, object] = {
            "key": "example",
            "secret": "example",
            "endpoint_url": f"http://127.0.0.1:{port}",
        }
        s3fs.S3FileSystem(**options).mkdir(bucket)
        yield options
    finally:
        server.stop()


if __name__ == "__main__":
    main()

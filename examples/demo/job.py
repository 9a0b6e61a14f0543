"""The driver the demo starts and kills: a real Spark query that enriches flights and delivers them through a WAL.

Run as `python -m examples.demo.job`, told by the environment what to do.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from examples.demo import source
from examples.demo.plain_sink import PlainSink
from examples.demo.process import end_with_parent
from wal_sink import Delivery, Settings, WalSink
from wal_sink.spark import check_java, prepare_python
from wal_sink_backends import SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB_VARIABLE, STORAGE_VARIABLE = "WAL_SINK_DEMO_JOB", "WAL_SINK_DEMO_STORAGE"
"""In the environment of a driver: its `Job`, and the options of its store, which hold keys. Both are JSON."""
EXACT, PLAIN = "database", "plain"
"""The names of the two sinks in the WAL."""
TABLE = "flights"
CARRIER_NAME, DELAY_CLASS = "carrier_name", "delay_class"
DELIVERED_COLUMNS = (source.ROW_ID, *source.COLUMNS, CARRIER_NAME, DELAY_CLASS)
_POLL_S = 0.2
_QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""A JVM that lives for seconds must not spend them on optimising itself, or on verifying Spark's classes (a third)."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of one driver. They hold no secret: storage options do, and come in another variable."""

    stream: str
    ended: str
    airlines: str
    wal: str
    checkpoint: str
    database: str
    plain: str
    scratch: str
    """For Spark's own files. TMPDIR lies there too, since a killed driver deletes nothing."""
    chunk_rows: int
    split_bytes: int
    """Spark reads a file in tasks of so many bytes, and each becomes a segment."""
    answer_s: float
    spark_conf: dict[str, str]


def main() -> None:
    """Run until the stream has ended and everything is delivered, or until this process is killed."""
    end_with_parent()
    job = msgspec.json.decode(os.environ[JOB_VARIABLE], type=Job)
    options = json.loads(os.environ[STORAGE_VARIABLE])
    check_java()
    prepare_python()
    spark = _session(job)
    targets = {
        EXACT: Delivery(SqlSink(f"sqlite:///{job.database}", TABLE), guarantee="exactly_once"),
        PLAIN: PlainSink(job.plain, job.answer_s),
    }
    settings = Settings(chunk_rows=job.chunk_rows)
    wal = WalSink(targets, wal=job.wal, checkpoint=job.checkpoint, storage_options=options, settings=settings)
    with wal as sink:
        query = sink.start(_enriched(spark, job).writeStream)
        while not Path(job.ended).exists():
            if not query.isActive:
                query.awaitTermination()  # raises why
                return
            time.sleep(_POLL_S)
        query.processAllAvailable()
    spark.stop()


def _session(job: Job) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - PYSPARK_PYTHON must be set before

    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f'{_QUICK_JAVA} -XX:-UsePerfData "-Djava.io.tmpdir={tempfile.gettempdir()}"',
        "spark.driver.host": "127.0.0.1",
        "spark.hadoop.hadoop.tmp.dir": f"{job.scratch}/hadoop",
        "spark.local.dir": f"{job.scratch}/local",
        "spark.sql.files.maxPartitionBytes": str(job.split_bytes),
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Killed before it has noted its first batch, Spark 4.3 would take its own checkpoint for another's.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        "spark.sql.warehouse.dir": f"{job.scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **job.spark_conf,
    }
    session = SparkSession.builder.master("local[2]").appName("examples.demo").config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _enriched(spark: SparkSession, job: Job) -> DataFrame:
    """The flights with the names of their carriers, by a join, and the class of their delay."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - see above

    kinds = [f"{name} {'string' if name in source.TEXTS else 'int'}" for name in (source.ROW_ID, *source.COLUMNS)]
    reader = spark.readStream.schema(", ".join(kinds)).option("header", value=True)
    flights = reader.option("nullValue", source.NOTHING).option("maxFilesPerTrigger", 1).csv(job.stream)
    airlines = spark.read.option("header", value=True).csv(job.airlines)
    names = airlines.select(source.CARRIER, f.col("name").alias(CARRIER_NAME))
    delay = f.col(source.DEP_DELAY)
    delay_class = (
        f.when(f.col(source.DEP_TIME).isNull(), "cancelled")
        .when(delay <= source.LATE_MINUTES, "on time")
        .when(delay <= source.VERY_LATE_MINUTES, "late")
        .otherwise("very late")
    )
    joined = flights.join(f.broadcast(names), source.CARRIER, "left")
    return joined.withColumn(DELAY_CLASS, delay_class).select(*DELIVERED_COLUMNS)


if __name__ == "__main__":
    main()

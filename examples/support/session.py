"""A Spark session whose stateful queries keep their state in RocksDB, with changelog checkpointing."""

from __future__ import annotations

from pyspark.sql import SparkSession
from support.home import Home
from support.processes import end_with_parent

from wal_sink.spark import check_java, prepare_python

__all__ = ["spark_with_rocksdb"]

STATE_STORE = "spark.sql.streaming.stateStore"
CONF = {
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Each batch writes only the changes of its state into the checkpoint, not whole files of RocksDB.
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    # Without this, Spark 4.3 refuses its own checkpoint if it was killed before it recorded its first batch.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


def spark_with_rocksdb(home: Home) -> SparkSession:
    end_with_parent()  # the example itself may be killed, too
    check_java()
    prepare_python()
    builder = SparkSession.builder.master("local[2]").config(map={**CONF})
    builder = builder.config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={home.scratch}"')
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark

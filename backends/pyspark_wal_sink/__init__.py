"""Registers `format("wal_sink")`: Spark 4 looks for `DefaultSource` in every top-level module named `pyspark_…`."""

from wal_sink.spark.source import WalSinkDataSource as DefaultSource

__all__ = ["DefaultSource"]

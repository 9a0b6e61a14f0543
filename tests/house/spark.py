"""The parts that Spark carries out. Importing it may import pyspark."""

from __future__ import annotations

from wal_sink.spark import staging
from wal_sink.spark.cluster import REPEAT_CHECKS
from wal_sink.spark.delivery import ExecutorDispatcher, PickledSink, _DeliveryTask
from wal_sink.spark.environment import version_of
from wal_sink.spark.private import setting_of, task_slots
from wal_sink.spark.tasks import SparkJobError, surfaced_errors

__all__ = [
    "REPEAT_CHECKS",
    "ExecutorDispatcher",
    "PickledSink",
    "SparkJobError",
    "_DeliveryTask",
    "setting_of",
    "staging",
    "surfaced_errors",
    "task_slots",
    "version_of",
]

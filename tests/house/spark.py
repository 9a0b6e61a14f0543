"""The parts that Spark carries out. Importing it may import pyspark."""

from __future__ import annotations

from wal_sink.spark import staging
from wal_sink.spark.delivery.executors import ExecutorDispatcher, _DeliveryTask
from wal_sink.spark.delivery.pickling import PickledSink
from wal_sink.spark.session.cluster import REPEAT_CHECKS
from wal_sink.spark.session.environment import version_of
from wal_sink.spark.session.private import setting_of, task_slots
from wal_sink.spark.session.tasks import SparkJobError, surfaced_errors

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

"""The parts that Spark carries out. Importing it may import pyspark."""

from __future__ import annotations

from wal_sink.spark.delivery.executors import _DeliveryTask
from wal_sink.spark.delivery.pickling import PickledSink
from wal_sink.spark.session.cluster import REPEAT_CHECKS, task_slots
from wal_sink.spark.session.configuration import setting_of
from wal_sink.spark.session.task_errors import SparkJobError, surfaced_errors
from wal_sink.spark.session.versions import version_of

__all__ = [
    "REPEAT_CHECKS",
    "PickledSink",
    "SparkJobError",
    "_DeliveryTask",
    "setting_of",
    "surfaced_errors",
    "task_slots",
    "version_of",
]

"""Spark's own Kafka connector, which its pip package lacks."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.support.servers.jars import Module, jars

_NEWEST_SEEN = "4.2.0"
"""This version works with Spark 4.3 too. Not every repository of jars may have Spark 4.3's own version yet."""
_SPARK = "org.apache.spark"
_MODULES = (
    Module(_SPARK, "spark-sql-kafka-0-10_2.13", (pyspark.__version__, _NEWEST_SEEN)),
    Module(_SPARK, "spark-token-provider-kafka-0-10_2.13", (pyspark.__version__, _NEWEST_SEEN, "4.1.0-preview1")),
    Module("org.apache.kafka", "kafka-clients", ("3.9.1",)),
    Module("org.apache.commons", "commons-pool2", ("2.12.1",)),
)


def kafka_connector() -> Path:
    """Return the folder of its jars, for Spark's class path."""
    return jars(f"spark-kafka-{pyspark.__version__}", _MODULES)

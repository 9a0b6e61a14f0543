"""Spark: staging, delivery and the query as Spark carries them out. Importing it does not import pyspark.

`check_java` and `prepare_python` are for programs that make a session: call them before it is made.
"""

from wal_sink.spark.session.java import check_java
from wal_sink.spark.session.workers import prepare_python

__all__ = ["check_java", "prepare_python"]

"""The protocol as Spark carries it out: the query, staging and delivery as Spark jobs.

Importing this package does not import pyspark.

`check_java` and `prepare_python` are for programs that create a Spark session: call them before you create it.
"""

from wal_sink.spark.environment import check_java, prepare_python

__all__ = ["check_java", "prepare_python"]

"""A function is taken for a writer of rows, which needs PySpark."""

from __future__ import annotations

from wal_sink import wrap
from wal_sink.spark.writers.foreach import ForeachWriterSink


def test_a_function_of_one_row_is_a_writer_of_rows() -> None:
    sink = wrap.foreach_writer(lambda _: None)
    assert isinstance(sink, ForeachWriterSink)
    assert "<lambda>" in sink.describe()

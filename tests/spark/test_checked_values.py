# ruff: noqa: ARG005
"""Writers of rows, which need PySpark."""

from __future__ import annotations

from typing import Any

import pytest

from wal_sink import wrap
from wal_sink.errors import ConfigError
from wal_sink.spark.writers.foreach import ForeachWriterSink


def test_a_function_of_one_row_is_a_writer_of_rows() -> None:
    sink = wrap.foreach_writer(lambda _: None)
    assert isinstance(sink, ForeachWriterSink)
    assert "<lambda>" in sink.describe()


@pytest.mark.parametrize(
    ("method", "function", "call"),
    [
        ("open", lambda self, partition_id: True, "open(partition_id, epoch_id)"),
        ("process", lambda self: None, "process(row)"),
        ("close", lambda self: None, "close(error)"),
    ],
)
def test_each_method_of_a_foreach_writer_is_checked(method: str, function: object, call: str) -> None:
    writer = type("Writer", (), {"process": lambda self, row: None, method: function})()

    with pytest.raises(ConfigError) as told:
        wrap.foreach_writer(writer)

    assert str(told.value) == f"Writer.{method} cannot be called as wal-sink calls it: expected {call}"


async def later(row: object) -> None: ...


def no_row() -> None: ...


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        (later, "foreach_writer(later) is async: "),
        (no_row, "foreach_writer(no_row): expected a function of one Row, def no_row(row)"),
    ],
)
def test_a_function_that_is_no_writer_of_rows_is_named(writer: Any, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        wrap.foreach_writer(writer)

    assert str(told.value).startswith(said)

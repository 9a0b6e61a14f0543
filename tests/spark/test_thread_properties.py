"""Spark is told of a thread's jobs, and the thread has its own settings back afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from wal_sink.spark.private import described, is_running, thread_properties

if TYPE_CHECKING:
    from pyspark import SparkContext


class Context:
    """The local properties of one thread of a SparkContext; `stop` as PySpark's: the JVM's half is gone."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties
        self._jsc: object | None = object()

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - PySpark's names
        assert self._jsc is not None
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:  # noqa: N802
        assert self._jsc is not None
        if value is None:
            self.properties.pop(key, None)
        else:
            self.properties[key] = value

    def stop(self) -> None:
        self._jsc = None

    @property
    def spark(self) -> SparkContext:
        return cast("SparkContext", self)


def test_a_thread_has_its_properties_back_whatever_happens() -> None:
    context = Context(known="before")
    with thread_properties(context.spark, {"known": "a", "new": "b"}):
        assert context.properties == {"known": "a", "new": "b"}
    assert context.properties == {"known": "before"}
    with pytest.raises(ZeroDivisionError), thread_properties(context.spark, {"known": "a", "new": "b"}):
        _ = 1 / 0
    assert context.properties == {"known": "before"}


def test_a_group_is_set_only_where_one_is_given() -> None:
    context = Context(**{"spark.jobGroup.id": "the query's"})
    with described(context.spark, "mine"):
        assert context.properties == {"spark.jobGroup.id": "the query's", "spark.job.description": "mine"}
        with described(context.spark, "ours", group="the committer's"):
            inside = {"spark.jobGroup.id": "the committer's", "spark.job.description": "ours"}
            assert context.properties == inside
    assert context.properties == {"spark.jobGroup.id": "the query's"}


def test_a_spark_that_was_stopped_meanwhile_is_left_alone() -> None:
    context = Context()
    with described(context.spark, "mine"):
        assert is_running(context.spark)
        context.stop()
    assert not is_running(context.spark)

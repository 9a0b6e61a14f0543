"""Properties of the Spark jobs that the calling thread starts: their description and their group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from wal_sink.spark.session.private import private

if TYPE_CHECKING:
    from pyspark import SparkContext

_DESCRIPTION = "spark.job.description"
_GROUP = "spark.jobGroup.id"


@contextmanager
def thread_properties(context: SparkContext, properties: Mapping[str, str]) -> Iterator[None]:
    """Set Spark's local properties on the calling thread of the driver; restore the old values at the end."""
    before = {key: context.getLocalProperty(key) for key in properties}
    for key, value in properties.items():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        if is_running(context):
            for key, old in before.items():
                context.setLocalProperty(key, old)  # type: ignore[arg-type]  # None removes it


def described(context: SparkContext, description: str, *, group: str | None = None) -> AbstractContextManager[None]:
    """Describe this thread's jobs in Spark's UI, and put them into a job group.

    Without `group` they stay in the thread's own group: if that group is cancelled, as the stop of a query does, they
    are cancelled too.
    """
    return thread_properties(context, {_DESCRIPTION: description} | ({} if group is None else {_GROUP: group}))


def is_running(context: SparkContext) -> bool:
    """Whether the context runs; False after the user stopped it. PySpark has no public way to ask."""
    return private(context, "_jsc") is not None

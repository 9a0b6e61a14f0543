"""Check that all tasks of a job read the same output of each shuffle, and that Spark repeated no part in between.

Spark gives its tasks ascending ids, and the output of a shuffle has the ids of the tasks that wrote it. If a part was
written by a later task than one that read the shuffle, Spark repeated that part after the read. These ids come from the
driver's own tables, which are complete when the job ends. Events and the data of Spark's UI may be late or dropped.

Spark's own comparison of repeated outputs (on since 4.2) covers only the shuffles that SQL plans, not those of an RDD
behind a DataFrame. So this check runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of

from wal_sink.spark.session.private import private, understood

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

_SHUFFLE = "org.apache.spark.ShuffleDependency"
_SHUFFLE_IN_TEXT = "+-"
"""The mark of a shuffle in `RDD.toDebugString`. If a name contains it by accident, the full check runs: no harm."""


class RepeatedShuffles:
    """The shuffles of a collected DataFrame, as they are after its job. On the driver."""

    def __init__(self, collected: DataFrame) -> None:
        self._context = collected.sparkSession.sparkContext
        self._collected = collected

    def found(self, tasks: list[int]) -> str | None:
        """The sign that rows may be lost or duplicated, in words; None if all tasks read the same outputs.

        `tasks`: the ids of the tasks whose results count, one for each partition. Raises `ConfigError` if this Spark
        does not tell.
        """
        with understood(self._context.version, "whether it repeated a shuffle"):
            rdd = self._rdd()
            if _SHUFFLE_IN_TEXT not in rdd.toDebugString():
                return None
            if len(tasks) != (partitions := rdd.getNumPartitions()):
                return f"only {len(tasks)} of {partitions} tasks reported their ids"
            return self._below(rdd, min(tasks)) if tasks else None  # without partitions, no task read anything

    def forget(self) -> None:
        """Make the next job compute every shuffle again, including those that were not repeated."""
        with understood(self._context.version, "the shuffles of a batch, to repeat them"):
            tracker = self._tracker()
            todo, done = [self._rdd()], set[int]()
            while todo:
                for shuffle in _read_by(self._context, todo.pop()):
                    if (number := shuffle.shuffleId()) not in done:
                        done.add(number)
                        tracker.unregisterAllMapAndMergeOutput(number)
                        todo.append(shuffle.rdd())

    def _below(self, rdd: Any, first_reader: int) -> str | None:
        """The same check for the tasks that computed `rdd`, the first of which was `first_reader`, and for all earlier
        shuffles.
        """
        for shuffle in _read_by(self._context, rdd):
            number = shuffle.shuffleId()
            writers = self._writers(number)
            if None in writers:
                return f"{writers.count(None)} of {len(writers)} outputs of shuffle {number} are gone"
            known = [writer for writer in writers if writer is not None]
            if late := sum(writer > first_reader for writer in known):
                return (
                    f"{late} of {len(known)} outputs of shuffle {number} were written after task {first_reader} began"
                )
            if known and (found := self._below(shuffle.rdd(), min(known))):
                return found
        return None

    def _writers(self, shuffle: int) -> list[int | None]:
        """The id of the task that wrote each output of a shuffle; None for a missing output."""
        outputs = self._tracker().shuffleStatuses().apply(shuffle).mapStatuses()
        return [None if (output := outputs[index]) is None else output.mapId() for index in range(len(outputs))]

    def _rdd(self) -> Any:
        return private(self._collected, "_jdf").queryExecution().toRdd()

    def _tracker(self) -> Any:
        # Read as a field: py4j cannot call methods of SparkEnv, because one needs a class that Spark 4.3 does not ship.
        kind = private(self._context, "_jvm").java.lang.Class.forName("org.apache.spark.SparkEnv")
        field = kind.getDeclaredField("mapOutputTracker")
        field.setAccessible(True)
        return field.get(private(self._context, "_jsc").sc().env())


def _read_by(context: SparkContext, rdd: Any) -> Iterator[Any]:
    """The shuffles that are read by the tasks which compute `rdd`."""
    gateway = private(context, "_gateway")
    todo, seen = [rdd], set[int]()
    while todo:
        current = todo.pop()
        if (number := current.id()) in seen:
            continue
        seen.add(number)
        dependencies = current.dependencies()
        for index in range(dependencies.size()):
            dependency = dependencies.apply(index)
            if is_instance_of(gateway, dependency, _SHUFFLE):
                yield dependency
            else:
                todo.append(dependency.rdd())

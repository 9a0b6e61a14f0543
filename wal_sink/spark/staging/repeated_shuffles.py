"""Whether the tasks of a job read one and the same output of each shuffle, or Spark repeated a part of it in between.

Spark gives its tasks ids that only grow, and the output of a shuffle carries the ids of the tasks that wrote it. A part
that was written by a later task than one that read the shuffle was repeated after that read. All of it is read from the
driver's own tables, which are up to date when the job ends; events and what Spark's UI keeps are late or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of

from wal_sink.spark.session.cluster import REPEAT_CHECKS
from wal_sink.spark.session.private import private, understood

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

_SHUFFLE = "org.apache.spark.ShuffleDependency"
_SHUFFLE_IN_TEXT = "+-"
"""How `RDD.toDebugString` begins what a shuffle reads. In a name it costs a look, and hides nothing."""


class RepeatedShuffles:
    """The shuffles below a DataFrame that was collected, as they are after its job. On the driver."""

    def __init__(self, collected: DataFrame) -> None:
        self._context = collected.sparkSession.sparkContext
        self._collected = collected
        self._checks = {key: collected.sparkSession.conf.get(key, None) for key in REPEAT_CHECKS}

    def found(self, tasks: list[int]) -> str | None:
        """What shows that rows may be lost or doubled, in words; None if each task read what all the others read.

        `tasks`: the ids of the tasks whose results count, one for each partition. Raises `ConfigError` if this Spark
        does not tell.
        """
        if all(value == "true" for value in self._checks.values()):
            return None  # Spark compares them, and fails the job
        with understood(self._context.version, "whether it repeated a shuffle"):
            rdd = self._rdd()
            if _SHUFFLE_IN_TEXT not in rdd.toDebugString():
                return None
            if len(tasks) != (partitions := rdd.getNumPartitions()):
                return f"{len(tasks)} of {partitions} tasks told their ids"
            return self._below(rdd, min(tasks)) if tasks else None  # of no partition nobody read anything

    def forget(self) -> None:
        """Let the next job compute every shuffle again, the repeated ones and the others."""
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
        """The same for the tasks that computed `rdd`, the first of which was `first_reader`, and for those below."""
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
        """The id of the task that wrote each output of a shuffle; None of one that is not there."""
        outputs = self._tracker().shuffleStatuses().apply(shuffle).mapStatuses()
        return [None if (output := outputs[index]) is None else output.mapId() for index in range(len(outputs))]

    def _rdd(self) -> Any:
        return private(self._collected, "_jdf").queryExecution().toRdd()

    def _tracker(self) -> Any:
        # A field: py4j cannot call the methods of SparkEnv, one of which needs a class that Spark 4.3 does not ship.
        kind = private(self._context, "_jvm").java.lang.Class.forName("org.apache.spark.SparkEnv")
        field = kind.getDeclaredField("mapOutputTracker")
        field.setAccessible(True)
        return field.get(private(self._context, "_jsc").sc().env())


def _read_by(context: SparkContext, rdd: Any) -> Iterator[Any]:
    """The shuffles that the tasks which compute `rdd` read."""
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

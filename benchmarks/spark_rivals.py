"""The usual ways on Spark without a log: `foreachBatch` and Spark's own writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.backends.sql import TABLE, SqlBackend
from benchmarks.clock import Stopwatch, batch_ms, planned_s
from benchmarks.measure import Contestant
from benchmarks.sinks import TAKEN, Consume, CsvSink, Direct, DirectSql, NullSink, skip
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WRITE_PARQUET = "df.write.parquet"
MOVED = "mapInArrow that drops its rows"
FOREACH_ARROW = "foreachBatch + mapInArrow"
FOREACH_PARQUET = "foreachBatch + df.write.parquet"
FILE_SINK = "Spark's streaming file sink"


@dataclass(frozen=True, slots=True)
class SparkRivals:
    """A factory of Spark's own contestants, for one session."""

    session: Callable[[], SparkSession]

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.session()

    def write_parquet(self, work: Workload) -> Contestant:
        """Write the rows with Spark's batch writer of Parquet files."""
        return Contestant(WRITE_PARQUET, partial(self._write_parquet, work))

    def moved(self, work: Workload) -> Contestant:
        """Move the rows from the JVM to Python workers and drop them. Every sink in Python has at least this cost."""
        return Contestant(MOVED, partial(self._move, work))

    def null(self, work: Workload) -> Contestant:
        """Call a sink that does nothing, in `foreachBatch`."""
        return self._direct(work, lambda _: Direct(NullSink()))

    def csv(self, work: Workload) -> Contestant:
        """Call the sink that writes CSV files, in `foreachBatch`."""
        return self._direct(work, lambda place: Direct(CsvSink(place / "out")))

    def sql(self, work: Workload, database: SqlBackend) -> Contestant:
        """Write to a database in `foreachBatch`."""

        def rate(place: Path) -> float:
            return database.rate(
                work.rows, lambda name: self._seconds(work, DirectSql(database.url(name), TABLE), place), place
            )

        return Contestant(FOREACH_ARROW, rate)

    def foreach_parquet(self, work: Workload) -> Contestant:
        """Write each batch with Spark's batch writer of Parquet files, in `foreachBatch`."""

        def rate(place: Path) -> float:
            return work.rows / _seconds(_writes_parquet(work.stream(self.spark).writeStream, place), place)

        return Contestant(FOREACH_PARQUET, rate)

    def file_sink(self, work: Workload) -> Contestant:
        """Write with Spark's streaming file sink."""

        def rate(place: Path) -> float:
            writer = work.stream(self.spark).writeStream.format("parquet").option("path", str(place / "out"))
            return work.rows / _seconds(writer, place)

        return Contestant(FILE_SINK, rate)

    def batch_time(self, work: Workload) -> Contestant:
        """Measure the time of a batch that `foreachBatch` writes as Parquet files."""

        def time_ms(place: Path) -> float:
            writer = _writes_parquet(work.stream(self.spark).writeStream, place)
            query = _to_the_end(writer, place)
            query.awaitTermination()
            return batch_ms(query)

        return Contestant(FOREACH_PARQUET, time_ms)

    def foreach(self, work: Workload) -> Contestant:
        """Measure the time of a query with Spark's `foreach`, over its batches."""
        name = "Spark's foreach"
        return Contestant(
            name, lambda place: work.batch_ms(_seconds(work.stream(self.spark).writeStream.foreach(skip), place))
        )

    def _write_parquet(self, work: Workload, place: Path) -> float:
        df = work.batch(self.spark)
        watch = Stopwatch()
        df.write.parquet(str(place / "out"))
        return watch.seconds()

    def _move(self, work: Workload, place: Path) -> float:  # noqa: ARG002 - nothing is written
        df = work.batch(self.spark)
        watch = Stopwatch()
        taken = df.mapInArrow(Direct(NullSink()), TAKEN).collect()
        took_s = watch.seconds()
        work.require_all(sum(row.rows for row in taken))
        return took_s

    def _direct(self, work: Workload, consume: Callable[[Path], Consume]) -> Contestant:
        def rate(place: Path) -> float:
            (place / "out").mkdir()
            return work.rows / self._seconds(work, consume(place), place)

        return Contestant(FOREACH_ARROW, rate)

    def _seconds(self, work: Workload, task: Consume, place: Path) -> float:
        taken: list[int] = []

        def write(df: DataFrame, _: int) -> None:
            taken.extend(row.rows for row in df.mapInArrow(task, TAKEN).collect())

        seconds = _seconds(work.stream(self.spark).writeStream.foreachBatch(write), place)
        work.require_all(sum(taken))
        return seconds


def _writes_parquet(writer: DataStreamWriter, place: Path) -> DataStreamWriter:
    def write(df: DataFrame, _: int) -> None:
        df.write.mode("append").parquet(str(place / "out"))

    return writer.foreachBatch(write)


def _seconds(writer: DataStreamWriter, place: Path) -> float:
    _to_the_end(writer, place).awaitTermination()
    return Stopwatch.now_s() - planned_s(place / "checkpoint")


def _to_the_end(writer: DataStreamWriter, place: Path) -> StreamingQuery:
    return writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()

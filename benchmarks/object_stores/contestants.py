"""The same query without a log, with its log on local files, and with its log on S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.clock import Stopwatch, planned_s
from benchmarks.measure import Contest, Contestant, Unit
from benchmarks.object_stores.store import DELAY_S, ObjectStore, Way
from benchmarks.ours import delivered_rows
from benchmarks.sinks import TAKEN, Direct, IdempotentNullSink
from benchmarks.spark_rivals import FOREACH_ARROW
from benchmarks.workloads import Workload
from wal_sink import WalSink
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL = "wal-sink, log on local files"
S3 = "wal-sink, log on S3"
SLOW_S3 = f"wal-sink, log on S3, {DELAY_S * 1000:.0f} ms"
TABLE, GROUPED = "objects-table", "objects-grouped"
REQUESTS = "-requests"
"""The end of the key of a contest that counts the requests of another contest's runs."""
PARTITIONS = 200
"""Spark's own default of `spark.sql.shuffle.partitions`."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query to run in every way: its input, what it makes of it, and how many rows that gives."""

    key: str
    title: str
    unit: Unit
    work: Workload
    transform: Callable[[DataFrame], DataFrame]
    output_mode: str
    rows: int

    def number(self, seconds: float) -> float:
        """The contest's number of a run."""
        return self.rows / seconds if self.unit is Unit.ROWS_PER_S else seconds

    def require_all(self, rows: int) -> None:
        if rows != self.rows:
            raise RuntimeError(f"expected {self.rows} rows of {self.key}, found {rows}")


def queries(table: Workload, grouped: Workload, groups: int) -> tuple[Query, Query]:
    """The queries over a table, and over files that each hold all of `groups` keys in the column `name`."""
    title = f"A grouped query with {PARTITIONS} shuffle partitions"
    return (
        Query(
            TABLE, "The table to nowhere, two files a batch", Unit.ROWS_PER_S, table, _unchanged, "append", table.rows
        ),
        Query(GROUPED, title, Unit.SECONDS, grouped, _grouped, "update", groups * grouped.batches),
    )


@dataclass(frozen=True, slots=True)
class ObjectContests:
    """Makes the contests for one session and one server."""

    session: Callable[[], SparkSession]
    store: ObjectStore

    def contests(self, query: Query) -> Iterator[Contest]:
        """Yield the contest of a query, and the one that tells its requests."""
        ways = {SLOW_S3: DELAY_S, S3: 0.0}
        # The machine's speed drifts within minutes: the two sides of each goal run one right after the other.
        timed = [
            Contestant(LOCAL, partial(self._local, query)),
            Contestant(FOREACH_ARROW, partial(self._without_log, query)),
            *(Contestant(name, partial(self._on_s3, query, delay_s)) for name, delay_s in ways.items()),
        ]
        yield Contest(query.key, query.title, query.unit, tuple(timed))
        counted = [Contestant(name, partial(self._requests, delay_s)) for name, delay_s in ways.items()]
        title = f"{query.title}: requests of a whole run, for each batch"
        yield Contest(query.key + REQUESTS, title, Unit.REQUESTS, tuple(counted))

    def _local(self, query: Query, place: Path) -> float:
        return query.number(self._seconds(query, StoreSpec(str(place / "wal")), place))

    def _on_s3(self, query: Query, delay_s: float, place: Path) -> float:
        way = self.store.way(delay_s)
        log, before = way.new_log(), way.proxy.requests
        seconds = self._seconds(query, log, place, lambda: _count(way, before, query.work.batches))
        self.store.remove(log)
        return query.number(seconds)

    def _requests(self, delay_s: float, place: Path) -> float:  # noqa: ARG002 - counted in the run before
        return self.store.way(delay_s).requests

    def _seconds(self, query: Query, log: StoreSpec, place: Path, ended: Callable[[], None] = lambda: None) -> float:
        """Run the query through a log, to its end; return the seconds. `ended` is called at once after it."""
        with (
            self._session() as spark,
            WalSink(
                IdempotentNullSink(), wal=log.url, checkpoint=str(place / "checkpoint"), storage_options=log.options
            ) as sink,
        ):
            stream = query.transform(query.work.stream(spark)).writeStream
            sink.run(stream.outputMode(query.output_mode).trigger(availableNow=True))
            ended_s = Stopwatch.now_s()
        ended()
        query.require_all(delivered_rows(log))
        return ended_s - planned_s(place / "checkpoint")

    def _without_log(self, query: Query, place: Path) -> float:
        taken: list[int] = []

        def write(df: DataFrame, _: int) -> None:
            taken.extend(row.rows for row in df.mapInArrow(Direct(IdempotentNullSink()), TAKEN).collect())

        with self._session() as spark:
            writer = query.transform(query.work.stream(spark)).writeStream.foreachBatch(write)
            writer = writer.outputMode(query.output_mode).option("checkpointLocation", str(place / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
        seconds = Stopwatch.now_s() - planned_s(place / "checkpoint")
        query.require_all(sum(taken))
        return query.number(seconds)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """The session, with as many shuffle partitions as Spark has by default."""
        spark, name = self.session(), "spark.sql.shuffle.partitions"
        before = str(spark.conf.get(name))
        spark.conf.set(name, PARTITIONS)
        try:
            yield spark
        finally:
            spark.conf.set(name, before)


def _count(way: Way, before: int, batches: int) -> None:
    way.requests = (way.proxy.requests - before) / batches


def _unchanged(df: DataFrame) -> DataFrame:
    return df


def _grouped(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark starts when the first contest is measured

    return df.groupBy("name").agg(F.count("*").alias("rows"), F.max("amount").alias("amount"))

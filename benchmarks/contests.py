"""Who is measured against whom, and what is aimed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.flink import Flink
from benchmarks.measure import Contest, Contestant, Unit
from benchmarks.ours import NAME, Ours
from benchmarks.sizes import Sizes
from benchmarks.spark_rivals import FILE_SINK, FOREACH_ARROW, FOREACH_PARQUET, WRITE_PARQUET, SparkRivals
from benchmarks.workloads import Workloads

FLINK_FILE = "Flink's WAL sink, log on files"
FLINK_MEMORY = "Flink's WAL sink, log in memory"
FLINK_NONE = "Flink without a log"


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two contestants of a contest, or a number of one, that must be reached."""

    contest: str
    what: str
    bound: float
    rival: str | None = None
    """None: the bound is on our own number."""
    ours: str = NAME

    def holds(self, found: float, unit: Unit) -> bool:
        return found >= self.bound if unit.more_is_better else found <= self.bound


TARGETS = (
    Target("staging", "staging against Spark's df.write.parquet, its time", 0.8, WRITE_PARQUET),
    Target("staging-flights", "the same, flights", 0.8, WRITE_PARQUET),
    Target("null", "whole path, null sink, against foreachBatch", 0.6, FOREACH_ARROW),
    Target("null-flights", "the same, flights", 0.6, FOREACH_ARROW),
    Target("csv", "whole path, CSV written with Arrow on executors", 0.8, FOREACH_ARROW),
    Target("csv-flights", "the same, flights", 0.8, FOREACH_ARROW),
    Target("sql", "whole path, SQLite", 0.9, FOREACH_ARROW),
    Target("null", "against Flink's WAL sink, its log on files, null", 10, FLINK_FILE),
    Target("csv", "against Flink's WAL sink, its log on files, CSV", 10, FLINK_FILE),
    Target("null", "against Flink's WAL sink, its log in memory, null", 2, FLINK_MEMORY),
    Target("csv", "against Flink's WAL sink, its log in memory, CSV", 1.3, FLINK_MEMORY),
    Target("small", "micro-batches of 1,000 rows, batch time against foreachBatch", 1.2, FOREACH_PARQUET),
    Target("latency", "from commits/N to the sink, back to back, ms", 150, ours="batches back to back"),
    Target("latency", "from commits/N to the sink, every 500 ms, ms", 150, ours="a batch every 500 milliseconds"),
)
NO_TARGET = ("parquet", FILE_SINK)


def contests(ours: Ours, spark: SparkRivals, flink: Flink | None, work: Workloads, sizes: Sizes) -> Iterator[Contest]:
    """Every contest of a run, the shortest last: they are what a lack of time costs first."""
    table, flights = work.table, work.flights
    rate, seconds, milliseconds = Unit.ROWS_PER_S, Unit.SECONDS, Unit.MILLISECONDS
    yield Contest("staging", "Staging the table", seconds, (ours.staging(table), spark.write_parquet(table)))
    for target, pair in {"null": (ours.null, spark.null), "csv": (ours.csv, spark.csv)}.items():
        title = f"The table to {'nowhere' if target == 'null' else 'CSV files'}"
        rivals = flink_rivals(flink, target, sizes)
        yield Contest(target, title, rate, (*(make(table) for make in pair), *rivals))
    batches = (ours.batch_time(work.small), spark.batch_time(work.small))
    yield Contest("small", "Micro-batches of 1,000 rows", milliseconds, batches)
    yield Contest(
        "latency", "From commits/N to the sink, batches of 1,000 rows", milliseconds, ours.latency(work.small)
    )
    yield Contest("sql", "The table to SQLite", rate, (ours.sql(work.sql), spark.sql(work.sql)))
    files = (ours.parquet(table), spark.file_sink(table), spark.foreach_parquet(table))
    yield Contest("parquet", "The table to Parquet files", rate, files)
    staging = (ours.staging(flights), spark.write_parquet(flights))
    yield Contest("staging-flights", "Staging the flights", seconds, staging)
    yield Contest("null-flights", "The flights to nowhere", rate, (ours.null(flights), spark.null(flights)))
    yield Contest("csv-flights", "The flights to CSV files", rate, (ours.csv(flights), spark.csv(flights)))


def flink_rivals(flink: Flink | None, target: str, sizes: Sizes) -> Iterator[Contestant]:
    """Flink's three ways to a target. Nothing where Flink is not there."""
    if flink is not None:
        yield flink.contestant(FLINK_FILE, target=target, log="file", rows=sizes.logged_rows)
        yield flink.contestant(FLINK_MEMORY, target=target, log="memory", rows=sizes.table_rows)
        yield flink.contestant(FLINK_NONE, target=target, log="none", rows=sizes.table_rows)

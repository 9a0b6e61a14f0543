"""The contests, their contestants, and the targets to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.backends import Backends
from benchmarks.backends.kafka import TRANSACTIONS
from benchmarks.backends.sql import COPY_ROWS, COPY_TEXT
from benchmarks.flink import Flink
from benchmarks.lakes import LAKES, READ, SMALL, WRITTEN, LakeContests
from benchmarks.measure import NAME, Contest, Contestant, Unit
from benchmarks.object_stores.contestants import (
    GROUPED,
    LOCAL,
    REQUESTS,
    S3,
    SLOW_S3,
    TABLE,
    ObjectContests,
    queries,
)
from benchmarks.ours import Ours
from benchmarks.sizes import Sizes
from benchmarks.spark_rivals import FOREACH_ARROW, FOREACH_PARQUET, MOVED, WRITE_PARQUET, SparkRivals
from benchmarks.workloads import GROUPS, Workloads
from tests.support.servers.jars import java

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
    floor: str | None = None
    """A contestant that does less work than ours on the same Spark. No log on Spark can be faster than it."""

    def holds(self, found: float, unit: Unit) -> bool:
        return found >= self.bound if unit.more_is_better else found <= self.bound


TARGETS = (
    Target("staging", "staging against Spark's df.write.parquet, its time", 0.8, WRITE_PARQUET, floor=MOVED),
    Target("staging-flights", "the same, flights", 0.8, WRITE_PARQUET, floor=MOVED),
    Target("null", "whole path, null sink, against foreachBatch", 0.6, FOREACH_ARROW),
    Target("null-flights", "the same, flights", 0.6, FOREACH_ARROW),
    Target("csv", "whole path, CSV written with Arrow on executors", 0.8, FOREACH_ARROW),
    Target("csv-flights", "the same, flights", 0.8, FOREACH_ARROW),
    Target("sql", "whole path, SQLite", 0.9, FOREACH_ARROW),
    Target("postgresql-path", "whole path, PostgreSQL by COPY", 0.9, FOREACH_ARROW),
    Target("null", "against Flink's WAL sink, its log on files, null", 10, FLINK_FILE, floor=FOREACH_ARROW),
    Target("csv", "against Flink's WAL sink, its log on files, CSV", 10, FLINK_FILE, floor=FOREACH_ARROW),
    Target("null", "against Flink's WAL sink, its log in memory, null", 2, FLINK_MEMORY, floor=FOREACH_ARROW),
    Target("csv", "against Flink's WAL sink, its log in memory, CSV", 1.3, FLINK_MEMORY, floor=FOREACH_ARROW),
    Target("small", "micro-batches of 1,000 rows, batch time against foreachBatch", 1.2, FOREACH_PARQUET),
    Target("latency", "from commits/N to the sink, back to back, ms", 150, ours="batches back to back"),
    Target("latency", "from commits/N to the sink, every 500 ms, ms", 150, ours="a batch every 500 milliseconds"),
    Target("postgresql", "PostgreSQL, against its client's COPY of text made in one loop", 0.9, COPY_TEXT),
    Target("postgresql", "PostgreSQL, against its client's COPY row by row", 0.9, COPY_ROWS),
    Target("kafka", "Kafka, against its client's transactions", 0.9, TRANSACTIONS),
)
OBJECT_TARGETS = (
    Target(TABLE, "log on S3, 40 ms an answer, null sink, against foreachBatch", 0.65, FOREACH_ARROW, SLOW_S3),
    Target(TABLE, "the same, against the log on an S3 that answers at once", 0.87, S3, SLOW_S3),
    Target(GROUPED, "grouped query, log on S3, 40 ms, its time against foreachBatch", 1.15, FOREACH_ARROW, SLOW_S3),
    Target(GROUPED, "the same, log on local files", 1.15, FOREACH_ARROW, LOCAL),
)
"""The targets of `make bench ARGS=--object-stores`."""
LAKE_TARGETS = tuple(
    Target(lake.key + end, f"{lake.title}, {size} a batch, processor time against {lake.rival}", 1.25, lake.rival)
    for lake in LAKES
    for end, size in (("", "many rows"), (SMALL, "few rows"))
)
"""The targets of `make bench ARGS=--lakes`."""
KEYS = (
    "staging",
    "null",
    "csv",
    "small",
    "small-rows",
    "latency",
    "sql",
    "postgresql-path",
    "parquet",
    "staging-flights",
    "null-flights",
    "csv-flights",
    "postgresql",
    "kafka",
    "sqlite",
    "mariadb",
    "redis",
    "http",
    "dynamodb",
    "files",
    "files-two-phase",
)
OBJECT_KEYS = (TABLE, TABLE + REQUESTS, GROUPED, GROUPED + REQUESTS)
"""The contests of `make bench ARGS=--object-stores`. A contest of requests stands behind the one that it is about."""
LAKE_KEYS = tuple(lake.key + size + what for lake in LAKES for size in ("", SMALL) for what in ("", WRITTEN, READ))
"""The contests of `make bench ARGS=--lakes`."""
_OTHER_UNITS = {
    **{key: Unit.MEGABYTES if key.endswith((WRITTEN, READ)) else Unit.PROCESSOR_S for key in LAKE_KEYS},
    GROUPED: Unit.SECONDS,
    TABLE + REQUESTS: Unit.REQUESTS,
    GROUPED + REQUESTS: Unit.REQUESTS,
    "staging": Unit.SECONDS,
    "staging-flights": Unit.SECONDS,
    "small": Unit.MILLISECONDS,
    "small-rows": Unit.MILLISECONDS,
    "latency": Unit.MILLISECONDS,
}
UNITS = {key: _OTHER_UNITS.get(key, Unit.ROWS_PER_S) for key in (*KEYS, *OBJECT_KEYS, *LAKE_KEYS)}
"""The unit of each contest."""
WITHOUT_TARGET = frozenset(KEYS).difference(target.contest for target in TARGETS)
FEWER_ROUNDS = WITHOUT_TARGET | {GROUPED, GROUPED + REQUESTS}
"""The contests that have three rounds instead of five."""
NO_JAVA = "Spark needs a Java 17 or newer on the PATH"


@dataclass(frozen=True, slots=True)
class Sides:
    """All sides that take part."""

    ours: Ours
    spark: SparkRivals
    flink: Flink | None
    backends: Backends
    objects: ObjectContests
    lakes: LakeContests


def contests(sides: Sides, work: Workloads, sizes: Sizes) -> Iterator[Contest]:
    """Every contest. The shortest ones on Spark come late, since a lack of time drops the last contests first."""
    yield from _on_spark(sides, work, sizes)
    for query in queries(work.objects, work.grouped, GROUPS):
        for contest in sides.objects.contests(query):
            yield replace(contest, missing=_java_is_missing)
    for contest in sides.lakes.contests(work.small, work.objects):
        yield replace(contest, missing=_java_is_missing)
    for backend in sides.backends:
        contestants = backend.contestants(sizes.backend_rows)
        yield Contest(backend.key, backend.title, UNITS[backend.key], tuple(contestants), backend.missing)


def _on_spark(sides: Sides, work: Workloads, sizes: Sizes) -> Iterator[Contest]:
    ours, spark, flink = sides.ours, sides.spark, sides.flink
    sqlite, postgresql = sides.backends.sqlite, sides.backends.postgresql
    table, flights = work.table, work.flights
    yield _contest("staging", "Staging the table", ours.staging(table), spark.write_parquet(table), spark.moved(table))
    to_null, to_csv = flink_rivals(flink, "null", sizes), flink_rivals(flink, "csv", sizes)
    yield _contest("null", "The table to nowhere", ours.null(table), spark.null(table), *to_null)
    yield _contest("csv", "The table to CSV files", ours.csv(table), spark.csv(table), *to_csv)
    small = f"Micro-batches of {sizes.small_rows:,} rows"
    yield _contest("small", small, ours.batch_time(work.small), spark.batch_time(work.small))
    rows = (*ours.row_writer(work.small), spark.foreach(work.small))
    yield _contest("small-rows", f"{small} to a row writer: time from plan to end, a batch", *rows)
    yield _contest(
        "latency", f"From commits/N to the sink, {sizes.small_rows:,} rows a batch", *ours.latency(work.small)
    )
    yield _contest("sql", "The table to SQLite", ours.sql(work.sql, sqlite), spark.sql(work.sql, sqlite))
    both = (ours.sql(work.sql, postgresql), spark.sql(work.sql, postgresql))
    yield _contest("postgresql-path", "The table to PostgreSQL", *both, missing=postgresql.missing)
    files = (ours.parquet(table), spark.file_sink(table), spark.foreach_parquet(table))
    yield _contest("parquet", "The table to Parquet files", *files)
    staged = (ours.staging(flights), spark.write_parquet(flights), spark.moved(flights))
    yield _contest("staging-flights", "Staging the flights", *staged)
    yield _contest("null-flights", "The flights to nowhere", ours.null(flights), spark.null(flights))
    yield _contest("csv-flights", "The flights to CSV files", ours.csv(flights), spark.csv(flights))


def _java_is_missing() -> str:
    return "" if java() else NO_JAVA


def _contest(key: str, title: str, *contestants: Contestant, missing: Callable[[], str] = lambda: "") -> Contest:
    return Contest(key, title, UNITS[key], contestants, lambda: _java_is_missing() or missing())


def flink_rivals(flink: Flink | None, target: str, sizes: Sizes) -> Iterator[Contestant]:
    """Flink's three ways to a target; none if Flink is missing."""
    if flink is not None:
        yield flink.contestant(FLINK_FILE, target=target, log="file", rows=sizes.logged_rows)
        yield flink.contestant(FLINK_MEMORY, target=target, log="memory", rows=sizes.table_rows)
        yield flink.contestant(FLINK_NONE, target=target, log="none", rows=sizes.table_rows)

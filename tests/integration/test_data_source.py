"""`format("wal_sink")`: staging without `foreachBatch`, and reading the released batches."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.house.log import Log, TermRecord, paths
from tests.house.operate import WalFacts, read_batches
from tests.house.spark import REPEAT_CHECKS
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM, ProcessIdentity
from tests.support.streams import Home, restore
from wal_sink import Delivery

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def stage(spark: SparkSession, home: Home, df: DataFrame | None = None, **options: str | None) -> None:
    """Run the query to the end of its input. An option that is None is not passed."""
    given = {"wal": str(home.wal), "checkpointLocation": str(home.checkpoint), **options}
    stream = home.feed.stream(spark) if df is None else df
    query = stream.writeStream.format("wal_sink").trigger(availableNow=True)
    for name, value in given.items():
        query = query if value is None else query.option(name, value)
    query.start().awaitTermination(120)


def error_of(spark: SparkSession, home: Home, df: DataFrame | None = None, **options: str | None) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark wraps our error
        stage(spark, home, df, **options)
    return str(raised.value)


def drain(home: Home) -> None:
    with home.sink(Delivery(home.lines, start_from="earliest")) as sink:
        sink.drain()


def staged_rows(home: Home) -> list[int]:
    return [batch.rows for batch in read_batches(WalFacts(open_store(StoreSpec(str(home.wal)))))]


def test_a_query_without_foreachbatch_is_staged_and_drained(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10), range(10, 25))
    stage(spark, home)
    assert staged_rows(home) == [10, 15]
    assert not home.lines.sent(), "staging delivers nothing"
    drain(home)
    assert home.lines.ids() == list(range(25))
    home.feed.add(range(25, 30))
    stage(spark, home)
    drain(home)
    assert home.lines.ids() == list(range(30))
    assert [sent.batch for sent in home.lines.sent()] == [0, 1, 2]


def test_the_released_batches_are_read_with_batch_key_and_row(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10), range(10, 25))
    stage(spark, home, chunkRows="4")
    drain(home)
    rows = spark.read.format("wal_sink").load(str(home.wal)).orderBy("id").collect()
    assert [row.id for row in rows] == list(range(25))
    assert [row._wal_batch_id for row in rows] == [0] * 10 + [1] * 15
    assert len({row._wal_key for row in rows}) == 25
    assert all(row._wal_key.endswith(f"-{row._wal_row}") for row in rows)
    only = spark.read.format("wal_sink").option("fromBatch", 1).load(str(home.wal))
    assert only.count() == 15


def test_sql_reads_a_wal(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10))
    stage(spark, home)
    drain(home)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW staged USING wal_sink OPTIONS (path '{home.wal}')")
    assert spark.sql("SELECT sum(id), max(_wal_batch_id) FROM staged").collect()[0][:] == (45, 0)


def test_a_batch_that_is_not_released_is_not_read(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10))
    stage(spark, home)
    with pytest.raises(Exception, match="holds no released batch"):
        spark.read.format("wal_sink").load(str(home.wal))
    drain(home)
    home.feed.add(range(10, 20))
    stage(spark, home)
    assert spark.read.format("wal_sink").load(str(home.wal)).count() == 10


def test_workers_that_plan_the_batches_of_one_driver_have_one_parent(spark: SparkSession, tmp_path: Path) -> None:
    """By that a worker knows that its own driver plans a batch again elsewhere: see `ProcessIdentity.is_sibling_of`.

    Whether two workers plan at once is Spark's choice, so several queries start at once, again if one worker planned
    all.
    """
    planned: list[ProcessIdentity] = []
    for attempt in range(25):
        planned += _planners(spark, tmp_path / str(attempt))
        if len({each.pid for each in planned}) > 1:
            break
    assert len({each.pid for each in planned}) > 1, "no two workers planned at once"
    assert all(each.is_sibling_of(planned[0]) for each in planned)


def _planners(spark: SparkSession, folder: Path) -> list[ProcessIdentity]:
    """The workers that planned the batches of queries that start at once."""
    homes = [Home(folder / str(number)) for number in range(4)]
    together = threading.Barrier(len(homes))
    for home in homes:
        home.root.mkdir(parents=True)
        home.feed.add(*(range(number * 3, number * 3 + 3) for number in range(3)))

    def start(home: Home) -> StreamingQuery:
        spark.createDataFrame([(1,)], "one int")  # makes the session that of this thread: Spark looks for sources in it
        writer = home.feed.stream(spark).writeStream.format("wal_sink").trigger(availableNow=True)
        writer = writer.options(wal=str(home.wal), checkpointLocation=str(home.checkpoint))
        together.wait(120)
        return writer.start()

    with ThreadPoolExecutor(len(homes)) as pool:
        queries = list(pool.map(start, homes))
    for query in queries:
        assert query.awaitTermination(120)
    logs = [Log(open_store(StoreSpec(str(home.wal))), SYSTEM, "") for home in homes]
    return [log.require(TermRecord, paths.term(paths.STAGER_ROLE, 1)).holder for log in logs]


def test_spark_finds_the_source_only_in_a_thread_with_a_session(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(3))
    with ThreadPoolExecutor(1) as pool:
        assert "DATA_SOURCE_NOT_FOUND" in pool.submit(error_of, spark, home).result()
    stage(spark, home)
    drain(home)
    assert home.lines.ids() == [0, 1, 2]


def test_spark_compares_repeated_shuffles_by_default(spark: SparkSession) -> None:
    assert [spark.conf.get(key) for key in REPEAT_CHECKS] == ["true", "true"]


TYPES = {
    "ints": "array(id, null)",
    "named": "map(string(id), named_struct('a', id, 'b', null))",
    "inner": "named_struct('x', id, 'y', array(named_struct('z', string(id))))",
    "price": "cast(id AS decimal(20, 3))",
    "day": "date_add(date'2026-01-01', int(id))",
    "at": "timestamp'2026-01-01 10:00:00.123456'",
    "wall": "timestamp_ntz'2026-01-01 10:00:00.123456'",
    "raw": "cast(string(id) AS binary)",
    "flag": "id % 2 = 0",
    "pause": "make_dt_interval(int(id))",
    "ratio": "id / 7.0D",
    "small": "cast(id AS tinyint)",
}


def test_rows_of_every_type_are_read_as_they_were_staged(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(5))
    columns = ["id", *(f"{sql} AS {name}" for name, sql in TYPES.items())]
    stage(spark, home, home.feed.stream(spark).selectExpr(*columns))
    with home.sink(Delivery(lambda chunk: None, start_from="earliest")) as sink:  # noqa: ARG005
        sink.drain()
    found = spark.read.format("wal_sink").load(str(home.wal)).select("id", *TYPES).orderBy("id")
    expected = spark.range(5).selectExpr(*columns).orderBy("id")
    assert found.collect() == expected.collect()
    assert found.columns == expected.columns


def test_batches_with_other_columns_are_read_apart(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(3))
    stage(spark, home)
    home.feed.add(range(3, 5))
    stage(spark, home, home.feed.stream(spark).selectExpr("id", "string(id) AS name"))
    with home.sink(Delivery(lambda chunk: None, start_from="earliest")) as sink:  # noqa: ARG005
        sink.drain()
    with pytest.raises(Exception, match=r"batch 0 of .* has other columns than the newest batch"):
        spark.read.format("wal_sink").load(str(home.wal)).count()
    assert spark.read.format("wal_sink").option("toBatch", 0).load(str(home.wal)).count() == 3
    assert spark.read.format("wal_sink").option("fromBatch", 1).load(str(home.wal)).columns[:2] == ["id", "name"]


def test_a_replay_of_a_released_batch_is_not_staged_again(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10), range(10, 20))
    stage(spark, home)
    drain(home)
    for name in ("commits/1", "commits/.1.crc"):
        (home.checkpoint / name).unlink()
    stage(spark, home)
    drain(home)
    assert home.lines.ids() == list(range(20))
    assert [batch.attempts for batch in read_batches(WalFacts(open_store(StoreSpec(str(home.wal)))))] == [1, 1]


def test_other_input_under_the_same_batch_id_is_refused(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(10))
    stage(spark, home)
    saved = home.checkpoint.with_name("saved")
    shutil.copytree(home.checkpoint, saved)
    home.feed.add(range(10, 20))
    stage(spark, home)
    drain(home)
    restore(saved, home.checkpoint)
    (home.feed.folder / "000001.json").unlink()
    home.feed.add(range(50, 60), name="other")
    assert "under the same id" in error_of(spark, home)
    drain(home)
    assert home.lines.ids() == list(range(20))


def test_a_shuffle_that_spark_does_not_check_is_refused(spark: SparkSession, home: Home) -> None:
    home.feed.add(range(3))
    key = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    spark.conf.set(key, "false")
    try:
        found = error_of(spark, home)
    finally:
        spark.conf.unset(key)
    assert key in found
    assert staged_rows(home) == []


def fenced(spark: SparkSession, tmp_path: Path) -> tuple[Home, str]:
    """Let one worker plan two batches, between which another run claims the term; return its WAL and its error.

    Spark takes idle workers in turn, and earlier tests leave several. So other queries take a turn in between, one more
    with each attempt, until the worker that planned the first batch also plans the second one.
    """
    for others in range(8):
        home = Home(tmp_path / str(others))
        home.feed.add(range(3))
        stage(spark, home)
        sink = home.sink(None)
        sink._open().run.become_stager()
        sink.close()
        for number in range(others):
            other = Home(tmp_path / f"{others}-{number}")
            other.feed.add([number])
            stage(spark, other)
        home.feed.add(range(3, 6))
        try:
            stage(spark, home)
        except StreamingQueryException as error:
            return home, str(error)
    raise AssertionError("no worker planned both batches")


def test_a_newer_run_that_staged_stops_an_older_one(spark: SparkSession, tmp_path: Path) -> None:
    """A worker of Spark keeps its run of the WAL; a term that another run claimed since ends it."""
    home, found = fenced(spark, tmp_path)
    assert "FencedError" in found
    stage(spark, home)  # a query that is started again stages under the next term
    drain(home)
    assert home.lines.ids() == list(range(6))

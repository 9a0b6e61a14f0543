"""Whose session a wrapped writer runs in: a clone that belongs to one query and one sink, as with Spark alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.support.streams import Home
from wal_sink import ConfigError, wrap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

BATCHES = 4


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def tenant(spark: SparkSession) -> Iterator[SparkSession]:
    """Another session than the first of the process, with its own database."""
    other = spark.newSession()
    other.sql("CREATE DATABASE tenant")
    other.sql("USE tenant")
    other.sql("CREATE TABLE arrived (id long) USING parquet")
    yield other
    spark.sql("DROP DATABASE tenant CASCADE")


def through_a_view(factor: int, seen: list[int]) -> Callable[[DataFrame, int], None]:
    """A function in the usual way, with a view of the batch. It leaves the session as it does not belong to it."""

    def write(df: DataFrame, _: int) -> None:
        session = df.sparkSession
        df.selectExpr(f"id * {factor} AS id").createOrReplaceTempView("updates")
        session.sql("USE default")
        time.sleep(0.2)  # so that the other sink is in the middle too
        seen.extend(row.id for row in session.sql("SELECT id FROM updates").collect())

    return write


def test_two_queries_and_two_sinks_share_no_view_and_leave_the_main_program_its_session(
    tenant: SparkSession, tmp_path: Path
) -> None:
    seen: dict[int, list[int]] = {factor: [] for factor in (1, 100, 10_000, 1_000_000)}

    def run(name: str, *factors: int) -> None:
        place = Home(tmp_path / name)
        place.feed.add(*([number] for number in range(1, BATCHES + 1)))
        place.run(tenant, {f"s{each}": wrap.foreach_batch(through_a_view(each, seen[each])) for each in factors})

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, "a", 1, 100), pool.submit(run, "b", 10_000, 1_000_000)]:
            done.result()
    assert seen == {factor: [factor * number for number in range(1, BATCHES + 1)] for factor in seen}
    assert tenant.catalog.currentDatabase() == "tenant"
    assert not tenant.catalog.tableExists("updates")


@pytest.mark.parametrize("how", ["start", "stage"])
def test_a_query_of_another_session_writes_into_the_database_of_that_one_leftovers_too(
    tenant: SparkSession, place: Home, how: str
) -> None:
    def write(df: DataFrame, _: int) -> None:
        active = SparkSession.getActiveSession()
        assert active is not None
        assert active.range(3).count() == 3
        df.write.insertInto("arrived")

    def run(to: object, ids: range) -> None:
        place.feed.add(ids)
        with place.sink(to) as sink:
            if how == "start":
                sink.run(place.writer(tenant))
            else:
                own = place.writer(tenant).foreachBatch(sink.stage)
                own.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination(120)

    with place.sink(wrap.foreach_batch(write)):
        pass  # from now on the sink gets every batch
    run(None, range(2))
    assert tenant.table("arrived").count() == 0
    run(wrap.foreach_batch(write), range(2, 5))
    tenant.catalog.refreshTable("arrived")  # the session remembers its files
    assert sorted(row.id for row in tenant.table("arrived").collect()) == list(range(5))


def test_a_setting_is_that_of_the_start_and_a_query_of_another_session_is_refused(
    spark: SparkSession, tenant: SparkSession, place: Home
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def write(df: DataFrame, _: int) -> None:
        seen.append((df.sparkSession.conf.get("my.own"), df.sparkSession.conf.get("spark.sql.session.timeZone")))

    spark.conf.set("my.own", "at the start")
    place.feed.add(range(2))
    try:
        with place.sink(wrap.foreach_batch(write)) as sink:
            query = sink.start(place.feed.stream(spark).writeStream)
            query.processAllAvailable()
            spark.conf.set("my.own", "later")
            place.feed.add(range(2, 4))
            query.processAllAvailable()
            query.stop()
            with pytest.raises(ConfigError, match=r"belongs to another SparkSession .* \['default'\]"):
                sink.start(place.writer(tenant))
    finally:
        spark.conf.unset("my.own")
    assert seen == [("at the start", "UTC")] * 2

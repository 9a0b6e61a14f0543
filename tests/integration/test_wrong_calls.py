"""Likely mistakes of users about a query are answered within seconds, in clear words. Each test needs Spark."""

from __future__ import annotations

import contextlib
import logging
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import udf

from tests.support.streams import Home
from tests.support.waiting import wait_until
from wal_sink import ConfigError, WalSink, wrap
from wal_sink_backends import SqlSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.feed.add(range(3))
    return made


WRONG: dict[str, tuple[Callable[[SparkSession, Home], object], str]] = {
    "df": (lambda spark, place: place.feed.stream(spark), r"write sink\.run\(df\.writeStream\)"),
    "batch df": (lambda spark, _: spark.range(3), r"a batch DataFrame.*spark\.readStream"),
    "df.write": (lambda spark, _: spark.range(3).write, r"DataFrameWriter.*df\.writeStream"),
    "session": (lambda spark, _: spark, r"SparkSession cannot be run.*df\.writeStream"),
    "None": (lambda *_: None, r"NoneType cannot be run"),
    "path": (lambda _, place: str(place.wal), r"str cannot be run"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_writer_of_a_stream_is_refused(spark: SparkSession, place: Home, what: str) -> None:
    make, said = WRONG[what]
    given: Any = make(spark, place)
    began_s = time.monotonic()

    with pytest.raises(ConfigError, match=f"(?s){said}") as told, place.sink() as sink:
        sink.run(given)

    assert time.monotonic() - began_s < 60, "a slow machine may start Spark's first workers meanwhile"
    assert "Nothing was started" in str(told.value)
    assert not place.checkpoint.exists()


def test_a_query_that_was_started_already_is_refused(spark: SparkSession, place: Home, tmp_path: Path) -> None:
    query = (
        place.feed.stream(spark).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    given: Any = query
    try:
        with pytest.raises(ConfigError, match=r"(?s)StreamingQuery.*started already"):
            place.sink().run(given)
    finally:
        query.stop()


def test_a_column_that_the_table_lacks_is_refused_before_the_first_batch(spark: SparkSession, place: Home) -> None:
    database = place.root / "rows.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE numbers (word text)")
    with (
        pytest.raises(ConfigError, match=r"has no column 'id'.*Nothing was started"),
        place.sink(SqlSink(f"sqlite:///{database}", "numbers")) as sink,
    ):
        sink.run(place.feed.stream(spark).writeStream.trigger(availableNow=True))
    assert not place.checkpoint.exists()


def counts(spark: SparkSession, place: Home) -> DataFrame:
    return place.feed.stream(spark).groupBy("id").count()


@pytest.mark.parametrize(
    ("to", "warned"),
    [
        ("lines", True),
        ("foreach_batch", False),
        ("overwrite", False),
        ("upsert", False),
        ("update mode", False),
    ],
)
def test_complete_mode_into_a_sink_that_adds_rows_is_a_warning(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture, to: str, *, warned: bool
) -> None:
    sinks: dict[str, object] = {
        "foreach_batch": wrap.foreach_batch(lambda df, _: df.collect()),
        "overwrite": wrap.spark_writer("parquet", {"path": str(place.root / "out")}, mode="overwrite"),
        "upsert": SqlSink(f"sqlite:///{place.root}/a.db", "counts", mode="upsert", key="id"),
    }
    mode = "update" if to == "update mode" else "complete"
    caplog.set_level(logging.WARNING)

    with WalSink(sinks.get(to, place.lines), wal=str(place.wal), checkpoint=str(place.checkpoint)) as sink:
        sink.run(counts(spark, place).writeStream.outputMode(mode).trigger(availableNow=True))

    told = [each.getMessage() for each in caplog.records if "output mode is complete" in each.getMessage()]
    assert bool(told) is warned
    if warned:
        assert re.search(r"each batch holds the whole result.*'default' \(Lines\)", told[0])


def slow_rows(spark: SparkSession, place: Home) -> DataFrame:
    """The stream of the feed, a second a row."""
    slowly = udf(lambda number: number if time.sleep(1) is None else None, "long")  # type: ignore[func-returns-value]
    return place.feed.stream(spark).select(slowly("id").alias("id"))


def test_a_stop_amid_staging_is_no_failure_and_told_shortly(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    place.feed.add(range(120))
    began: list[float] = []

    def wait_and_stop(query: StreamingQuery) -> None:
        wait_until(lambda: place.checkpoint.joinpath("offsets/1").exists(), "batch 1")
        time.sleep(1)  # its rows are on their way
        began.append(time.monotonic())
        query.stop()

    with place.sink() as sink:
        query = sink.start(slow_rows(spark, place).writeStream.trigger(availableNow=True))
        stopper = threading.Thread(target=wait_and_stop, args=[query])
        stopper.start()
        query.awaitTermination()
        stopper.join(60)

    assert time.monotonic() - began[0] < 60, "it waited for the batch, which takes two minutes"
    assert query.exception() is None
    assert place.lines.ids() == [0, 1, 2]
    assert "StackOverflowError" not in (told := capfd.readouterr().err)
    assert len(told.splitlines()) < 10, told
    for record in caplog.records:
        assert len(str(record.exc_info[1] if record.exc_info else record.getMessage()).splitlines()) < 10


def test_a_job_that_is_cancelled_without_a_stop_is_a_failure(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(60))

    def use(sink: WalSink) -> None:
        query = sink.start(slow_rows(spark, place).writeStream.trigger(availableNow=True))
        wait_until(lambda: place.checkpoint.joinpath("offsets/1").exists(), "batch 1")
        time.sleep(1)  # its rows are on their way. A slow machine has no job yet: it is cancelled again

        def cancelled() -> bool:
            spark.sparkContext.cancelJobGroup(query.runId)
            return not query.isActive

        wait_until(cancelled, "its job was cancelled")
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="job cancelled"), place.sink() as sink:
        use(sink)


def test_a_checkpoint_whose_connector_spark_lacks_is_refused_with_its_scheme_and_the_next_step(
    spark: SparkSession, place: Home
) -> None:
    said = (
        r"(?s)checkpointLocation memory://lake/cp: .*No FileSystem for scheme .memory.*add the connector of its scheme"
    )
    with (
        pytest.raises(ConfigError, match=said),
        WalSink(print, wal=str(place.wal), checkpoint="memory://lake/cp") as sink,
    ):
        sink.run(place.feed.stream(spark).writeStream.trigger(availableNow=True))

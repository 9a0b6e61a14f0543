"""What a real Spark is taken to do without promising it, and what shows if it did not: see docs/ASSUMPTIONS.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

from tests.house.spark import setting_of, staging, version_of
from tests.support.lasting import Lasting
from tests.support.streams import SESSION, Home
from tests.support.waiting import wait_until
from wal_sink import ConfigError
from wal_sink.spark.cluster import check_kept_batches
from wal_sink.spark.environment import SPARK_3_5
from wal_sink.spark.private import Setting, changed, described, private, thread_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_spark_has_every_private_name_that_is_asked_for(spark: SparkSession) -> None:
    """With what follows behind it: `SparkContext.sc()`, `SessionState.newHadoopConf()`, `JVMView.java`."""
    assert private(spark, "_instantiatedSession") is spark
    context = spark.sparkContext
    assert private(context, "_jsc").sc().applicationId() == context.applicationId
    assert private(context, "_jvm").java.lang.Math.max(1, 2) == 2
    assert private(spark, "_jsparkSession").sessionState().newHadoopConf().get("fs.defaultFS") == "file:///"


def test_spark_tells_how_many_batches_it_keeps(spark: SparkSession) -> None:
    check_kept_batches(spark, 100)
    with pytest.raises(ConfigError, match="is 100, but retention_batches=99"):
        check_kept_batches(spark, 99)


def test_a_setting_that_nobody_changed_has_sparks_default(spark: SparkSession) -> None:
    """And it is unset again after a change, so that it follows the default again."""
    key = "spark.sql.streaming.minBatchesToRetain"
    assert setting_of(spark, key) == Setting("100")
    with changed(spark, key, "7"):
        assert setting_of(spark, key).value == "7"
    assert setting_of(spark, key).value == "100"
    assert setting_of(spark, "spark.sql.streaming.checkpointLocation") == Setting(None)
    assert str(setting_of(spark, "spark.sql.streaming.nothing")) == "not known"


@pytest.mark.parametrize("key", ["spark.sql.streaming.batchesToRetainSomehow"])
def test_a_setting_that_spark_does_not_know_is_not_guessed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("wal_sink.spark.cluster._KEPT_BATCHES", key)
    with pytest.raises(
        ConfigError, match=rf"the number of batches that Spark keeps \({re.escape(key)}\) cannot be read"
    ):
        check_kept_batches(spark, 1000)


@pytest.mark.parametrize(("key", "found"), [("spark.jobGroup.id", 1), ("spark.job.group", 0)])
def test_jobs_are_in_the_group_whose_name_the_thread_bears(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str, found: int
) -> None:
    """Under another key the job is in no group, and cancelling the group would cancel nothing."""
    monkeypatch.setattr("wal_sink.spark.private._GROUP", key)
    group = f"wal-sink test {key}"
    with described(spark.sparkContext, "counting", group=group):
        spark.range(3).count()
    with thread_properties(spark.sparkContext, {"spark.jobGroup.id": f"{group} later"}):
        spark.range(3).count()
    jobs_of = spark.sparkContext.statusTracker().getJobIdsForGroup
    wait_until(lambda: bool(jobs_of(f"{group} later")), "the tracker, which Spark tells later, knows both jobs")
    assert len(jobs_of(group)) >= found
    assert found or not jobs_of(group)


@pytest.mark.parametrize(("key", "found"), [("streaming.sql.batchId", "7"), ("streaming.sql.batch", None)])
def test_tasks_find_the_batch_id_under_sparks_own_key(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str, found: str | None
) -> None:
    from wal_sink.spark import data_source_writer  # noqa: PLC0415 - not in PySpark 3.5

    monkeypatch.setattr(data_source_writer, "_BATCH_ID_KEY", key)
    with thread_properties(spark.sparkContext, {data_source_writer._BATCH_ID_KEY: "7"}):
        assert spark.sparkContext.parallelize([0], 1).map(batch_id_there).collect() == [found]


def batch_id_there(_: int) -> str | None:
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty("streaming.sql.batchId")


def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (pa.table({"bytes": [batch.nbytes], "count": [batch.num_rows]}).to_batches()[0] for batch in batches)


@pytest.mark.parametrize(("key", "limited"), [(staging._BATCH_BYTES_KEY, True), ("spark.sql.no.such.limit", False)])
def test_arrow_batches_are_limited_by_bytes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: str, *, limited: bool
) -> None:
    if version_of(spark.version) == SPARK_3_5:
        limited = False
    monkeypatch.setattr(staging, "_BATCH_BYTES_KEY", key)
    wide = spark.range(0, 64, 1, 1).selectExpr("repeat('x', 1048576) AS text")
    with staging._small_batches(spark):
        most = max(row["bytes"] for row in wide.mapInArrow(sizes, "bytes long, count long").collect())
    assert (most <= staging.ARROW_BATCH_BYTES + (2 << 20)) == limited


def test_arrow_batches_of_small_rows_are_limited_by_rows(spark: SparkSession) -> None:
    most = 10_000 if version_of(spark.version) == SPARK_3_5 else staging.SMALL_ROWS
    with staging._small_batches(spark, row_bytes=8):
        found = spark.range(0, 2 * most, 1, 1).mapInArrow(sizes, "bytes long, count long").collect()
    assert [row["count"] for row in found] == [most, most]


def test_offsets_are_written_before_a_batch_and_its_commit_after_it(spark: SparkSession, place: Home) -> None:
    """The gate and the fingerprint rely on this order. Asynchronous progress tracking breaks it, and is refused."""
    place.feed.add(range(5), range(5, 10))
    seen: list[tuple[bool, bool, list[int]]] = []

    def on_batch(df: DataFrame, batch_id: int) -> None:
        there = [(place.checkpoint / kind / str(batch_id)).exists() for kind in ("offsets", "commits")]
        seen.append((there[0], there[1], [row.id for row in df.collect()]))

    writer: Any = place.writer(spark).foreachBatch(on_batch)
    writer.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination()
    assert seen == [(True, False, [0, 1, 2, 3, 4]), (True, False, [5, 6, 7, 8, 9])]
    for batch_id in (0, 1):
        assert (place.checkpoint / "offsets" / str(batch_id)).read_text().startswith("v1\n")
        assert (place.checkpoint / "commits" / str(batch_id)).read_bytes().startswith(b"v")


def test_a_stateful_batch_that_is_not_evaluated_ends_its_query(spark: SparkSession, place: Home) -> None:
    """So a replay is evaluated although nothing of it is staged: or its state would be that of the batch before."""
    place.feed.add(range(5), range(5, 10))
    counts = place.feed.stream(spark).groupBy("id").count().writeStream.outputMode("update")
    writer: Any = counts.trigger(availableNow=True).foreachBatch(lambda *_: None)
    query = writer.option("checkpointLocation", str(place.checkpoint)).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()


REPEATED = (
    SESSION.format(master="local[1,2]")
    + """
from pyspark import TaskContext
from wal_sink.spark.delivery import _is_repeated

def fails_once(_):
    repeated = _is_repeated()
    if not repeated:
        raise OSError("lost")
    return repeated

print("REPEATED", spark.sparkContext.parallelize([0], 1).map(fails_once).collect())
"""
)


def test_a_task_that_spark_runs_again_says_so(other_sparks: Lasting) -> None:
    assert "REPEATED [True]" in other_sparks.run(REPEATED)

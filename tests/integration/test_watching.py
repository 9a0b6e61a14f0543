"""Watching a real query: tasks' requests and chunks come back to the driver, and Spark's own observations stay."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as f

from tests.house.support import Event, Sent, Staged
from tests.support.streams import Home
from wal_sink import Delivery, Metrics, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def samples(metrics: Metrics) -> dict[str, float]:
    """The sums of all samples, by name and operation."""
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        name = f"{sample.name} {sample.labels.get('operation', '')}".rstrip()
        found[name] = found.get(name, 0.0) + sample.value
    return found


def progress_with_rows(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """The progress of batches. Spark also reports a trigger without a batch, if the last one is ten seconds ago."""
    return [progress for progress in query.recentProgress if progress.numInputRows]


@pytest.mark.spark
@pytest.mark.usefixtures("partitions_apart")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_work_of_executors_is_counted_in_the_driver(spark: SparkSession, place: Home, threads: int) -> None:
    place.feed.add(range(40), range(40, 80))
    heard: list[Event] = []
    to = Delivery(place.lines, where="executors", threads_per_task=threads)
    with Metrics() as metrics:
        metrics.serve("127.0.0.1:0")
        sink = place.sink({"a": to}, settings=Settings(chunk_rows=5), metrics=metrics, on_event=heard.append)
        sink.run(place.feed.stream(spark).repartition(4).writeStream.trigger(availableNow=True))
        found = samples(metrics)
    segments = found["wal_sink_staged_segments_total"]
    assert segments == 8
    assert found["wal_sink_store_request_seconds_count segment"] == segments
    assert found["wal_sink_store_request_seconds_count read"] >= segments
    assert found["wal_sink_chunk_seconds_count"] == found["wal_sink_sent_chunks_total"] == 16
    assert found["wal_sink_sent_rows_total"] == found["wal_sink_delivered_rows_total"] == 80
    (first, _) = [event for event in heard if isinstance(event, Staged)]
    assert {each.operation: each.times.count for each in first.requests} == {"segment": 4}
    sent = [event for event in heard if isinstance(event, Sent)]
    reads = sum(each.times.count for event in sent for each in event.requests if each.operation == "read")
    assert reads >= segments
    assert place.lines.ids() == list(range(80))


@pytest.mark.spark
def test_an_observation_of_the_stream_is_in_its_progress(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(3), range(3, 5))
    observed = place.feed.stream(spark).observe("rows", f.count("*").alias("count"))
    with place.sink() as sink:
        query = sink.start(observed.writeStream.trigger(availableNow=True))
        query.awaitTermination(180)
    assert [progress.observedMetrics["rows"]["count"] for progress in progress_with_rows(query)] == [3, 2]


@pytest.mark.spark
def test_an_observation_inside_a_batch_is_not(spark: SparkSession, place: Home) -> None:
    """So wal-sink cannot put numbers of staging into Spark's progress: docs/operations/metrics.md says so."""
    place.feed.add(range(3))

    def each(frame: DataFrame, _: int) -> None:
        frame.observe("inside", f.count("*").alias("count")).collect()

    writer = place.feed.stream(spark).writeStream.option("checkpointLocation", str(place.checkpoint))
    query = writer.trigger(availableNow=True).foreachBatch(each).start()
    query.awaitTermination(180)
    assert [progress.numInputRows for progress in progress_with_rows(query)] == [3]
    assert [progress.observedMetrics for progress in progress_with_rows(query)] == [{}]


# --- the benchmark

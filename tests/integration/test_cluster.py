"""When a WAL is opened, the cluster must see it, and delivery may take only its part of the slots."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.house.spark import task_slots
from tests.support.lasting import Lasting
from tests.support.streams import SESSION, Home, Lines, append_line
from tests.support.waiting import wait_until
from wal_sink import Chunk, ConfigError, Delivery, Settings, WalSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SLOTS = (
    SESSION.format(master="local[3]")
    + """
from wal_sink.spark.private import task_slots
print("SLOTS", task_slots(spark.sparkContext), spark.sparkContext.defaultParallelism)
spark.stop()
print("STOPPED", task_slots(spark.sparkContext))
"""
)


def test_the_slots_are_the_clusters_and_no_setting(other_sparks: Lasting) -> None:
    output = other_sparks.run(SLOTS)
    assert "SLOTS 3 2" in output
    assert "STOPPED None" in output


def test_the_slots_of_the_session_of_these_tests(spark: SparkSession) -> None:
    assert task_slots(spark.sparkContext) == 2


@pytest.mark.parametrize("to", [None, Lines(Path("/nowhere"))])
def test_a_wal_in_the_drivers_memory_is_refused_before_anything_is_staged(
    spark: SparkSession, tmp_path: Path, to: Lines | None
) -> None:
    sink = WalSink(to, wal="memory://wal", checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="memory://wal: the driver does not find an object that Spark's exec"), sink:
        pytest.fail("it was opened")
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


@dataclass(frozen=True)
class Timed(Lines):
    """Notes from when to when each call lasted."""

    def write(self, chunk: Chunk) -> None:
        began = time.time_ns()
        time.sleep(0.2)
        append_line(self.path, f"{began} {time.time_ns()} {chunk.num_rows}")


def calls_in(file: Path) -> list[tuple[int, ...]]:
    """When each call began and ended, in nanoseconds, and its rows; in order."""
    return sorted(tuple(map(int, line.split())) for line in file.read_text().splitlines())


def test_all_sinks_together_take_no_more_slots_than_delivery_may(spark: SparkSession, tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.feed.add(range(4), range(4, 8))
    sinks = {name: Delivery(Timed(tmp_path / "calls"), where="executors") for name in ("a", "b")}
    place.run(spark, sinks, settings=Settings(max_delivery_tasks=1))
    calls = calls_in(tmp_path / "calls")
    assert sum(rows for _, _, rows in calls) == 16
    assert all(ended <= began for (_, ended, _), (began, _, _) in pairwise(calls))


@dataclass(frozen=True)
class Meeting(Lines):
    """Each call waits until three have begun, and notes by which copy of the sink it was made."""

    def write(self, chunk: Chunk) -> None:
        (self.path.parent / f"begun-{chunk.segment_id}-{id(self)}").touch()
        wait_until(lambda: len(list(self.path.parent.glob("begun-*"))) >= 3, "three calls began")
        super().write(chunk)


@pytest.mark.usefixtures("partitions_apart")
def test_a_task_sends_several_segments_at_once_each_through_its_own_sink(spark: SparkSession, tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.feed.add(range(30))
    (tmp_path / "met").mkdir()
    sink = Meeting(tmp_path / "met" / "lines")
    to = Delivery(sink, where="executors", threads_per_task=3)
    with place.sink(to, settings=Settings(max_delivery_tasks=1)) as wal:
        wal.run(place.feed.stream(spark).repartition(3).writeStream.trigger(availableNow=True))
    assert sorted(sink.ids()) == list(range(30))
    begun = [path.name.split("-") for path in (tmp_path / "met").glob("begun-*")]
    assert len(begun) == len({segment for _, segment, _ in begun}) == len({sink for _, _, sink in begun}) == 3


@dataclass(frozen=True)
class OneAtATime(Timed):
    max_concurrency = 1


@pytest.mark.usefixtures("partitions_apart")
def test_a_sink_that_one_task_at_a_time_can_write_to_gets_one(spark: SparkSession, tmp_path: Path) -> None:
    """From the second batch on its pace is known to be such that it would be given every slot."""
    place = Home(tmp_path)
    place.feed.add(range(4), range(4, 8), range(8, 12))
    with place.sink(Delivery(OneAtATime(tmp_path / "calls"), where="executors")) as sink:
        sink.run(place.feed.stream(spark).repartition(2).writeStream.trigger(availableNow=True))
    calls = calls_in(tmp_path / "calls")
    assert (len(calls), sum(rows for _, _, rows in calls)) == (6, 12)
    assert all(ended <= began for (_, ended, _), (began, _, _) in pairwise(calls))

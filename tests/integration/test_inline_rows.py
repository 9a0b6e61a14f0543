"""Rows of small partitions travel with their tasks, on a real Spark: what it costs, and what happens at the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.house.log import Manifest, decode
from tests.support.lasting import Lasting
from tests.support.streams import SESSION, Home
from tests.support.vault import Vault, VaultSink
from wal_sink import Delivery
from wal_sink.spark.cluster import inline_budget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIMITED = (
    SESSION.format(master="local[2]").replace(
        ".getOrCreate()", '.config("spark.driver.maxResultSize", "300k").getOrCreate()'
    )
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
import wal_sink.spark.staging

budget, wal_sink.spark.staging.inline_budget = wal_sink.spark.staging.inline_budget, lambda _: 16 << 20
home = Home(Path(sys.argv[1]))
text = "array_join(transform(sequence(1, 150), i -> sha2(string(1000 * id + i), 512)), '')"  # Spark compresses results
stream = home.feed.stream(spark).repartition(8).selectExpr("id", text + " AS text")
try:
    with home.sink() as sink:
        sink.run(stream.writeStream.trigger(availableNow=True))
finally:
    wal_sink.spark.staging.inline_budget = budget
"""
)


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def manifest_of(place: Home, batch_id: int = 0) -> Manifest:
    path = place.object(f"batches/{batch_id:019d}/manifest-*.json")
    return decode(Manifest, path.read_bytes(), str(path))


def run_over_partitions(spark: SparkSession, place: Home, partitions: int, to: object = ...) -> None:
    with place.sink(to) as sink:
        sink.run(place.feed.stream(spark).repartition(partitions).writeStream.trigger(availableNow=True))


def delivered(place: Home) -> list[int]:
    return sorted(number for sent in place.lines.sent() for number in sent.ids)


def test_two_hundred_partitions_of_a_batch_share_a_segment(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(1_000))
    run_over_partitions(spark, place, 200)
    (segment,) = manifest_of(place).segments
    assert segment.rows == 1_000
    assert delivered(place) == list(range(1_000))
    objects = [path for path in (place.wal / "batches").rglob("*") if path.is_file()]
    assert len(objects) == 3, objects  # segment, manifest, release
    assert not list((place.wal / "sinks").glob("*/progress/*/*"))  # the marker follows


def test_packed_rows_are_delivered_by_executors_too(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(100), [], range(100, 150))
    run_over_partitions(spark, place, 30, Delivery(place.lines, where="executors"))
    assert [len(manifest_of(place, batch).segments) for batch in range(3)] == [1, 0, 1]
    assert delivered(place) == list(range(150))


def test_a_two_phase_sink_gets_packed_rows_at_delivery(spark: SparkSession, place: Home) -> None:
    vault = Vault()
    place.feed.add(range(60))
    run_over_partitions(spark, place, 6, Delivery(VaultSink(vault), where="driver"))
    assert sorted(row["id"] for row in vault.rows()) == list(range(60))


def test_the_budget_is_a_part_of_what_spark_permits(spark: SparkSession) -> None:
    assert 1 << 20 <= inline_budget(spark.sparkContext) <= 16 << 20


@pytest.mark.timeout(450)
def test_a_result_that_is_too_large_is_staged_again_without_inline_rows(other_sparks: Lasting, place: Home) -> None:
    """Spark counts 8 times some 100 KB against a limit of 300 KB."""
    place.feed.add(range(10, 90), range(90))
    said = other_sparks.run(LIMITED, place.root)
    assert said.count("bigger than spark.driver.maxResultSize") >= 1
    assert said.count("no rows travel to the driver. Raise spark.driver.maxResultSize") == 1
    assert len(manifest_of(place, 0).segments) == len(manifest_of(place, 1).segments) == 8
    assert len(delivered(place)) == 170

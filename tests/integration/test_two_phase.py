"""Two-phase sinks under a running query: the workers that stage prepare, the driver or executors commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.programs.held_folder import HeldFolder
from tests.support.streams import Home, small_chunks
from tests.support.waiting import wait_until
from wal_sink import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ENOUGH = 100_000
"""Rows of which Spark hands some to a worker before it asks for what comes after the last."""


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> HeldFolder:
    return HeldFolder(tmp_path / "target")


def ids(target: HeldFolder) -> list[int]:
    return sorted(row["id"] for row in target.rows())


@pytest.mark.usefixtures("partitions_apart")
@pytest.mark.parametrize("keep", [True, False])
def test_workers_prepare_what_the_driver_commits(
    spark: SparkSession, place: Home, target: HeldFolder, keep: bool
) -> None:
    place.feed.add(range(10), range(10, 30))
    target.keep_segments = keep
    with place.sink(target, settings=small_chunks()) as sink:
        sink.run(place.writer(spark))
    assert ids(target) == list(range(30))
    assert target.left() == []
    assert len(target.called("begin")) == 2
    assert all(on_executor and pid != os.getpid() for pid, on_executor in target.called("begin"))
    assert target.called("commit") == [(os.getpid(), False)] * 2
    assert target.called("abort") == []
    assert bool(list(Path(place.wal).rglob("*.parquet"))) is keep


def test_transactions_are_committed_on_executors_too(spark: SparkSession, place: Home, target: HeldFolder) -> None:
    place.feed.add(range(10))
    with place.sink(Delivery(target, where="executors")) as sink:
        sink.run(place.writer(spark))
    assert ids(target) == list(range(10))
    assert [on_executor for _, on_executor in target.called("commit")] == [True]


def test_a_sink_of_the_driver_prepares_when_it_delivers(spark: SparkSession, place: Home, target: HeldFolder) -> None:
    place.feed.add(range(10))
    with place.sink(Delivery(target, where="driver")) as sink:
        sink.run(place.writer(spark))
    assert ids(target) == list(range(10))
    assert target.called("begin") == [(os.getpid(), False)]


def failing_once_one_has_begun(target: HeldFolder) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a step that passes every row on. Then it waits until the worker behind it has begun, and fails."""

    def step(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        wait_until(lambda: (target.folder / "calls").exists() and bool(target.called("begin")), "a worker began")
        raise RuntimeError("behind the last row")

    return step


def test_a_query_that_fails_while_it_stages_leaves_nothing_that_a_later_start_does_not_abort(
    spark: SparkSession, place: Home, target: HeldFolder
) -> None:
    place.feed.add(range(ENOUGH))
    failing = place.feed.stream(spark).mapInArrow(failing_once_one_has_begun(target), "id long")
    writer = failing.writeStream.trigger(availableNow=True)
    with pytest.raises(Exception, match="behind the last row"):
        place.sink(target).run(writer)
    assert ids(target) == []
    assert len(target.left()) == len(target.called("begin")) == 1, "Spark ends a worker whose task failed"
    place.run(spark, target)
    place.run(spark, target)
    assert ids(target) == list(range(ENOUGH))
    assert target.left() == []

"""An older, a new and a torn checkpoint under a WAL: it goes on over the same input, and is refused over any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.streams import Home, append_line, copy_of, fails, restore
from wal_sink import Chunk, Delivery, FencedError, HistoryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_new_checkpoint_under_an_old_wal_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    kept = copy_of(place.checkpoint, "kept")
    shutil.rmtree(place.checkpoint)
    fails(
        spark, place, HistoryError, str(place.wal), "belongs to query", "no query yet", "use a new WAL for this query"
    )
    restore(kept, place.checkpoint)
    place.feed.add(range(5, 10))
    place.run(spark)
    assert place.lines.ids() == list(range(10))


def test_a_restored_older_checkpoint_that_reads_other_rows_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    older, inputs = copy_of(place.checkpoint, "older"), copy_of(place.feed.folder, "older-in")
    place.feed.add(range(5, 10))
    place.run(spark)
    newer, newer_inputs = copy_of(place.checkpoint, "newer"), copy_of(place.feed.folder, "newer-in")
    restore(older, place.checkpoint)
    restore(inputs, place.feed.folder)
    place.feed.add(range(100, 105), name="-other")
    fails(spark, place, HistoryError, "batch 1 of", str(place.wal), str(place.checkpoint), "Restore the checkpoint")
    restore(newer, place.checkpoint)
    restore(newer_inputs, place.feed.folder)
    place.feed.add(range(10, 15))
    place.run(spark)
    assert place.lines.ids() == list(range(15))


def test_offsets_that_were_rolled_back_without_their_commits_open_no_gate(spark: SparkSession, place: Home) -> None:
    """Spark runs batch 1 again, and `commits/1` is there. Before: a new WAL delivered it while it was under way."""
    place.feed.add([0], [1], [2])
    place.run(spark)
    newer = copy_of(place.checkpoint, "newer")
    for name in ("2", ".2.crc"):
        (place.checkpoint / "offsets" / name).unlink()
    place.lines.path.unlink()
    shutil.rmtree(place.wal)
    fails(
        spark,
        place,
        FencedError,
        "commits has an entry for this batch",
        "'offsets' was restored",
        "restore the whole checkpoint",
    )
    assert place.lines.ids() == []
    restore(newer, place.checkpoint)
    place.feed.add([3])
    place.run(spark)
    assert place.lines.ids() == [3]


def test_a_restored_older_checkpoint_that_reads_the_same_rows_goes_on_and_repeats_nothing(
    spark: SparkSession, place: Home
) -> None:
    place.feed.add(range(5))
    place.run(spark)
    older = copy_of(place.checkpoint, "older")
    place.feed.add(range(5, 10))
    place.run(spark)
    restore(older, place.checkpoint)
    place.feed.add(range(10, 15))
    place.run(spark)
    assert place.lines.ids() == list(range(15))


def test_a_stateful_query_on_a_restored_checkpoint_counts_on_as_if_nothing_had_happened(
    spark: SparkSession, place: Home
) -> None:
    """The batch that runs again is evaluated though it is staged no more: without that, its state would be missing."""
    delivered: list[tuple[int, int]] = []

    def deliver(chunk: Chunk) -> None:
        delivered.extend((row["id"], row["count"]) for row in chunk.table.to_pylist())

    def run(*ids: int) -> None:
        place.feed.add(ids)
        counts = place.feed.stream(spark).groupBy("id").count().writeStream.outputMode("update")
        with place.sink(Delivery(deliver, where="driver")) as sink:
            sink.run(counts.trigger(availableNow=True))

    run(1, 1, 2)
    older = copy_of(place.checkpoint, "older")
    run(1)
    restore(older, place.checkpoint)
    run(1, 2)

    assert sorted(delivered) == [(1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]


def test_a_batch_is_evaluated_fully_and_once_when_it_is_staged_and_when_it_runs_again(
    spark: SparkSession, place: Home
) -> None:
    partitions = 3

    def evaluations() -> int:
        with place.sink() as sink:
            rows = place.feed.stream(spark).repartition(partitions).mapInArrow(noting_its_end(place.root), "id long")
            sink.run(rows.writeStream.trigger(availableNow=True))
        return len((place.root / "evaluated").read_text().splitlines())

    place.feed.add(range(5))
    assert evaluations() == partitions
    older = copy_of(place.checkpoint, "older")
    place.feed.add(range(5, 10))
    assert evaluations() == 2 * partitions
    restore(older, place.checkpoint)
    assert evaluations() == 3 * partitions
    assert place.lines.ids() == list(range(10))


def noting_its_end(folder: Path) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a step of a DataFrame that appends a line whenever a partition is evaluated to its end."""

    def step(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        append_line(folder / "evaluated", "a partition")

    return step

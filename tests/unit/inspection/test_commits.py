"""Spark's newest commit beside the WAL: a checkpoint that is older than the WAL is told, the unknown is not."""

from __future__ import annotations

import pytest

from tests.house.operate import SparkCommit
from wal_sink.inspection import older_checkpoint


@pytest.mark.parametrize(
    ("spark", "newest_batch", "delivered_through", "told"),
    [
        (SparkCommit(6), 13, 13, "was delivered through 13, while Spark completed batches through 6 only"),
        (SparkCommit(6), 8, 6, "holds batches through 8, while Spark completed batches through 6 only"),
        (SparkCommit(-1), 1, -1, "holds batches through 1, while Spark completed no batch"),
        (SparkCommit(6), 7, 6, ""),
        (SparkCommit(-1), 0, -1, ""),
        (SparkCommit(9), 7, 6, ""),
        (SparkCommit(None, "no rights"), 13, 13, ""),
    ],
)
def test_a_checkpoint_is_older_if_the_wal_knows_more_than_it_completed(
    spark: SparkCommit, newest_batch: int, delivered_through: int, told: str
) -> None:
    found = older_checkpoint(spark, newest_batch=newest_batch, delivered_through=delivered_through)
    assert (told in found) if told else found == ""

"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from wal_sink.reporting.counts import counted, pending_text


@pytest.mark.parametrize(
    ("count", "thing", "told"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2, "row", "2 rows"),
        (1200, "row", "1,200 rows"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (2, "dead letter", "2 dead letters"),
    ],
)
def test_a_number_stands_with_its_noun(count: int, thing: str, told: str) -> None:
    assert counted(count, thing) == told


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        (0, "no batch is pending"),
        (1, "1 batch pending, delivered at the next start"),
        (5, "5 batches pending, delivered at the next start"),
    ],
)
def test_what_a_signal_left_is_one_line(batches: int, told: str) -> None:
    assert pending_text(batches) == told

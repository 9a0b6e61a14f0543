"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from wal_sink.reporting.counts import counted


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

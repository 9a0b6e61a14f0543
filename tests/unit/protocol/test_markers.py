"""The rows that a marker names, which a transactional target must still hold."""

from __future__ import annotations

import pytest

from tests.house.log import Marker, OlderSlots
from wal_sink.protocol import progress as markers
from wal_sink.protocol.progress import _slots_after


def older(batch_id: int, *rows: int) -> OlderSlots:
    return OlderSlots(batch_id=batch_id, rows=rows)


BEFORE = Marker(
    batch_id=9,
    term=1,
    run_id="r",
    rows=3,
    last_delivered_batch=9,
    last_delivered_rows=(11, 12),
    last_delivered_older=(older(7, 13, 14), older(5, 15, 16)),
    id="x",
    created="now",
)


@pytest.mark.parametrize(
    ("used", "left"),
    [
        (0, [older(9, 11, 12), older(7, 13, 14), older(5, 15, 16)]),
        (1, [older(9, 12), older(7, 13, 14), older(5, 15, 16)]),
        (2, [older(7, 13, 14), older(5, 15, 16)]),
        (3, [older(7, 14), older(5, 15, 16)]),
        (5, [older(5, 16)]),
        (6, []),
    ],
)
def test_slots_that_a_batch_does_not_use_keep_what_earlier_batches_left(used: int, left: list[OlderSlots]) -> None:
    assert _slots_after(used, BEFORE) == tuple(left)


def test_slots_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MOST_LAST_DELIVERED_SLOTS", 3)

    assert _slots_after(1, BEFORE) == (older(9, 12), older(7, 13))

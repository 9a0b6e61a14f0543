"""A WAL compared with the position of a commit sink: behind, rolled back, ahead, of another history, and no answer."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.house.operate import AgainstTarget, Check, Fault
from tests.house.sinks import CommitPosition
from tests.support.lake import Lake, LakeSink
from tests.support.small_run import Place
from wal_sink.testing import SinkQuery


def found_after(change: Callable[[Lake], object], *, sink: type[LakeSink] = LakeSink) -> list[tuple[Fault, int | None]]:
    """Two batches are delivered, the target changes, and the WAL is compared with it."""
    place, lake = Place(rows=lambda _: [2]), Lake()
    run = place.open({"a": LakeSink(lake)})
    place.stream(run, 1)
    change(lake)
    found = Check(place.wal, comparisons=[AgainstTarget(sink(lake), "a")]).run()
    return [(each.fault, each.batch_id) for each in found]


def at(batch_id: int, digest: str | None = None) -> Callable[[Lake], object]:
    def change(lake: Lake) -> None:
        slot, (position, number) = next(iter(lake.versions[-1].positions.items()))
        lake.versions[-1].positions[slot] = CommitPosition(batch_id, digest or position.digest), number

    return change


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda _: None, []),
        (lambda lake: lake.versions.append(lake.versions[-1]), []),
        (lambda lake: lake.restore(1), [(Fault.TARGET_BEHIND, 1)]),
        (lambda lake: lake.versions.pop(), [(Fault.TARGET_BEHIND, 1)]),
        (lambda lake: lake.versions.clear() or lake.versions.extend(Lake().versions), [(Fault.TARGET_BEHIND, 1)]),
        (at(2), [(Fault.TARGET_AHEAD, 2)]),
        (at(1, "0" * 15), [(Fault.TARGET_OTHER, 1)]),
    ],
    ids=["right", "others wrote", "rolled back", "of a backup", "made anew", "ahead", "another history"],
)
def test_what_a_target_shows(change: Callable[[Lake], object], faults: list[tuple[Fault, int]]) -> None:
    assert found_after(change) == faults


def test_a_target_that_gives_no_answer() -> None:
    class Silent(LakeSink):
        def position(self) -> CommitPosition | None:
            raise ConnectionError("down")

    assert found_after(lambda _: None, sink=Silent) == [(Fault.TARGET_OTHER, None)]


@pytest.mark.parametrize("change", [lambda _: None, lambda lake: lake.restore(0)], ids=["shown", "rolled back"])
def test_a_batch_that_is_committed_and_not_marked_yet_is_right(change: Callable[[Lake], object]) -> None:
    """If it was rolled back, it is delivered again."""
    lake = Lake()
    with SinkQuery(lambda: LakeSink(lake)) as running:
        running.crash_at("before create sinks/default/markers")
        running.batch(pa.table({"id": [1]}))
        assert not running.alive
        change(lake)
        assert Check(running._place.wal, comparisons=[AgainstTarget(LakeSink(lake), "default")]).run() == []

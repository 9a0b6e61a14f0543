"""Every single and every double crash point of a run of three batches, for every kind of sink."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.histories.exhaustive import every_crash, traced
from tests.simulation.histories.plans import COMMITTING, HOLDING, KINDS, ROLLED, ROLLING, LifePlan

LEAST_POINTS = 110
"""The least number of points of a run of three batches. Fewer mean that the matrix shrank."""
ROLLS = LifePlan(closes_every=3)
"""The last batch closes the roll, as with the others below. Only sinks that get rolls of batches mind."""
COLLECTING = LifePlan(retention=1, closes_every=2)
SMALL_CHUNKS = LifePlan(chunk_rows=1, closes_every=2)

pytestmark = pytest.mark.no_cover


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_and_no_two_crashes_break_a_law(kind: str, tell: Callable[[str], None]) -> None:
    crashes = every_crash(kind, each=ROLLS)

    tell(
        f"every crash, {kind}: {crashes.single} single and {crashes.double} double crash points, "
        f"which leave {crashes.worlds} different worlds"
    )
    assert not crashes.violations, "\n".join(crashes.violations[:10])
    assert crashes.single >= LEAST_POINTS
    assert crashes.double >= LEAST_POINTS * 80
    assert crashes.worlds >= (600 if COMMITTING in kind else 800), "a batch is there as a whole, or not at all"


@pytest.mark.parametrize("kind", ["plain", "at_most_once", "transactional", *ROLLING])
def test_no_crashes_break_a_law_where_batches_are_collected(kind: str) -> None:
    crashes = every_crash(kind, ((2,), (1,), (1,)), COLLECTING)

    assert not crashes.violations, "\n".join(crashes.violations[:10])
    assert crashes.worlds >= 800


@pytest.mark.parametrize("kind", KINDS)
def test_no_crashes_break_a_law_with_inline_rows_and_progress_by_time(kind: str, tell: Callable[[str], None]) -> None:
    """Each call takes 0.4 s, so that looks and records come due amid a batch."""
    crashes = every_crash(kind, ((5, 3), (2, 4, 1)), SMALL_CHUNKS, inline=True, call_s=0.4)

    tell(f"every crash, {kind}, inline: {crashes.single} single, {crashes.double} double")
    assert not crashes.violations, "\n".join(crashes.violations[:10])
    assert crashes.worlds >= 300


@pytest.mark.parametrize("kind", [HOLDING, ROLLED + HOLDING])
def test_no_crashes_break_a_law_where_a_target_forgets_what_it_holds(kind: str, tell: Callable[[str], None]) -> None:
    crashes = every_crash(kind, ((3, 1), (2,)), LifePlan(closes_every=2), forgets=True)

    tell(f"every crash, {kind}, forgetful: {crashes.single} single, {crashes.double} double")
    assert not crashes.violations, "\n".join(crashes.violations[:10])
    assert crashes.worlds >= 800


@pytest.mark.parametrize("kind", ROLLING)
def test_no_crashes_break_a_law_where_rolls_are_full_and_end_with_an_empty_batch(kind: str) -> None:
    crashes = every_crash(kind, ((1,), (3,), (), (1,), ()), LifePlan(closes_every=9, roll_bytes=8))

    assert not crashes.violations, "\n".join(crashes.violations[:10])
    assert crashes.worlds >= 800


def test_a_double_crash_can_be_looked_at_point_by_point() -> None:
    trace = traced("plain", 10, 5)

    assert sum("** crash" in line for line in trace) == 2
    assert any("before create sinks/default/markers" in line for line in trace)

"""Histories in which objects of the WAL vanish: all rows still arrive once, or an error reports the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.simulation import planted_bugs as bugs
from tests.simulation.histories.counting import check_touched, first_broken, without_collector
from tests.simulation.histories.losing import PARTS, drawn_losses
from tests.simulation.histories.plans import Losing, Loss
from tests.simulation.histories.playing import Played, play, small_world
from tests.simulation.planted_bugs import Plant

pytestmark = pytest.mark.no_cover

HISTORIES = 6_000
QUICK = 150
PORTION = 2_925
"""Number of histories in a portion of the slow ones, which several workers share."""

LEAST_TOUCHED = {Losing.EXPIRED: 1500, Losing.PART: 1500, "told": 1500, "fenced": 600, "woke up": 500, "collected": 500}
"""The least number of histories in which each thing must happen."""

FOUND_BY: dict[Plant, int] = {
    bugs.absence_of_the_record_means_a_new_wal: 1,
    bugs.absence_of_a_registration_means_a_new_sink: 22,
    bugs.a_claim_goes_by_the_terms_alone: 5_299,
    bugs.a_claim_that_jumps_fences_nobody: 17,
    bugs.absence_of_a_marker_means_that_nothing_was_delivered: 964,
}
"""The history that finds each bug. If it no longer does, the test searches all histories, and names another one."""


def histories(first: int, count: int) -> Iterator[tuple[int, Played]]:
    """Play these histories."""
    for number, plan in enumerate(drawn_losses(count, first), first):
        yield number, play(plan)


def no_loss_is_silent(first: int, count: int, tell: Callable[[str], None]) -> Counter[str]:
    """Play these histories. Return in how many of them each thing happened."""
    broken: dict[int, str] = {}
    touched: Counter[str] = Counter()
    with small_world(), without_collector():
        for number, played in histories(first, count):
            touched.update(name for name, times in played.hits.items() if times)
            if played.violations:
                broken[number] = played.violations[0]
    tell(f"{count} histories with lost objects, of which {touched['told']} ended by an error that names one")
    assert not broken, broken
    return touched


def test_no_loss_is_silent_in_the_first_histories(tell: Callable[[str], None]) -> None:
    assert no_loss_is_silent(0, QUICK, tell)["told"] > QUICK / 4


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, HISTORIES, PORTION))
def test_no_loss_is_silent(first: int, tell: Callable[[str], None]) -> None:
    touched = no_loss_is_silent(first, PORTION, tell)

    check_touched(touched, LEAST_TOUCHED, share=PORTION / (HISTORIES - QUICK))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_its_history(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    number = FOUND_BY[plant]
    with small_world():
        assert first_broken(histories(number, 1)) is None, "this history breaks a law without the bug"

        plant(monkeypatch)
        found = first_broken(histories(number, 1))
        assert found is not None, f"not by history {number}, but by {first_broken(histories(0, HISTORIES))}"


def test_a_rule_takes_the_eldest_first_and_a_copy_lacks_a_part() -> None:
    made = ["sinks/default/sink.json", "terms/stager/1.json", "wal.json", "batches/0/release.json"]

    assert Loss(Losing.EXPIRED, share=0.5).doomed(made) == made[:2]
    assert Loss(Losing.PART, part="wal.json").doomed(made) == ["wal.json"]
    assert Loss(Losing.PART, part="batches/*").doomed(made) == ["batches/0/release.json"]


def test_every_part_is_lost_in_some_history() -> None:
    lives = [life for plan in drawn_losses(400) for act in (*plan.acts, (plan.last,)) for life in act]

    assert {life.loses.part for life in lives if life.loses is not None} >= set(PARTS)

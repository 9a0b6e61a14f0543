"""Histories in which objects of the WAL vanish: all rows still arrive once, or an error reports the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.simulation import planted_bugs as bugs
from tests.simulation.histories.counting import first_broken
from tests.simulation.histories.losing import PARTS, drawn_losses
from tests.simulation.histories.plans import Losing, Loss
from tests.simulation.histories.playing import Played, play, small_world
from tests.simulation.planted_bugs import Plant

pytestmark = pytest.mark.no_cover

HISTORIES = 6000

LEAST_TOUCHED = {Losing.EXPIRED: 1500, Losing.PART: 1500, "told": 1500, "fenced": 600, "woke up": 500, "collected": 500}
"""The least number of histories in which each thing must happen."""

FOUND_LATE: dict[Plant, int] = {bugs.a_claim_goes_by_the_terms_alone: 5299}
"""The histories that found these bugs at the last search. The search begins there and goes round all histories."""

PLANTED: list[Plant] = [
    bugs.absence_of_the_record_means_a_new_wal,
    bugs.absence_of_a_registration_means_a_new_sink,
    bugs.a_claim_goes_by_the_terms_alone,
    bugs.a_claim_that_jumps_fences_nobody,
    bugs.absence_of_a_marker_means_that_nothing_was_delivered,
]


def histories(first: int = 0) -> Iterator[tuple[int, Played]]:
    """Play all histories, from number `first` on and round."""
    for begin, end in ((first, HISTORIES), (0, first)):
        for number, plan in enumerate(drawn_losses(end - begin, begin), begin):
            yield number, play(plan)


@pytest.mark.timeout(1200)
def test_no_loss_is_silent(tell: Callable[[str], None]) -> None:
    broken: dict[int, str] = {}
    touched: Counter[str] = Counter()
    with small_world():
        for number, played in histories():
            touched.update(name for name, times in played.hits.items() if times)
            if played.violations:
                broken[number] = played.violations[0]

    tell(f"{HISTORIES} histories with lost objects, of which {touched['told']} ended by an error that names one")
    assert not broken, broken
    assert not {name: touched[name] for name, least in LEAST_TOUCHED.items() if touched[name] < least}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_within_these_histories(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    plant(monkeypatch)

    with small_world():
        found = first_broken(histories(FOUND_LATE.get(plant, 0)))

    assert found is not None
    tell(f"planted: {plant.__name__} is found by history {found}")


def test_a_rule_takes_the_eldest_first_and_a_copy_lacks_a_part() -> None:
    made = ["sinks/default/sink.json", "terms/stager/1.json", "wal.json", "batches/0/release.json"]

    assert Loss(Losing.EXPIRED, share=0.5).doomed(made) == made[:2]
    assert Loss(Losing.PART, part="wal.json").doomed(made) == ["wal.json"]
    assert Loss(Losing.PART, part="batches/*").doomed(made) == ["batches/0/release.json"]


def test_every_part_is_lost_in_some_history() -> None:
    lives = [life for plan in drawn_losses(400) for act in (*plan.acts, (plan.last,)) for life in act]

    assert {life.loses.part for life in lives if life.loses is not None} >= set(PARTS)

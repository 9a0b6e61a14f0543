"""A small part of `make chaos`, with a fixed seed: processes killed while they deliver a change stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import changes
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.change_history import Row


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", changes.SCENARIOS, ids=[scenario.name for scenario in changes.SCENARIOS])
def test_a_history_ends_as_its_model_whatever_is_killed(scenario: Scenario, tmp_path: Path) -> None:
    outcome = scenario.run(Effort(7, tmp_path, 0.02))
    assert outcome.holds, outcome


def test_rows_that_are_lost_wrong_or_there_twice_do_not_hold() -> None:
    rows = [Row("x", number, "a", 1, "note") for number in range(3)]
    outcome = Outcome(rounds=1)
    changes.compare(outcome, rows[::-1], rows)
    assert outcome.holds
    changes.compare(outcome, [*rows[:2], rows[1]], rows)
    assert (outcome.lost, outcome.repeated) == (1, 1)
    for found in ([*rows[:2], rows[2]._replace(note=None)], [*rows, Row("x", 9, "a", 1, None)]):
        outcome = Outcome(rounds=1)
        changes.compare(outcome, found, rows)
        assert not outcome.holds

"""A small part of `make chaos`, with a fixed seed: a catch-up that is killed, into a restored file of SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.restored_targets import SCENARIOS, Ground, count
from tests.chaos.scenario import Effort, Outcome

SEED = 17
NAME = "SQLite restored: catch-up killed at every request"
(AT_REQUESTS,) = [scenario for scenario in SCENARIOS if scenario.name == NAME]


def test_a_catch_up_that_is_killed_at_a_request_is_completed_by_the_same_command(tmp_path: Path) -> None:
    outcome = AT_REQUESTS.run(Effort(SEED, tmp_path, 0.0025))
    assert outcome.holds, outcome
    assert outcome.rounds in {1, 2}
    assert "every 80th was tried" in outcome.detail


def test_a_request_at_which_nothing_died_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die = Ground.die
    monkeypatch.setattr(Ground, "die", lambda ground, _deadly=0: die(ground))
    outcome = AT_REQUESTS.run(Effort(SEED, tmp_path, 0.001))
    assert outcome.rounds == 1
    assert "it did not die there: it ended with 0" in outcome.violations[0]
    assert f"seed {SEED}, request 18, before " in outcome.violations[0]


def test_a_command_without_requests_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ground, "die", lambda _ground: (0, []))
    outcome = AT_REQUESTS.run(Effort(SEED, tmp_path))
    assert outcome.rounds == 0
    assert "undisturbed: AssertionError: it made only these kinds of requests: set()" in outcome.violations


def test_rows_that_are_lost_or_there_twice_do_not_hold() -> None:
    outcome = Outcome(rounds=1)
    count(outcome, "a", range(6), range(6))
    assert outcome.holds
    count(outcome, "b", [0, 1, 1, 2, 9], range(6))
    assert (outcome.lost, outcome.repeated) == (3, 1)
    assert outcome.violations == ["b: ids 3-5 lost", "b: ids 1 twice", "b: ids 9 sent by nobody"]

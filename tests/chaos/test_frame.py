"""`python -m tests.chaos`: the scenarios that it runs, its report, its exit codes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.chaos import __main__ as frame
from tests.chaos import connect
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.streams import Home


def fine(effort: Effort) -> Outcome:
    return Outcome(rounds=effort.times(100), repeated=3, allowed=4, detail="- seen: this")


def lossy(effort: Effort) -> Outcome:
    return Outcome(rounds=1, lost=2, violations=[f"seed {effort.seed}: {effort.folder}/wal/batches lacks rows"])


def broken(effort: Effort) -> Outcome:
    raise OSError(f"no room in {effort.folder}")


FINE, LOSSY, BROKEN = (
    Scenario(function.__name__, "nothing is lost", "kill", function) for function in (fine, lossy, broken)
)


class Runner(Protocol):
    def __call__(self, *scenarios: Scenario, args: str = ...) -> tuple[int, str]: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(frame, "code_version", lambda: "abc1234")

    def running(*scenarios: Scenario, args: str = "--seed 7 --share 0.05") -> tuple[int, str]:
        monkeypatch.setattr(frame, "all_scenarios", lambda: list(scenarios))
        out = tmp_path / "CHAOS.md"
        code = frame.main([*args.split(), "--out", str(out)])
        return code, out.read_text()

    return running


def test_a_run_that_holds_ends_with_0_and_a_row_a_scenario(run: Runner) -> None:
    code, report = run(FINE)
    assert code == 0
    assert "| fine | 5 | kill | 0 | 3 | 4 | 0 | yes | abc1234 |" in report
    assert "Seed: 7; share of the whole: 0.05" in report
    assert "- seen: this" in report


def test_a_failing_scenario_ends_with_1_and_names_the_seed_but_no_path(run: Runner, tmp_path: Path) -> None:
    code, report = run(LOSSY, BROKEN, FINE)
    assert code == 1
    assert "| lossy | 1 | kill | 2 | 0 | 0 | 0 | **no** | abc1234 |" in report
    assert "| broken | 0 |" in report
    assert "| fine | 5 |" in report
    assert "python -m tests.chaos --only 'lossy' --seed 7 --share 0.05" in report
    assert "…" in report
    assert str(tmp_path.parent) not in report


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"planned": 0}, ["no kill met a batch that was planned and not complete"]),
        ({"alone": 0}, ["no client outlived its server"]),
        ({"left": [0, 0]}, ["every query was done before its server was killed"]),
    ],
)
def test_kills_of_connect_servers_count_only_if_they_met_something(
    tmp_path: Path, change: dict[str, Any], said: list[str]
) -> None:
    met: dict[str, Any] = {"done": 2, "alone": 1, "planned": 1, "left": [10, 0], **change}
    kills = connect.Kills(Home(tmp_path), tmp_path, random.Random(1), **met)
    outcome = Outcome(rounds=2)
    connect._judge(outcome, kills, Counter(range(5)), range(5))
    assert outcome.violations == said
    assert (outcome.lost, outcome.repeated) == (0, 0)

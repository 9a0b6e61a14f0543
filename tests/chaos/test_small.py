"""A small part of `make chaos`, with a fixed seed: processes that are killed, checkpoints that go back, bad disks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos import disks, processes, replays
from tests.chaos.bad_disks import Trouble, disk_of
from tests.chaos.scenario import Effort, Scenario
from tests.components import require

SEED = 20
WITHOUT_SPARK = ("full disk", "read-only disk", "killed around a link")
TROUBLES: dict[str, Trouble] = {
    "full disk": "full",
    "full disk under Spark": "full",
    "read-only disk": "read-only",
    "read-only disk under Spark": "read-only",
}
SHARES = {
    "full disk": 0.04,
    "read-only disk": 0.04,
    "killed around a link": 0.03,
    "drivers killed": 0.015,
    "executors killed": 0.04,
    "two drivers, one WAL": 0.01,
    "a driver that slept": 0.01,
    "commits deleted": 0.1,
    "checkpoint restored": 0.2,
    "checkpoint gone": 0.2,
    "full disk under Spark": 0.1,
    "read-only disk under Spark": 0.1,
}
SCENARIOS = {scenario.name: scenario for module in (disks, processes, replays) for scenario in module.SCENARIOS}


def test_every_scenario_of_these_modules_has_its_share() -> None:
    assert SHARES.keys() == SCENARIOS.keys()


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_small_lives(name: str, tmp_path: Path) -> None:
    _assert_holds(SCENARIOS[name], tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - set(WITHOUT_SPARK)))
def test_drivers(name: str, tmp_path: Path) -> None:
    _assert_holds(SCENARIOS[name], tmp_path)


def _assert_holds(scenario: Scenario, folder: Path) -> None:
    _require_what_it_needs(scenario.name, folder)
    (folder / "chaos").mkdir()
    outcome = scenario.run(Effort(seed=SEED, folder=folder / "chaos", share=SHARES[scenario.name]))
    assert outcome.holds, outcome


def _require_what_it_needs(name: str, folder: Path) -> None:
    if name == "executors killed":
        require(Path("/proc/self/stat").exists(), "finding a worker's executor needs /proc")
    if name == "a driver that slept":
        require(hasattr(signal, "SIGSTOP"), "this system has no SIGSTOP")
    if trouble := TROUBLES.get(name):
        with disk_of(folder / "disk") as disk:
            able = disk.can(trouble, for_others=name.endswith("Spark"))
        require(able, f"making a disk {trouble} needs root that may mount, or (for some) a user that is not root")

"""The numbers of one run, as a file that the report and the README's figures are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.contests import TARGETS, UNITS, Target
from benchmarks.measure import Contest, Measured, Ratio, Unit, ratio

HERE = Path(__file__).resolve().parent
RESULTS_JSON = "results.json"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a target."""

    target: Target
    unit: Unit
    found: Ratio | None
    """None: it was not measured in this run."""
    floor: Ratio | None = None
    """What the target's floor reaches; None: it has none, or it was not measured."""

    @property
    def holds(self) -> bool:
        return self.found is not None and self.target.holds(self.found.median, self.unit)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured in one run."""

    sizes: str
    machine: dict[str, str]
    titles: dict[str, str] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    date: str = ""
    """The day it began, in UTC."""
    command: str = ""

    def with_measured(self, contests: Iterable[Contest], measured: Iterable[Measured], notes: Iterable[str]) -> Results:
        """The same run, further on: with what was measured of these contests, and more notes."""
        titles = {contest.key: contest.title for contest in contests}
        there = [one for one in measured if one.values]
        return replace(self, titles=titles, measured=there, notes=[*self.notes, *notes])

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        measured = [Measured(**{**one, "unit": Unit(one["unit"])}) for one in data["measured"]]
        return cls(**{**data, "measured": measured})

    def save(self, path: Path) -> None:
        """Whole or not at all: a run that is ended leaves what its last round left."""
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)

    def of_contest(self, key: str) -> list[Measured]:
        return [one for one in self.measured if one.contest == key]

    def find(self, contest: str, name: str) -> Measured | None:
        return next((one for one in self.of_contest(contest) if one.name == name), None)

    def verdicts(self) -> list[Verdict]:
        """One for each target."""
        return [
            Verdict(target, UNITS[target.contest], self._found(target, target.ours), self._floor(target))
            for target in TARGETS
        ]

    def _floor(self, target: Target) -> Ratio | None:
        return self._found(target, target.floor) if target.floor else None

    def _found(self, target: Target, name: str) -> Ratio | None:
        ours = self.find(target.contest, name)
        if ours is None:
            return None
        if target.rival is None:
            return Ratio(ours.median, min(ours.values), max(ours.values))
        rival = self.find(target.contest, target.rival)
        return None if rival is None else ratio(ours.values, rival.values)

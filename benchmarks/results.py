"""The numbers of one run in a file, the source of the report and of the documents' figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.contests import LAKE_KEYS, LAKE_TARGETS, OBJECT_KEYS, OBJECT_TARGETS, TARGETS, UNITS, Target
from benchmarks.measure import Contest, Measured, Ratio, Unit, ratio

HERE = Path(__file__).resolve().parent
RESULTS_JSON = "results.json"
OBJECTS_JSON, LAKES_JSON = "object_stores.json", "lakes.json"
"""The numbers of `make bench ARGS=--object-stores` and of `ARGS=--lakes`, which are separate runs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a target."""

    target: Target
    unit: Unit
    found: Ratio | None
    """None: it was not measured in this run."""
    floor: Ratio | None = None
    """The number of the target's floor; None: it has no floor, or the floor was not measured."""

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
    """The day on which the run began, in UTC."""
    command: str = ""

    def with_measured(self, contests: Iterable[Contest], measured: Iterable[Measured], notes: Iterable[str]) -> Results:
        """A copy with the numbers of these contests added, and with these notes."""
        titles = {contest.key: contest.title for contest in contests}
        there = [one for one in measured if one.values]
        return replace(self, titles=titles, measured=there, notes=[*self.notes, *notes])

    @classmethod
    def load_all(cls, folder: Path) -> list[Results]:
        """The results of each kind of run that a folder has, the general one first."""
        return [
            cls.load(folder / name) for name in (RESULTS_JSON, OBJECTS_JSON, LAKES_JSON) if (folder / name).exists()
        ]

    @property
    def targets(self) -> Sequence[Target]:
        """The targets of this kind of run."""
        others = ((OBJECT_KEYS, OBJECT_TARGETS), (LAKE_KEYS, LAKE_TARGETS))
        return next((targets for keys, targets in others if set(self.titles) & set(keys)), TARGETS)

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        measured = [Measured(**{**one, "unit": Unit(one["unit"])}) for one in data["measured"]]
        return cls(**{**data, "measured": measured})

    def save(self, path: Path) -> None:
        """Write the file atomically: a killed run leaves the numbers of its last complete round."""
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)

    def of_contest(self, key: str) -> list[Measured]:
        return [one for one in self.measured if one.contest == key]

    def find(self, contest: str, name: str) -> Measured | None:
        return next((one for one in self.of_contest(contest) if one.name == name), None)

    def verdicts(self) -> list[Verdict]:
        """One verdict for each target."""
        return [
            Verdict(target, UNITS[target.contest], self._found(target, target.ours), self._floor(target))
            for target in self.targets
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

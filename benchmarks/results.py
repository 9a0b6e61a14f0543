"""The numbers of one run, as a file that the report and the README's figures are made from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
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

    @property
    def holds(self) -> bool:
        return self.found is not None and self.target.holds(self.found.median, self.unit)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured in one run."""

    sizes: str
    machine: dict[str, str]
    titles: dict[str, str]
    measured: list[Measured]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, sizes: str, machine: dict[str, str], contests: list[Contest], measured: list[Measured], notes: list[str]
    ) -> Results:
        titles = {contest.key: contest.title for contest in contests}
        return cls(sizes, machine, titles, [one for one in measured if one.values], notes)

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        measured = [Measured(**{**one, "unit": Unit(one["unit"])}) for one in data["measured"]]
        return cls(data["sizes"], data["machine"], data["titles"], measured, data["notes"])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def of_contest(self, key: str) -> list[Measured]:
        return [one for one in self.measured if one.contest == key]

    def find(self, contest: str, name: str) -> Measured | None:
        return next((one for one in self.of_contest(contest) if one.name == name), None)

    def verdicts(self) -> list[Verdict]:
        """One for each target."""
        return [Verdict(target, UNITS[target.contest], self._found(target)) for target in TARGETS]

    def _found(self, target: Target) -> Ratio | None:
        ours = self.find(target.contest, target.ours)
        if ours is None:
            return None
        if target.rival is None:
            return Ratio(ours.median, min(ours.values), max(ours.values))
        rival = self.find(target.contest, target.rival)
        return None if rival is None else ratio(ours.values, rival.values)

"""The interface of a scenario of `make chaos`, and its result. Each module lists its scenarios in `SCENARIOS`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of work, the seed and the folder of one scenario."""

    seed: int
    folder: Path
    """An empty folder for this scenario alone."""
    share: float = 1.0
    """The part of the whole: 1 in `make chaos`; a small part, with a fixed seed, in `make test-all`."""
    deadline_s: float = math.inf
    """The time, by `time.monotonic`, at which a scenario that can end anywhere ends."""

    def times(self, whole: int, *, least: int = 1) -> int:
        """Return how often to do something that the whole does `whole` times."""
        return max(least, round(whole * self.share))

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline_s


@dataclass(slots=True)
class Outcome:
    """The counts of a scenario, taken in the target or on the store, never by the code under test."""

    rounds: int = 0
    """The rounds in the scenario's own unit: kills, races, flipped bits."""
    lost: int = 0
    repeated: int = 0
    """Rows, or objects, that a target has more than once."""
    allowed: int = 0
    """The largest number of repeats that the guarantees permit for these faults."""
    violations: list[str] = field(default_factory=list)
    """Failed expectations. Each names the seed or the file with which it can be repeated."""
    detail: str = ""
    """Further results: kinds of faults, crashes that had an effect, median times."""

    @property
    def holds(self) -> bool:
        return not self.violations and self.lost == 0 and self.repeated <= self.allowed and self.rounds > 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the report."""

    name: str
    law: str
    """The property that must hold, in one short sentence."""
    unit: str
    """The name of a round: "kill", "race", "flipped bit"."""
    run: Callable[[Effort], Outcome]

"""What a scenario of `make chaos` is, and what it reports. One module a theme lists its scenarios in `SCENARIOS`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to do, from which seed, where."""

    seed: int
    folder: Path
    """Empty and of this scenario alone."""
    share: float = 1.0
    """1 is the whole of `make chaos`; `make test` runs a small part with a fixed seed."""
    deadline_s: float = math.inf
    """When a scenario that can end anywhere does, by `time.monotonic`."""

    def times(self, whole: int, *, least: int = 1) -> int:
        """How often to do what the whole does `whole` times."""
        return max(least, round(whole * self.share))

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline_s


@dataclass(slots=True)
class Outcome:
    """What was counted, in the target or on the store, never by the code under test."""

    rounds: int = 0
    """Kills, races, flipped bits: the scenario's own unit."""
    lost: int = 0
    repeated: int = 0
    """Rows, or objects, that a target has more than once."""
    allowed: int = 0
    """The largest number of repeats that the guarantee permits for what happened."""
    violations: list[str] = field(default_factory=list)
    """Each names the seed or the file that shows it again."""
    detail: str = ""
    """What else to know: kinds of faults met, crashes that hit, median times."""

    @property
    def holds(self) -> bool:
        return not self.violations and self.lost == 0 and self.repeated <= self.allowed and self.rounds > 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the report."""

    name: str
    law: str
    """What must hold, in one short sentence."""
    unit: str
    """What a round is: "kill", "race", "flipped bit"."""
    run: Callable[[Effort], Outcome]

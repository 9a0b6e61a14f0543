"""Measurement of contestants in turn, several times, and the ratios between their numbers."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

NAME = "wal-sink"
"""The name of our side in reports."""


class Unit(StrEnum):
    """The unit of a number. It decides whether more is better."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    ROWS_PER_S = "rows/s"
    REQUESTS = "requests"
    PROCESSOR_S = "processor s"
    MEGABYTES = "MB"

    @property
    def more_is_better(self) -> bool:
        return self is Unit.ROWS_PER_S


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do the work of a contest."""

    name: str
    measure: Callable[[Path], float]
    """Does the work once, in a new empty folder, and returns the number in the contest's unit."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Ways to do the same work, measured in turn."""

    key: str
    title: str
    unit: Unit
    contestants: tuple[Contestant, ...]
    missing: Callable[[], str] = lambda: ""
    """The reason why it cannot be measured here; empty if it can."""


@dataclass(slots=True)
class Measured:
    """The numbers of one contestant, round by round."""

    contest: str
    name: str
    unit: Unit
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contestant divided by another, over the rounds in which both were measured."""

    median: float
    least: float
    most: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Divide our numbers by theirs, round by round: a slow round slows down both sides."""
    quotients = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    return Ratio(statistics.median(quotients), min(quotients), max(quotients))


NONE: Mapping[str, int] = MappingProxyType({})


class Deadline:
    """The time limit of a whole run."""

    def __init__(self, minutes: float) -> None:
        self._end_s = time.monotonic() + minutes * 60

    def allows(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self._end_s


class Bout:
    """All contests of one run. A round measures every contestant once; the order is reversed in every second round."""

    def __init__(self, contests: Iterable[Contest], scratch: Path, deadline: Deadline) -> None:
        self._contests = tuple(contests)
        self._scratch = scratch
        self._deadline = deadline
        self._longest_s: dict[str, float] = {}
        self.measured = {
            (contest.key, contestant.name): Measured(contest.key, contestant.name, contest.unit)
            for contest in self._contests
            for contestant in contest.contestants
        }
        self.skipped: list[str] = []
        """The contests and rounds that were skipped for lack of time."""

    def run(
        self,
        rounds: int,
        say: Callable[[str], None] = print,
        *,
        fewer: Mapping[str, int] = NONE,
        after_round: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Measure this many rounds, `fewer` of some contests, or as many as time allows.

        `after_round` gets the number of rounds that are done.
        """
        for number in range(rounds):
            for contest in self._contests:
                if number < fewer.get(contest.key, rounds):
                    self._round(contest, number, say)
            after_round(number + 1)

    def _round(self, contest: Contest, number: int, say: Callable[[str], None]) -> None:
        """Measure a contest completely or not at all, so that all its contestants have the same number of values."""
        longest_s = self._longest_s.get(contest.key, max(self._longest_s.values(), default=0.0))
        if not self._deadline.allows(longest_s):
            self.skipped.append(f"{contest.key}, round {number + 1}")
            say(f"no time left for {self.skipped[-1]}")
            return
        began_s = time.monotonic()
        for contestant in contest.contestants[:: -1 if number % 2 else 1]:
            value = self._measure(contestant)
            self.measured[contest.key, contestant.name].values.append(value)
            say(f"round {number + 1}  {contest.key:16}  {contestant.name:40}  {value:12,.2f} {contest.unit}")
        self._longest_s[contest.key] = max(self._longest_s.get(contest.key, 0.0), time.monotonic() - began_s)

    def _measure(self, contestant: Contestant) -> float:
        folder = self._scratch / "measuring"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.sync()  # pending writes of the previous contestant must not slow down the next one
        try:
            return contestant.measure(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

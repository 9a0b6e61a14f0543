"""Playing many histories, and counting what happened in them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.histories.drawing import FAMILY, Family, draw_family
from tests.simulation.histories.playing import Played, play, play_family, small_world

Drawing = Callable[[int], Family]
"""Draws the family of a number."""
PORTION = 250 * FAMILY
"""Number of histories that one process plays at a time."""
_KEPT_VIOLATIONS = 20


@dataclass(slots=True)
class Count:
    """Totals of many histories."""

    histories: int = 0
    cpu_s: float = 0.0
    """Processor seconds of all processes that played."""
    points: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    """How often each thing happened."""
    touched: Counter[str] = field(default_factory=Counter)
    """In how many histories each thing happened."""
    violations: dict[int, str] = field(default_factory=dict)
    """The first violation of each history, by its seed; at most a page of them."""
    broken: int = 0
    """How many histories broke a law."""

    @property
    def per_second(self) -> float:
        """Histories per second and core."""
        return self.histories / self.cpu_s if self.cpu_s else 0.0

    def complaints(self, option: str = "") -> list[str]:
        """The violations, each with the command that replays its history."""
        replay = f"python -m tests.simulation.histories{option} --seed"
        return [f"{violation}\n  {replay} {seed}" for seed, violation in self.violations.items()]

    def note(self, seed: int, played: Played) -> None:
        self.histories += 1
        self.points += played.points
        happened = [(name, times) for name, times in played.hits.items() if times]
        for name, times in happened or [("nothing", 1)]:
            self.hits[name] += times
            self.touched[name] += 1
        if played.violations:
            self.broken += 1
            if len(self.violations) < _KEPT_VIOLATIONS:
                self.violations[seed] = played.violations[0]

    def add(self, other: Count) -> None:
        self.histories += other.histories
        self.cpu_s += other.cpu_s
        self.points += other.points
        self.hits.update(other.hits)
        self.touched.update(other.touched)
        self.broken += other.broken
        for seed, violation in list(other.violations.items())[: _KEPT_VIOLATIONS - len(self.violations)]:
            self.violations[seed] = violation


def play_seeds(first: int, count: int, families: Drawing = draw_family) -> Count:
    """Play the histories of the families that hold these seeds, in this process."""
    total = Count()
    begun = time.process_time()
    with small_world(), without_collector():
        for number in range(first // FAMILY, -(-(first + count) // FAMILY)):
            _play_family(families(number), total)
    total.cpu_s = time.process_time() - begun
    return total


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect the garbage of histories once, at the end, which is far cheaper than while they are played.

    Objects that existed before are not searched: that would take longer than the histories' own garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if enabled:
            gc.enable()


def _play_family(family: Family, total: Count) -> None:
    played = play_family(family.plans) if family.together else [play(plan) for plan in family.plans]
    for plan, each in zip(family.plans, played, strict=True):
        total.note(plan.seed, each)


def play_on_all_cores(
    first: int, count: int, *, cores: int | None = None, families: Drawing = draw_family
) -> Iterator[Count]:
    """Play the histories in several processes, portion by portion, in any order.

    Each process holds one portion in memory.
    """
    starts = range(first, first + count, PORTION)
    portions = [(start, min(PORTION, first + count - start), families) for start in starts]
    cores = min(cores or os.cpu_count() or 1, len(portions))
    if cores == 1:
        yield from (play_seeds(*portion) for portion in portions)
        return
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(play_seeds, *zip(*portions, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)  # a caller that stops early does not wait for the rest


def first_broken(histories: Iterable[tuple[int, Played]]) -> int | None:
    """The number of the first history that breaks a law; None if none does. Used while a bug is planted.

    An unexpected error finds no bug. It shows that the planted code no longer fits the code around it, so that the bug
    is not planted at all.
    """
    for number, played in histories:
        assert not played.unexpected, f"history {number}: {played.unexpected[0]}"
        if played.violations:
            return number
    return None


def check_touched(touched: Mapping[str, int], least: Mapping[str, int], *, share: float) -> None:
    """Check that each thing happened in enough histories. `share`: the share of all histories that was played."""
    seldom = {name: touched.get(name, 0) for name, many in least.items() if touched.get(name, 0) < many * share}
    assert not seldom, f"these histories became trivial: {seldom}"

"""Drawing a plan from a seed. Trouble that fits into a small history is drawn often, the rest seldom."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.simulation.histories.plans import (
    COMMITTING,
    HOLDING,
    ROLLING,
    SENDING,
    At,
    Deed,
    Fault,
    LifePlan,
    Plan,
    Shape,
    Tamper,
    Tampering,
)

T = TypeVar("T")


def often(*weighted: tuple[T, int]) -> tuple[T, ...]:
    """Repeat each thing as often as its weight says, so that an even draw follows the weights."""
    return tuple(thing for thing, weight in weighted for _ in range(weight))


_BATCHES: tuple[Shape, ...] = often(
    (((1,),), 10),
    (((3,),), 14),
    (((4,),), 12),
    (((3, 2),), 12),
    (((0, 2),), 3),
    (((),), 2),
    (((2,), (1,)), 12),
    (((3,), (2,)), 8),
    (((3, 1), (2,)), 5),
    (((1,), (2,), (1,)), 4),
    (((3,), (), (2, 2)), 2),
)
_COLLECTED: tuple[Shape, ...] = often((((3,), (1,), (1,)), 4), (((1,), (3,), (1,)), 4), (((4,), (1,), (2,), (1,)), 2))
"""Batches that are collected, with a retention of one batch."""

ROLLED_BATCHES: tuple[Shape, ...] = often(
    (((2,), (1,)), 6),
    (((3, 1), (2,)), 3),
    (((2,), ()), 2),
    (((1,), (2,), (1,)), 6),
    (((1,), (), (2, 2)), 4),
    (((), (1,), (2,)), 1),
    (((1,), (3,), (1,), (2,)), 4),
)
"""Batches that become rolls."""

_STEPS: tuple[tuple[str, str, int], ...] = often(
    (("", "", 0), 30),
    (("after", "", 16), 14),
    (("sink", "", 8), 12),
    (("create", "/progress/", 4), 8),
    (("create", "/markers/", 4), 6),
    (("", "release.json", 4), 5),
    (("", "manifest-", 3), 4),
    (("", "commits/", 4), 4),
    (("read", "terms/", 4), 5),
    (("create", "terms/", 4), 2),
    (("delete", "", 10), 3),
    (("", "low-water", 8), 3),
    (("list", "", 20), 3),
    (("segment", "", 3), 2),
)
"""Kinds of points: part of the action, part of the path, and among how many such points one is drawn.

0 stands for as many points as the history may have.
"""

_TROUBLES: tuple[Deed, ...] = often(
    (Deed.CRASH, 15), (Deed.FAIL, 50), (Deed.FULL, 7), (Deed.DELAY, 6), (Deed.LOSE, 10), (Deed.LEAVE, 12)
)
_TAMPERINGS: tuple[Tampering, ...] = often((Tampering.FORGET, 4), (Tampering.SAME, 3), (Tampering.OTHER, 2))
_CHUNK_ROWS = often((2, 5), (1, 3), (3, 1))


FAMILY = 8
"""Number of consecutive seeds that are drawn together."""
_HOLDING_EVERY = 6
"""One family in so many has a two-phase sink, one in twice as many a commit sink, and another one a sink that gets
rolls. Its number decides that, so all else is drawn as if there were none.
"""


def drawn_by_number(number: int) -> dict[str, Any]:
    """The parts of a plan that a number decides, so that all else is drawn as if there were none."""
    return {
        "call_s": 0.4 if number % 4 == 1 else 0.0,
        "inline": number % 5 == 2,
        "in_order": number % 7 == 3,
        "answers": number % 2 == 1,
    }


@dataclass(frozen=True, slots=True)
class Family:
    """The histories of `FAMILY` consecutive seeds."""

    plans: tuple[Plan, ...]
    together: bool
    """Whether they differ only in the point at which one process dies, so that `play_family` can play them."""


def draw(seed: int) -> Plan:
    """The plan of one history."""
    return draw_family(seed // FAMILY).plans[seed % FAMILY]


def draw_family(number: int, *, rolls: bool = False) -> Family:
    """Draw either one history with a death after different effects, or different histories. `rolls`: of a sink that
    gets rolls of batches, whatever the number is.
    """
    first = number * FAMILY
    drawing = _Drawing(first, rolls=rolls)
    if drawing.chance(0.66):
        return Family(drawing.deaths(), together=True)
    each = (_Drawing(seed, rolls=rolls).trouble() for seed in range(first, first + FAMILY))
    return Family(tuple(each), together=False)


class Draws:
    """Draws from one seed, one after the other."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def number(self, most: int) -> int:
        """Draw a number from 1 to `most`."""
        return int(self.random() * most) + 1

    def one_of(self, things: tuple[T, ...]) -> T:
        return things[int(self.random() * len(things))]

    def rolls(self) -> dict[str, Any]:
        """Draw when a process closes a roll. A segment has 3 to 7 bytes."""
        return {"closes_every": self.one_of((1, 2, 2, 3, 9)), "roll_bytes": self.one_of((1, 8, 13, 1000, 1000, 1000))}


class _Drawing(Draws):
    def __init__(self, seed: int, *, rolls: bool) -> None:
        super().__init__(seed)
        self._seed = seed
        self._kinds: tuple[str, ...] = (self.one_of(SENDING),)
        if self.chance(0.07):
            self._kinds += (self.one_of(SENDING),)
        family = seed // FAMILY
        if family % _HOLDING_EVERY == 0:
            self._kinds = (HOLDING, *self._kinds[1:])
        if family % (2 * _HOLDING_EVERY) == _HOLDING_EVERY // 2:
            self._kinds = (COMMITTING, *self._kinds[1:])
        self._forgets = family % (3 * _HOLDING_EVERY) == 0
        collects = self.chance(0.2)
        self._batches = self.one_of(_COLLECTED if collects else _BATCHES)
        self._chunk_rows = self.one_of(_CHUNK_ROWS)
        self._retention = 1 if collects else 200
        self._disorder = self.number(1000) if self.chance(0.3) else 0
        self._two_looks = self.chance(0.15)
        self._uneven = self.chance(0.15)
        self._rolls = rolls or family % (2 * _HOLDING_EVERY) == 9
        if self._rolls:
            self._kinds = (ROLLING[family // 12 % 2], *self._kinds[1:])
            self._batches = self.one_of(ROLLED_BATCHES)
            self._forgets = family // 24 % 3 == 0

    def trouble(self) -> Plan:
        """A history in which anything may happen."""
        chance = self.random()
        if chance < 0.42:
            acts: tuple[tuple[LifePlan, ...], ...] = ((self._troubled(),),)
        elif chance < 0.5:
            acts = ((self._troubled(),), (self._troubled(),))
        else:
            acts = (self._meeting(),) if chance < 0.95 else ((self._troubled(),), self._meeting())
        return self._plan(acts, self._last(), self._seed)

    def deaths(self) -> tuple[Plan, ...]:
        """One history, with a death after different effects."""
        before = ((self._troubled(),),) if self.chance(0.12) else ()
        life, last = self._life(()), self._last()
        effects = 8 + 12 * len(self._batches)
        first = self.number(effects)
        plans = []
        for number in range(FAMILY):
            effect = 1 + (first + number * effects // FAMILY) % effects
            death = replace(life, faults=(Fault(Deed.CRASH, At(effect, "after")),))
            plans.append(self._plan((*before, (death,)), last, self._seed + number))
        return tuple(plans)

    def _plan(self, acts: tuple[tuple[LifePlan, ...], ...], last: LifePlan, seed: int) -> Plan:
        return Plan(
            kinds=self._kinds,
            batches=self._batches,
            acts=acts,
            last=last,
            seed=seed,
            disorder=self._disorder,
            two_looks=self._two_looks,
            uneven=self._uneven,
            forgets=self._forgets,
            **drawn_by_number(self._seed // FAMILY),
        )

    def _last(self) -> LifePlan:
        return LifePlan(
            chunk_rows=self._chunk_rows,
            retention=self._retention,
            sinks=len(self._kinds),
            lagging=self.chance(0.15),
            before=self._tamper(0.12),
            **self._drawn_rolls(),
        )

    def _troubled(self) -> LifePlan:
        """One process to which something happens."""
        faults: tuple[Fault, ...] = (self._fault(self.one_of(_TROUBLES)),)
        if self.chance(0.15):
            faults += (self._fault(self.one_of(_TROUBLES)),)
        return self._life(faults)

    def _meeting(self) -> tuple[LifePlan, ...]:
        """Two processes that stand still in turns. The later one may die."""
        first: tuple[Fault, ...] = (self._fault(Deed.PAUSE),)
        second: tuple[Fault, ...] = (self._fault(Deed.PAUSE),) if self.chance(0.8) else ()
        if self.chance(0.3):
            first += (self._fault(Deed.PAUSE),)
        if self.chance(0.15):
            second += (self._fault(Deed.CRASH),)
        return (
            self._life(first, stages=self.chance(0.93)),
            self._life(second, stages=self.chance(0.8), before=self._tamper(0.12)),
        )

    def _life(self, faults: tuple[Fault, ...], *, stages: bool = True, before: Tamper | None = None) -> LifePlan:
        restarts = self.chance(0.06)
        return LifePlan(
            faults=faults,
            chunk_rows=self.number(4) if self.chance(0.15) else self._chunk_rows,
            retention=self._retention,
            sinks=0 if self.chance(0.03) else self.number(len(self._kinds)),
            stages=stages,
            lagging=self.chance(0.15),
            before=before,
            restarts=restarts,
            restart=self._tamper(0.6) if restarts else None,
            **self._drawn_rolls(),
        )

    def _drawn_rolls(self) -> dict[str, Any]:
        return self.rolls() if self._rolls else {}

    def _fault(self, deed: Deed) -> Fault:
        if deed is Deed.LOSE or deed is Deed.LEAVE:
            return Fault(deed, At(self.number(12)))
        size = self.number(40) if deed is Deed.FULL else self.number(2000) if deed is Deed.DELAY else 0
        what, where, most = self.one_of(_STEPS)
        return Fault(deed, At(self.number(most or 24 + 34 * len(self._batches)), what, where), size)

    def _tamper(self, probability: float) -> Tamper | None:
        if not self.chance(probability):
            return None
        return Tamper(self.one_of(_TAMPERINGS), self.number(len(self._batches)) - 2)

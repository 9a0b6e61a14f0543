"""Drawing a plan in which targets lose what they acknowledged. Its seeds are not those of `drawing`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.histories.drawing import FAMILY, ROLLED_BATCHES, Draws, Family, drawn_by_number, often
from tests.simulation.histories.plans import COMMITTING, ROLLED, SENDING, At, Deed, Fault, LifePlan, Plan, Shape

_BATCHES: tuple[Shape, ...] = often(
    (((4,),), 6),
    (((3, 2),), 10),
    (((2, 2, 3),), 4),
    (((2,), (3,)), 8),
    (((3, 1), (2,)), 8),
    (((1,), (2, 2)), 6),
    (((3, 2), (2, 1)), 8),
    (((2,), (), (2, 1)), 3),
    (((1,), (2,), (1,)), 4),
)
_COLLECTED: tuple[Shape, ...] = often((((3,), (1,), (1,)), 4), (((2, 1), (3,), (1, 1), (2,)), 3))
"""Batches that are collected, with a retention of one batch."""

_WHERE: tuple[tuple[str, str, int], ...] = often(
    (("", "", 0), 12),
    (("before last", "", 6), 14),
    (("before sink", "", 6), 14),
    (("after sink", "", 6), 16),
    (("before create", "/markers/", 3), 8),
    (("after create", "/markers/", 3), 2),
    (("read", "terms/", 8), 6),
    (("create", "/dead-letters/", 4), 8),
    (("after create", "release.json", 3), 1),
    (("create", "commits/", 3), 1),
)
"""Kinds of points, as `_STEPS` of `drawing`."""
_OF_COMMITS: tuple[tuple[str, str, int], ...] = often(
    (("", "", 0), 12),
    (("before position", "", 6), 16),
    (("before prepare", "", 4), 2),
    (("before sink", "", 4), 12),
    (("after sink", "", 4), 14),
    (("before create", "/markers/", 3), 10),
    (("after create", "/markers/", 3), 4),
    (("read", "terms/", 8), 6),
)
"""The same where a sink commits whole batches."""
_LOSSES: tuple[Deed, ...] = often((Deed.FORGET, 5), (Deed.FORGET_SLOT, 3), (Deed.REPLACE, 3))
_LOSSES_OF_COMMITS: tuple[Deed, ...] = often((Deed.FORGET, 4), (Deed.RESTORE, 5), (Deed.REPLACE, 3))
_SIZES: tuple[int, ...] = often((1, 12), (2, 5), (3, 2), (99, 1))
_OTHER_DEEDS: tuple[Deed, ...] = often((Deed.CRASH, 5), (Deed.FAIL, 6), (Deed.LOSE, 2), (Deed.LEAVE, 3))
_FAILING: tuple[tuple[str, str, int], ...] = often((("last", "", 6), 4), (("sink", "", 6), 4), (("", "", 0), 4))


def draw_losing(seed: int) -> Plan:
    """The plan of one history with a transactional sink."""
    return _Drawing(seed).plan()


def draw_losing_commits(seed: int) -> Plan:
    """The plan of one history with a commit sink."""
    return _CommitDrawing(seed).plan()


def draw_losing_family(number: int, *, commits: bool = False) -> Family:
    """Draw consecutive seeds, of `commits` or of transactional sinks. Each is drawn and played by itself."""
    draw, seeds = draw_losing_commits if commits else draw_losing, range(number * FAMILY, (number + 1) * FAMILY)
    return Family(tuple(draw(seed) for seed in seeds), together=False)


class _Drawing(Draws):
    where, failing, losses, stream = _WHERE, _FAILING, _LOSSES, "losing"
    forgotten = 0.12
    """How often the last process finds a loss at its start."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"{self.stream} {seed}")
        self._seed = seed
        collects = self.chance(0.2)
        self._batches = self.one_of(_COLLECTED if collects else _BATCHES)
        self._retention = 1 if collects else 200
        self._chunk_rows = self.one_of((1, 2, 2, 3))
        self._kinds: tuple[str, ...] = ("transactional",)
        if self.chance(0.1):
            self._kinds += (self.one_of(SENDING),)

    def plan(self) -> Plan:
        chance = self.random()
        if chance < 0.5:
            acts: tuple[tuple[LifePlan, ...], ...] = ((self._losing(),),)
        elif chance < 0.65:
            acts = ((self._losing(),), (self._losing(),))
        else:
            acts = (self._meeting(),)
        return Plan(
            kinds=self._kinds,
            batches=self._batches,
            acts=acts,
            last=self._life((), forgotten=self.forgotten),
            seed=self._seed,
            disorder=self.number(1000) if self.chance(0.2) else 0,
            uneven=self.chance(0.15),
            refusing=self.number(2) if self.chance(0.25) else 0,
            **drawn_by_number(self._seed),
        )

    def _losing(self) -> LifePlan:
        """One process whose targets forget while it runs."""
        faults = self._losses()
        if self.chance(0.35):
            faults += (self._other_fault(),)
        return self._life(faults, stages=self.chance(0.95), forgotten=0.05)

    def _meeting(self) -> tuple[LifePlan, ...]:
        """Two processes that stand still in turns. The target of at least one of them forgets."""
        pause = Fault(Deed.PAUSE, self._at())
        first = (pause, *self._losses()) if self.chance(0.6) else (pause,)
        second = self._losses() if len(first) == 1 or self.chance(0.4) else ()
        if self.chance(0.5):
            second += (Fault(Deed.PAUSE, self._at()),)
        return self._life(first, forgotten=0.0), self._life(second, stages=self.chance(0.8), forgotten=0.1)

    def _life(self, faults: tuple[Fault, ...], *, forgotten: float, stages: bool = True) -> LifePlan:
        return LifePlan(
            faults=faults,
            chunk_rows=self._chunk_rows,
            retention=self._retention,
            sinks=len(self._kinds),
            stages=stages,
            lagging=self.chance(0.15),
            forgotten=self.one_of(_SIZES) if self.chance(forgotten) else 0,
            **self._drawn_by_kind(),
        )

    def _drawn_by_kind(self) -> dict[str, Any]:
        return {}

    def _losses(self) -> tuple[Fault, ...]:
        many = 1 + self.chance(0.3) + self.chance(0.1)
        return tuple(Fault(self.one_of(self.losses), self._at(), self.one_of(_SIZES)) for _ in range(many))

    def _other_fault(self) -> Fault:
        deed = self.one_of(_OTHER_DEEDS)
        if deed is Deed.LOSE or deed is Deed.LEAVE:
            return Fault(deed, At(self.number(12)))
        return Fault(deed, self._at(self.one_of(self.failing)) if deed is Deed.FAIL else self._at())

    def _at(self, where: tuple[str, str, int] | None = None) -> At:
        what, place, most = where or self.one_of(self.where)
        return At(self.number(most or 30 + 40 * len(self._batches)), what, place)


class _CommitDrawing(_Drawing):
    where, failing, losses, stream = _OF_COMMITS, _OF_COMMITS, _LOSSES_OF_COMMITS, "losing commits"
    forgotten = 0.3

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._rolls = self.chance(0.3)
        self._kinds = (ROLLED + COMMITTING if self._rolls else COMMITTING, *self._kinds[1:])
        if self._rolls:
            self._batches = self.one_of(ROLLED_BATCHES)

    def _losing(self) -> LifePlan:
        """Often the loss falls between a commit and its marker: no answer came, or the process died."""
        life, number = super()._losing(), self.number(len(self._batches))
        if self.chance(0.5):
            return life
        at = At(number, "after sink")
        if self.chance(0.4):
            return replace(life, faults=(Fault(Deed.CRASH, at),))
        loss = Fault(self.one_of(self.losses), At(number + 1, "before position"), self.one_of(_SIZES))
        return replace(life, faults=(Fault(Deed.FAIL, at), loss))

    def _drawn_by_kind(self) -> dict[str, Any]:
        lost_by = {"forgotten_by": self.one_of((Deed.FORGET, Deed.RESTORE))}
        return {**lost_by, **self.rolls()} if self._rolls else lost_by

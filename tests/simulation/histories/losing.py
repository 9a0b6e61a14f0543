"""Objects that vanish from a WAL between two lives, and families of histories in which they do.

A life-cycle rule deletes the eldest objects first. A copy that was not whole lacks a folder, or one kind of object.
What is lost is drawn from a number of its own, so that all other histories stay what they were.

Not played, since nothing that is left could tell: a WAL of which nothing is left at all, which is a new one; and a
record of which everything younger is gone as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from tests.simulation.histories.drawing import FAMILY, draw
from tests.simulation.histories.plans import LifePlan, Losable, Plan
from tests.simulation.histories.stores import Space


class Losing(StrEnum):
    """How objects get lost."""

    EXPIRED = "expired, the eldest first"
    PART = "not copied"


PARTS: tuple[str, ...] = (
    "wal.json",
    "sinks/default/sink.json",
    "sinks/*/sink.json",
    "sinks/*",
    "terms/*",
    "terms/committer-*",
    "terms/stager/*",
    "low-water/*",
    "sinks/*/markers/*",
    "batches/*0/*",
    "batches/*1/*",
    "batches/*",
    "batches/*/manifest-*",
)
"""Patterns of what a copy may lack; a `*` stands for any folders too."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost, once, before a process starts."""

    how: Losing
    share: float = 0.0
    """Which part of the eldest objects has expired."""
    part: str = ""

    def doomed(self, paths: Sequence[str]) -> list[str]:
        """Of the paths of all objects, in the order in which they were made."""
        if self.how is Losing.PART:
            return [path for path in paths if fnmatchcase(path, self.part)]
        return list(paths[: int(self.share * len(paths))])


def lose(space: Space, loss: Losable) -> list[str]:
    """Take the objects; which were taken. The last one that is left stays, a probe's aside, which tells nothing."""
    paths = [path for path in space.objects if not path.startswith("probe/")]
    doomed = loss.doomed(paths)
    if len(doomed) == len(paths):
        doomed = doomed[:-1]
    for path in doomed:
        space.remove(path)
    return doomed


def drawn_losses(count: int, first: int = 0) -> Iterator[Plan]:
    """Histories as `draw` has them, in which objects are lost before one of the lives, or before the last."""
    for seed in range(first, first + count):
        yield with_loss(draw(seed * FAMILY), random.Random(seed))


def with_loss(plan: Plan, chance: random.Random) -> Plan:
    """A plan in which objects are lost once."""
    loss = _draw(chance)
    plan = replace(plan, starts_next=chance.random() < 0.5)
    at = chance.randrange(len(plan.acts) + 2)
    if at >= len(plan.acts):
        return replace(plan, last=replace(plan.last, loses=loss))
    acts = list(plan.acts)
    acts[at] = (*acts[at][:-1], _losing(acts[at][-1], loss))  # the last one of an act meets those that stand still
    return replace(plan, acts=tuple(acts))


def _losing(life: LifePlan, loss: Loss) -> LifePlan:
    return replace(life, loses=loss)


def _draw(chance: random.Random) -> Loss:
    if chance.random() < 0.5:
        return Loss(Losing.EXPIRED, share=chance.random())
    return Loss(Losing.PART, part=chance.choice(PARTS))

"""Objects that vanish from a WAL between two lives, and families of histories in which they do.

A life-cycle rule deletes the oldest objects first. An incomplete copy lacks a folder, or one kind of object. The loss
is drawn from a separate number, so that all other histories stay the same.

Two losses are not played, because no remaining object shows them. A WAL that lost every object is a new WAL. A record
may be lost together with all younger objects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.histories.drawing import FAMILY, draw
from tests.simulation.histories.plans import ROLLING, Losing, Loss, Plan
from tests.simulation.histories.stores import Space

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
"""Patterns of objects that a copy may lack. A `*` also matches folders."""
ROLL_PARTS: tuple[str, ...] = ("sinks/*/roll.json", "sinks/*/progress/*.parquet")
"""The same, of sinks that get rolls of batches."""


def lose(space: Space, loss: Loss) -> list[str]:
    """Take the objects. Returns their paths. One object always stays, apart from those of probes."""
    paths = [path for path in space.objects if not path.startswith("probe/")]
    doomed = loss.doomed(paths)
    if len(doomed) == len(paths):
        doomed = doomed[:-1]
    space.delete(doomed)
    return doomed


def drawn_losses(count: int, first: int = 0) -> Iterator[Plan]:
    """Draw histories as `draw` does, in which objects are lost before one of the lives."""
    for seed in range(first, first + count):
        yield with_loss(draw(seed * FAMILY), random.Random(seed))


def with_loss(plan: Plan, chance: random.Random) -> Plan:
    """A plan in which objects are lost once."""
    loss = _draw(chance, PARTS + ROLL_PARTS * 3 if plan.kinds[0] in ROLLING else PARTS)
    plan = replace(plan, starts_next=chance.random() < 0.5)
    at = chance.randrange(len(plan.acts) + 2)
    if at >= len(plan.acts):
        return replace(plan, last=replace(plan.last, loses=loss))
    acts = list(plan.acts)
    *before, last = acts[at]
    acts[at] = (*before, replace(last, loses=loss))  # the last life of an act meets those that stand still
    return replace(plan, acts=tuple(acts))


def _draw(chance: random.Random, parts: tuple[str, ...]) -> Loss:
    if chance.random() < 0.5:
        return Loss(Losing.EXPIRED, share=chance.random())
    return Loss(Losing.PART, part=chance.choice(parts))

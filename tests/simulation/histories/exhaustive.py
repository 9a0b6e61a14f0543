"""Every single and every double crash point of one run, for one kind of sink.

A process may die before or after any request and any call of its sink. Its effects so far decide which world it leaves.
Wherever it dies between two effects, the world is the same, and so is all that follows. So each effect stands for the
points up to the next one. Effects and points are both counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.histories.branching import Branching
from tests.simulation.histories.counting import without_collector
from tests.simulation.histories.plans import THREE_BATCHES, At, Deed, Fault, LifePlan, Plan, Shape
from tests.simulation.histories.playing import Playing, small_world
from tests.simulation.histories.world import HistoryWorld

AS_USUAL = LifePlan()

_EVERY = range(1, 1000)


@dataclass(slots=True)
class Crashes:
    """How many crash points were tried, and which laws broke."""

    kind: str = ""
    single: int = 0
    """Points at which the first process may die."""
    double: int = 0
    """Pairs of points at which the first and the second process may die."""
    worlds: int = 0
    """Different worlds that such deaths leave. A third process lived to its end in each."""
    violations: list[str] = field(default_factory=list)

    def note(self, playing: Playing, *effects: int) -> None:
        """Let one more process live to its end, in the world that is left after deaths at these effects."""
        self.worlds += 1
        self.violations += [
            f"{law}\n  see tests.simulation.histories.exhaustive.traced({self.kind!r}, {', '.join(map(str, effects))})"
            for law in playing.end().violations
        ]


def every_crash(kind: str, batches: Shape = THREE_BATCHES, each: LifePlan = AS_USUAL, **facts: Any) -> Crashes:
    """Try every crash point. `each` is the plan of every life; `facts` are other fields of `Plan`."""
    plan = Plan(kinds=(kind,), batches=batches, acts=(), last=each, **facts)
    crashes = Crashes(kind)
    with small_world(), without_collector():
        for first, world, points in _deaths(HistoryWorld(plan)):
            crashes.single += points
            for second, left, more in _deaths(world.branch(plan)):
                crashes.double += points * more
                crashes.note(Playing(left), first, second)
            crashes.note(Playing(world), first)
    return crashes


def traced(kind: str, *effects: int, batches: Shape = THREE_BATCHES, each: LifePlan = AS_USUAL) -> list[str]:
    """Replay one of them point by point, to look into a violation."""
    plan = Plan(kinds=(kind,), batches=batches, acts=(), last=each)
    playing = Playing(HistoryWorld(plan, traced=True))
    with small_world():
        for effect in effects:
            playing.alone(replace(each, faults=(Fault(Deed.CRASH, At(effect, "after")),)))
        return playing.end().trace


def _deaths(world: HistoryWorld) -> Iterator[tuple[int, HistoryWorld, int]]:
    """Play one life, and yield each of its effects, the world after it, and for how many points it stands.

    Effect 0 is the birth of the process: it may die before it did anything.
    """
    born = world.branch(world.plan)
    branching = Branching(world, dict.fromkeys(_EVERY, world.plan))
    life = Playing(world).alone(world.plan.last, branching)
    at = [0, *branching.points, life.points + 1]
    for effect, left in enumerate([born, *branching.worlds.values()]):
        yield effect, left, at[effect + 1] - at[effect]

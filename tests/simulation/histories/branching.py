"""A life that dies at several points. It is played once, and the world is copied at each of these points.

The seed decides everything, so a process that dies later has done the same until then. A process that dies between two
effects leaves the same world wherever it dies. So only the points right after an effect matter.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.histories.lives import HistoryProcess
from tests.simulation.histories.plans import Plan
from tests.simulation.histories.world import HistoryWorld


class Branching:
    """Counts the effects of a life, and keeps a copy of the world after some of them."""

    def __init__(self, world: HistoryWorld, plans: Mapping[int, Plan]) -> None:
        self._world = world
        self._plans = plans
        self._effects = 0
        self.worlds: dict[int, HistoryWorld] = {}
        """Copies of the world, by the number of the effect."""
        self.points: list[int] = []
        """The number of the point right after each effect."""

    def __call__(self, process: HistoryProcess, what: str, _: str) -> None:
        """Pass a point, as a hook of the process."""
        if not what.startswith("after"):
            return
        self._effects += 1
        self.points.append(process.passed)
        plan = self._plans.get(self._effects)
        if plan is not None:
            world = self.worlds[self._effects] = self._world.branch(plan)
            world.died(what)

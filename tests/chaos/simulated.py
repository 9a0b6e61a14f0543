"""Simulated histories by the million, and every double crash: no Spark, no disk, all cores."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.simulation.histories.counting import Count, play_on_all_cores
from tests.simulation.histories.exhaustive import every_crash
from tests.simulation.histories.plans import KINDS, THREE_BATCHES, LifePlan, Shape

SEEDS = 1_000_000_000
"""The distance between the seeds of two efforts."""
MILLIONS = 10
"""The number of scenarios of a million histories. Each takes half an hour."""

_RUNS: dict[str, tuple[Shape, LifePlan]] = {
    "three batches": (THREE_BATCHES, LifePlan()),
    "delivered only at the end": (THREE_BATCHES, LifePlan(lagging=True)),
    "four batches, collected": (((3,), (1,), (2, 1), (1,)), LifePlan(retention=1)),
}


@dataclass(frozen=True, slots=True)
class Histories:
    """A million histories whose seeds no other scenario has, or as many of them as time allows."""

    number: int

    def __call__(self, effort: Effort) -> Outcome:
        wanted = effort.times(1_000_000, least=500)
        total = Count()
        for portion in play_on_all_cores(effort.seed * SEEDS + self.number * 1_000_000, wanted):
            total.add(portion)
            if effort.is_over:
                break
        happened = ", ".join(f"{name} {times}" for name, times in total.touched.most_common())
        of_wanted = f"ended by the clock, of {wanted:,} wanted; " if total.histories < wanted else ""
        return Outcome(
            rounds=total.histories,
            violations=total.complaints(),
            detail=f"{of_wanted}{total.per_second:.0f} histories/s/core; histories with {happened}",
        )


def double_crashes(effort: Effort) -> Outcome:
    """Play every two crashes of several runs, for every kind of sink. A small share plays only the first run."""
    outcome, pairs = Outcome(), 0
    for batches, each in list(_RUNS.values())[: effort.times(len(_RUNS))]:
        for kind in KINDS:
            crashes = every_crash(kind, batches, each)
            outcome.rounds += crashes.single + crashes.double
            outcome.violations += crashes.violations
            pairs += crashes.double
    outcome.detail = f"{pairs} pairs of crash points; runs: {', '.join(_RUNS)}"
    return outcome


SCENARIOS = [
    Scenario(
        "every double crash", "I1 to I8 hold for any two points at which a run dies", "crash point", double_crashes
    ),
    *(
        Scenario(f"simulated histories, {number} of {MILLIONS}", "I1 to I8 hold", "history", Histories(number))
        for number in range(1, MILLIONS + 1)
    ),
]

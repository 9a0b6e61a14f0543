"""Simulated histories by the million, and every double crash: no Spark, no disk, all cores."""

from __future__ import annotations

from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.simulation.histories.counting import Count, play_on_all_cores
from tests.simulation.histories.exhaustive import THREE_BATCHES, every_crash
from tests.simulation.histories.plans import KINDS, LifePlan, Shape

SEEDS = 1_000_000_000
"""How far the seeds of two efforts lie apart."""

_RUNS: dict[str, tuple[Shape, LifePlan]] = {
    "three batches": (THREE_BATCHES, LifePlan()),
    "delivered only at the end": (THREE_BATCHES, LifePlan(lagging=True)),
    "four batches, collected": (((3,), (1,), (2, 1), (1,)), LifePlan(retention=1)),
}


def histories(effort: Effort) -> Outcome:
    """Histories of seeds that only this effort has; as many as there is time for."""
    wanted = effort.times(10_000_000, least=2000)
    total = Count()
    for portion in play_on_all_cores(effort.seed * SEEDS, wanted):
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
    """Every two crashes of several runs, for every kind of sink; a part of the whole takes the first run alone."""
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
    Scenario("simulated histories", "I1 to I8 hold in every history", "history", histories),
    Scenario("every double crash", "I1 to I8 hold whatever two points a run dies at", "crash point", double_crashes),
]

"""Processes that die at every half-step of naming an object: between fsync and link, and right after the link."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from tests.chaos.dying import HalfSteps
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.small_lives import BATCHES, WINDOW_ROWS, Ground, counted, live
from tests.support.forked import ForkedChild

DEATHS = 2
"""The number of lives that die: the first at its point, the second soon after it began to recover. A third survives."""
SOON = 20
LIMIT_S = 120.0


def killed_at_links(effort: Effort) -> Outcome:
    """Play one short history for each half-step of an undisturbed life, or for a sample of these."""
    effort.folder.mkdir(parents=True, exist_ok=True)
    steps = _run(effort.folder / "without-trouble", random.Random(0))[1]
    points = sorted(random.Random(effort.seed).sample(range(1, steps + 1), effort.times(steps, least=4)))
    outcome, deaths = Outcome(rounds=len(points)), 0
    for point in points:
        folder, what = effort.folder / f"point-{point}", f"seed {effort.seed}, half-step {point}"
        died = _deaths(folder, point, random.Random(effort.seed * 1_000_003 + point))
        deaths += died
        counted(outcome, Ground.below(folder), BATCHES, what, allowed=died * WINDOW_ROWS)
        if died == 0:
            outcome.violations.append(f"{what}: no process died there")
    outcome.detail = (
        f"- an undisturbed life of {BATCHES} batches has {steps} half-steps; {len(points)} of them were tried, "
        f"with {deaths} deaths, including those of recovering processes"
    )
    return outcome


def _deaths(folder: Path, point: int, chance: random.Random) -> int:
    """Run the lives of one history. Return how many of them died. The last one has to finish."""
    sooner = [point, *(chance.randint(1, SOON) for _ in range(DEATHS - 1)), 0]
    codes = [_run(folder, random.Random(chance.random()), deadly)[0] for deadly in sooner]
    assert codes[-1] == 0, f"half-step {point}: the lives ended with {codes}"
    assert set(codes) <= {0, -signal.SIGKILL}, f"half-step {point}: the lives ended with {codes}"
    return codes.count(-signal.SIGKILL)


def _run(folder: Path, chance: random.Random, deadly: int = 0) -> tuple[int, int]:
    """Run one life. Return its exit code, and its half-steps if it finished."""
    folder.mkdir(exist_ok=True)
    with ForkedChild(_live, folder, chance, deadly, log=folder.with_suffix(".log"), limit_s=LIMIT_S) as child:
        code = child.wait()
        return code, int(child.output.rpartition("passed ")[2]) if code == 0 else 0


def _live(folder: Path, chance: random.Random, deadly: int) -> None:
    """Live, and die at one half-step. Runs in the child process."""
    steps = HalfSteps(deadly)
    steps.watch()
    live(Ground.below(folder), BATCHES, chance)
    print("passed", steps.passed)  # noqa: T201 - read by the process that started this one


SCENARIO = Scenario(
    "killed around a link",
    "if a process dies just before or just after the link that names an object, no row is lost, and repeats stay "
    "within the permitted number",
    "half-step",
    killed_at_links,
)

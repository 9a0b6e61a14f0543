"""Processes that die at every half-step of naming an object: between fsync and link, and right after the link.

Run as `python -m tests.chaos.deaths FOLDER SEED POINT …`. It forks a process for each life, which saves starting time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.chaos.dying import HalfSteps
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.small_lives import BATCHES, WINDOW_ROWS, Ground, counted, live
from tests.support.processes import Child

DEATHS = 2
"""The number of lives that die: the first at its point, the second soon after it began to recover. A third survives."""
SOON = 20
LIMIT_S, LIMIT_A_POINT_S = 120.0, 8.0


def killed_at_links(effort: Effort) -> Outcome:
    """Play one short history for each half-step of an undisturbed life, or for a sample of these."""
    effort.folder.mkdir(parents=True, exist_ok=True)
    steps = _run(effort, [])[0]
    chance = random.Random(effort.seed)
    points = sorted(chance.sample(range(1, steps + 1), effort.times(steps, least=4)))
    deaths = _run(effort, points)
    outcome = Outcome(rounds=len(points))
    for point, died in zip(points, deaths, strict=True):
        ground = Ground.below(effort.folder / f"point-{point}")
        what = f"seed {effort.seed}, half-step {point}"
        counted(outcome, ground, BATCHES, what, allowed=died * WINDOW_ROWS)
        if died == 0:
            outcome.violations.append(f"{what}: no process died there")
    outcome.detail = (
        f"- an undisturbed life of {BATCHES} batches has {steps} half-steps; {len(points)} of them were tried, "
        f"with {sum(deaths)} deaths, including those of recovering processes"
    )
    return outcome


def _run(effort: Effort, points: list[int]) -> list[int]:
    """Return the number of deaths at each point. Without points, return the half-steps of an undisturbed life."""
    args = [str(effort.folder), str(effort.seed), *map(str, points)]
    limit_s = LIMIT_S + LIMIT_A_POINT_S * len(points)
    with Child.python(Path(__file__), *args, log=effort.folder / f"lives-{len(points)}.log", limit_s=limit_s) as child:
        output = child.succeed()
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith("found ")]


def main() -> None:
    """Live and die once for each point. Runs in the child process."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    points = [int(point) for point in sys.argv[3:]]
    if not points:
        _forked(lambda: _say_half_steps(Ground.below(_made(folder / "without-trouble"))))
    for point in points:
        ground = Ground.below(_made(folder / f"point-{point}"))
        chance = random.Random(seed * 1_000_003 + point)
        sooner = [point, *(chance.randint(1, SOON) for _ in range(DEATHS - 1)), 0]
        codes = [_forked(_life(ground, chance.random(), deadly)) for deadly in sooner]
        if codes[-1] != 0 or set(codes) - {0, -signal.SIGKILL}:
            sys.exit(f"half-step {point}: the lives ended with {codes}")
        _found(codes.count(-signal.SIGKILL))


def _life(ground: Ground, seed: float, deadly: int) -> Callable[[], None]:
    def lived() -> None:
        HalfSteps(deadly).watch()
        live(ground, BATCHES, random.Random(seed))

    return lived


def _say_half_steps(ground: Ground) -> None:
    steps = HalfSteps()
    steps.watch()
    live(ground, BATCHES, random.Random(0))
    _found(steps.passed)


def _forked(life: Callable[[], None]) -> int:
    """Run a life in a forked process and return its exit code. No thread runs here that the fork could lose."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        life()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child must never go on as its parent
        traceback.print_exc()
        os._exit(1)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _found(number: int) -> None:
    print("found", number, flush=True)  # noqa: T201 - read by the process that started this one


SCENARIO = Scenario(
    "killed around a link",
    "if a process dies just before or just after the link that names an object, no row is lost, and repeats stay "
    "within the permitted number",
    "half-step",
    killed_at_links,
)

if __name__ == "__main__":
    main()

"""`make chaos`: runs every scenario in turn and writes the report. Run as `python -m tests.chaos`."""

from __future__ import annotations

import argparse
import importlib
import math
import random
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.report import Report, Row, code_version, read_rows, save_rows
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.processes import CHECKOUT

MODULES = (
    "races",
    "corruption",
    "s3_faults",
    "store_faults",
    "store_kills",
    "replays",
    "disks",
    "backends",
    "changes",
    "forgetful_targets",
    "restored_targets",
    "orphans",
    "processes",
    "connect",
    "simulated",
)
"""Modules with a list `SCENARIOS`. The modules that take longest come last."""
OUT = CHECKOUT / "benchmarks" / "CHAOS.md"
PARTIAL = CHECKOUT / ".cache" / "chaos" / "CHAOS.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenarios. Return 0 if all that ran hold, 1 if one does not, 2 for wrong arguments."""
    scenarios = all_scenarios()
    options = _parser(scenario.name for scenario in scenarios).parse_args(argv)
    scenarios = [scenario for scenario in scenarios if scenario.name in (options.only or [scenario.name])]
    command = shlex.join(["python", "-m", "tests.chaos", *(sys.argv[1:] if argv is None else argv)])
    out = options.out or (OUT if options.share >= 1 and not options.only else PARTIAL)
    state = out.with_suffix(".json")
    earlier = read_rows(state) if options.resume else []
    seed = options.seed
    if seed is None:
        seed = earlier[0].seed if earlier else random.SystemRandom().randrange(1 << 20)
    report = Report(scenarios, command, seed, options.share)
    report.resume(earlier)
    deadline_s = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    for scenario in scenarios:
        if scenario.name in report.rows:
            continue
        if time.monotonic() > deadline_s:
            break
        report.rows[scenario.name] = _run(scenario, seed, options.share, deadline_s)
        report.write(out)
        save_rows(report.rows.values(), state)
    report.write(out)
    _say(f"\n{len(report.rows)} of {len(scenarios)} scenarios run; seed {seed}; report: {out}")
    for row in report.failed:
        _say(f"FAILED: {row.name}, seed {seed}: {'; '.join(row.violations) or 'see the report'}")
    return 1 if report.failed else 0


def all_scenarios() -> list[Scenario]:
    """Return every scenario that exists."""
    modules = [importlib.import_module(f"tests.chaos.{name}") for name in MODULES]
    return [scenario for module in modules for scenario in module.SCENARIOS]


def _run(scenario: Scenario, seed: int, share: float, deadline_s: float) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="wal-sink-chaos-"))
    date, code = f"{datetime.now(UTC):%Y-%m-%d}", code_version()
    _say(f"{scenario.name}: …")
    began = time.monotonic()
    try:
        outcome = scenario.run(Effort(seed=seed, folder=folder, share=share, deadline_s=deadline_s))
    except Exception as error:  # noqa: BLE001 - the other scenarios must run, and the report must say so
        traceback.print_exc()
        outcome = Outcome(violations=[f"it ended with {type(error).__name__}: {error}"])
    seconds = time.monotonic() - began
    told = {**asdict(outcome), "holds": outcome.holds, "seconds": round(seconds, 1)}
    row = Row(name=scenario.name, share=share, seed=seed, **told, date=date, code=code)
    if row.holds:
        shutil.rmtree(folder, ignore_errors=True)
    kept_in = "" if row.holds else f"; its files are in {folder}"
    _say(
        f"{scenario.name}: {'holds' if row.holds else 'DOES NOT HOLD'}: rounds: {row.rounds} ({scenario.unit}), "
        f"lost {row.lost}, repeated {row.repeated} of {row.allowed} permitted, {row.seconds:.0f} s{kept_in}"
    )
    return row


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


def _parser(names: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="the part of the whole to run, e.g. 0.05")
    parser.add_argument("--seed", type=int, help="repeats the choices of a run; default: drawn, and reported")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(names), help="scenarios to run")
    parser.add_argument(
        "--out", type=Path, help="the report; default: benchmarks/CHAOS.md for a whole run, else in .cache/chaos"
    )
    parser.add_argument("--minutes", type=float, help="after so many minutes begin no scenario, and end the histories")
    parser.add_argument("--resume", action="store_true", help="run only what did not hold before; keeps the other rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())

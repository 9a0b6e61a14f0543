"""`python -m benchmarks`: measure all contestants, write RESULTS.md. `--report` only rewrites it from their numbers."""

from __future__ import annotations

import argparse
import faulthandler
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from benchmarks.backends import Backends
from benchmarks.contests import FEWER_ROUNDS, KEYS, LAKE_KEYS, OBJECT_KEYS, UNITS, Sides, contests
from benchmarks.figures import DOCUMENTS, PLOTS, write_figures
from benchmarks.flink import Flink, flink_jars
from benchmarks.lakes import LakeContests
from benchmarks.machine import machine
from benchmarks.measure import Bout, Contest, Deadline
from benchmarks.object_stores.contestants import ObjectContests
from benchmarks.object_stores.store import ObjectStore
from benchmarks.ours import Ours
from benchmarks.report import write_report
from benchmarks.results import HERE, LAKES_JSON, OBJECTS_JSON, RESULTS_JSON, Results
from benchmarks.session import CHECKOUT, Session
from benchmarks.sizes import FULL, QUICK, SIZES, TINY, Sizes
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import write_workloads

CACHE = CHECKOUT / ".cache" / "bench"
NO_FLINK = "Flink was not measured: its jars or a Java compiler were missing"
BUSY = ": the machine had other work, which influences these numbers"
GRACE_MINUTES = 0.5
"""After its time is over, a run may finish the current measurement for this long. Then it is killed, and its last round
is not saved."""
FLINK_CONTESTS = {"null", "csv"}
FLINK_WARM_UP_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run."""

    sizes: Sizes
    rounds: int | None = None
    """None: the number that belongs to the size, fewer for contests without a target."""
    only: tuple[str, ...] = KEYS
    """Keys of contests: all of one run, or some of them."""
    event_log: Path | None = None

    @property
    def keys(self) -> set[str]:
        return set(self.only)

    @property
    def file(self) -> str:
        """The name of the file for its results."""
        if self.keys & set(LAKE_KEYS):
            return LAKES_JSON
        return OBJECTS_JSON if self.keys & set(OBJECT_KEYS) else RESULTS_JSON

    @property
    def fewer(self) -> dict[str, int]:
        return {} if self.rounds else dict.fromkeys(FEWER_ROUNDS, self.sizes.rounds_without_target)


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    out = Path(options.out)
    if not options.report:
        out.mkdir(parents=True, exist_ok=True)
        log = Path(options.event_log).absolute() if options.event_log else None
        only = tuple(options.only) or options.keys
        plan = Plan(SIZES[options.size], options.rounds, only, log)
        measure(plan, _command(argv), lambda results: results.save(out / plan.file))
    runs = Results.load_all(out)
    is_committed = out.resolve() == HERE
    write_report(runs, out, PLOTS if is_committed else out / "plots")
    print(f"written: {out / 'RESULTS.md'}")
    if is_committed:
        write_figures(runs, CHECKOUT)
        print(f"written: the plots in {PLOTS.relative_to(CHECKOUT)}, the figures in {' and '.join(DOCUMENTS)}")


def measure(plan: Plan, command: str, save: Callable[[Results], None]) -> None:
    """Do one whole run; write its results after each round. The scratch folder, on this disk, is removed at the end."""
    sizes = plan.sizes
    deadline = Deadline(sizes.minutes)
    faulthandler.dump_traceback_later((sizes.minutes + GRACE_MINUTES) * 60, exit=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=CACHE))
    load = os.getloadavg()[0]
    began = Results(sizes.name, machine(), date=datetime.now(UTC).date().isoformat(), command=command)
    with ExitStack() as stack:
        stack.callback(faulthandler.cancel_dump_traceback_later)
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        sides = _sides(plan, scratch, stack)
        chosen, absent = _present(plan, sides, scratch)
        notes = [f"load before the run: {load:.1f}{BUSY if load > 1 else ''}", *absent]
        if sizes.warm_up:
            _warm_up(sides, scratch, {contest.key for contest in chosen})
        bout, rounds = Bout(chosen, scratch, deadline), plan.rounds or sizes.rounds

        def keep(done: int) -> None:
            ended = [] if done == rounds else [f"the run ended early: after {done} of {rounds} rounds"]
            late = [f"left out for lack of time: {one}" for one in bout.skipped]
            save(began.with_measured(chosen, bout.measured.values(), [*notes, *ended, *late]))

        bout.run(rounds, fewer=plan.fewer, after_round=keep)


def _sides(plan: Plan, scratch: Path, stack: ExitStack) -> Sides:
    """The contestants' sides. Only Flink is started here, and only if one of its contests was chosen."""
    session = Session(scratch, plan.event_log)
    stack.callback(session.stop)
    jars = flink_jars() if plan.keys & FLINK_CONTESTS else None
    flink = None if jars is None else stack.enter_context(Flink(jars, scratch))
    backends = Backends()
    stack.callback(backends.close)
    objects = ObjectStore()
    stack.callback(objects.close)
    return Sides(
        Ours(session), SparkRivals(session), flink, backends, ObjectContests(session, objects), LakeContests(session)
    )


def _present(plan: Plan, sides: Sides, scratch: Path) -> tuple[list[Contest], list[str]]:
    """The chosen contests that can be measured here, and notes about the others."""
    work = write_workloads(scratch / "work", plan.sizes)
    wanted = [contest for contest in contests(sides, work, plan.sizes) if contest.key in plan.keys]
    missing = {contest.key: contest.missing() for contest in wanted}
    notes = [f"{key} was not measured: {why}" for key, why in missing.items() if why]
    notes += [NO_FLINK] if plan.keys & FLINK_CONTESTS and sides.flink is None else []
    return [contest for contest in wanted if not missing[contest.key]], notes


def _warm_up(sides: Sides, scratch: Path, chosen: set[str]) -> None:
    """Run everything once with little data, not measured: JVMs then have compiled, and workers have imported."""
    little = replace(TINY, table_rows=40_000, flight_rows=20_000, small_batches=3, logged_rows=2_000)
    work = write_workloads(scratch / "warm-up", little)
    keys = {key for key in chosen if "-flights" not in key}
    same = [contest for contest in contests(replace(sides, flink=None), work, little) if contest.key in keys]
    Bout(same, scratch, Deadline(little.minutes)).run(1, say=_silent)
    if sides.flink is not None and keys & FLINK_CONTESTS:
        sides.flink.warm_up(FLINK_WARM_UP_ROWS)


def _end(number: int, _: object) -> NoReturn:
    """Exit in order on SIGTERM, so that the run's servers end too."""
    sys.exit(128 + number)


def _silent(_: str) -> None:
    return


def _command(argv: list[str] | None) -> str:
    given = shlex.join(sys.argv[1:] if argv is None else argv)
    return f'make bench ARGS="{given}"' if given else "make bench"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const=QUICK.name, help="at most 5 minutes")
    size.add_argument("--size", choices=sorted(SIZES), help="the default takes up to 30 minutes")
    parser.set_defaults(size=FULL.name)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--object-stores",
        dest="keys",
        action="store_const",
        const=OBJECT_KEYS,
        default=KEYS,
        help="measure a log on S3, also with 40 ms an answer, and nothing else",
    )
    kind.add_argument(
        "--lakes", dest="keys", action="store_const", const=LAKE_KEYS, help="measure tables of lakes, and nothing else"
    )
    parser.add_argument("--rounds", type=int, help="rounds of every contest, instead of the number of the size")
    parser.add_argument(
        "--only", action="append", choices=UNITS, default=[], metavar="CONTEST", help="such as null; may be repeated"
    )
    parser.add_argument("--out", default=str(HERE), help="the folder of results.json and RESULTS.md")
    parser.add_argument("--report", action="store_true", help="measure nothing, rewrite RESULTS.md and figures")
    parser.add_argument("--event-log", metavar="FOLDER", help="folder for Spark's event log, for a profile")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()

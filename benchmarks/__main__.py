"""`python -m benchmarks`: measure everyone, write RESULTS.md. `--report` only writes it again from results.json."""

from __future__ import annotations

import argparse
import faulthandler
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.backends import Backends
from benchmarks.contests import backend_contests, contests
from benchmarks.flink import Flink, flink_jars
from benchmarks.machine import machine
from benchmarks.measure import Bout, Deadline
from benchmarks.ours import Ours
from benchmarks.report import write_report
from benchmarks.results import HERE, RESULTS_JSON, Results
from benchmarks.session import CHECKOUT, start_session
from benchmarks.sizes import FULL, QUICK, SIZES, TINY, Sizes
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import write_workloads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHE = CHECKOUT / ".cache" / "bench"
NO_FLINK = "Flink's jars or a Java compiler were not there: Flink was not measured"
BUSY = ": the machine had other work, which these numbers include"
GRACE_MINUTES = 0.5
"""After its time is over a run may finish what it is measuring; what hangs longer is ended, with nothing written."""
FLINK_CONTESTS = {"null", "csv"}
FLINK_WARM_UP_ROWS = 200_000


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    out = Path(options.out)
    if not options.report:
        results = measure(SIZES[options.size], rounds=options.rounds, only=options.only, event_log=options.event_log)
        out.mkdir(parents=True, exist_ok=True)
        results.save(out / RESULTS_JSON)
    write_report(Results.load(out / RESULTS_JSON), out)
    print(f"written: {out / 'RESULTS.md'}")


def measure(sizes: Sizes, *, rounds: int | None, only: list[str], event_log: str | None) -> Results:
    """One whole run, in a scratch folder on the disk of this checkout, which is removed at the end."""
    deadline = Deadline(sizes.minutes)
    faulthandler.dump_traceback_later((sizes.minutes + GRACE_MINUTES) * 60, exit=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=CACHE))
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        stack.callback(faulthandler.cancel_dump_traceback_later)
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        work = write_workloads(scratch / "work", sizes)
        spark = start_session(scratch, Path(event_log).absolute() if event_log else None)
        stack.callback(spark.stop)
        jars = flink_jars()
        flink = None if jars is None else stack.enter_context(Flink(jars, scratch))
        backends = Backends(sizes.backend_rows)
        stack.callback(backends.close)
        everything = [
            *contests(Ours(spark), SparkRivals(spark), flink, work, sizes),
            *backend_contests(backends),
        ]
        chosen = [contest for contest in everything if not only or contest.key in only]
        if sizes.warm_up:
            _warm_up(spark, flink, backends, scratch, {contest.key for contest in chosen})
        bout = Bout(chosen, scratch, deadline)
        bout.run(rounds or sizes.rounds)
        notes = [f"load before the run: {load:.1f}{BUSY if load > 1 else ''}", *([] if flink else [NO_FLINK])]
        notes += [f"left out for lack of time: {one}" for one in bout.skipped]
        return Results.of(sizes.name, machine(), chosen, list(bout.measured.values()), notes)


def _warm_up(spark: SparkSession, flink: Flink | None, backends: Backends, scratch: Path, chosen: set[str]) -> None:
    """Run everything once over little, uncounted: JVMs have compiled, workers have started and imported."""
    little = replace(TINY, table_rows=40_000, flight_rows=20_000, small_batches=3, logged_rows=2_000)
    work = write_workloads(scratch / "warm-up", little)
    keys = {key for key in chosen if "-flights" not in key}
    same = [*contests(Ours(spark), SparkRivals(spark), None, work, little), *backend_contests(backends)]
    Bout([contest for contest in same if contest.key in keys], scratch, Deadline(little.minutes)).run(1, say=_silent)
    if flink is not None and keys & FLINK_CONTESTS:
        flink.warm_up(FLINK_WARM_UP_ROWS)


def _silent(_: str) -> None:
    return


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const=QUICK.name, help="at most 5 minutes")
    size.add_argument("--size", choices=sorted(SIZES), help="the default takes up to 30 minutes")
    parser.set_defaults(size=FULL.name)
    parser.add_argument("--rounds", type=int, help="instead of the size's own number")
    parser.add_argument("--only", action="append", default=[], metavar="CONTEST", help="such as null; repeatable")
    parser.add_argument("--out", default=str(HERE), help="the folder of results.json, RESULTS.md and plots")
    parser.add_argument("--report", action="store_true", help="measure nothing, write RESULTS.md again")
    parser.add_argument("--event-log", metavar="FOLDER", help="let Spark write its event log there, for a profile")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()

"""Processor time of a contest's query, by kind of process: `python -m benchmarks.processor objects-table`.

Runs every contestant a few times in turn. For each one it prints the median of its numbers, and the median processor
seconds of each kind of process, of all cores together. The start and the count of the rows are within them. A server
and a proxy on this machine take their time from the same cores as Spark.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.clock import processor_seconds
from benchmarks.measure import Contest
from benchmarks.session import Session
from benchmarks.sizes import SIZES
from benchmarks.timeline import CONTESTS, the_contest

KINDS = ("Spark's JVM", "Python workers", "this process", "servers", "proxies")
_WARM_ROUNDS = 1
"""Rounds at the start that do not count: the JVM still compiles."""


def main() -> None:
    """Measure, then print a line for each contestant."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor", description=__doc__)
    parser.add_argument("contest", choices=CONTESTS)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = Session(scratch)
        stack.callback(session.stop)
        _tell(the_contest(options.contest, options.size, session, scratch, stack), options.rounds, scratch)


def _tell(contest: Contest, rounds: int, scratch: Path) -> None:
    values: dict[str, list[float]] = {}
    seconds: dict[str, list[Mapping[str, float]]] = {}
    for number in range(_WARM_ROUNDS + rounds):
        for contestant in contest.contestants:
            folder = scratch / f"{number} {contestant.name}"
            folder.mkdir()
            before = processor_seconds()
            value = contestant.measure(folder)
            taken = {kind: took_s - before.get(kind, 0.0) for kind, took_s in processor_seconds().items()}
            if number >= _WARM_ROUNDS:
                values.setdefault(contestant.name, []).append(value)
                seconds.setdefault(contestant.name, []).append(taken)
    for name, found in values.items():
        parts = (f"{kind} {statistics.median(one.get(kind, 0.0) for one in seconds[name]):.2f} s" for kind in KINDS)
        print(f"{name}: {statistics.median(found):,.0f} {contest.unit}; {', '.join(parts)}")


if __name__ == "__main__":
    main()

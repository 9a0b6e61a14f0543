"""The cost of watching: processor time for a million rows with metrics on and off, in alternating pairs.

    python -m benchmarks.watching --pairs 20

One process stages and delivers batches on this disk, without Spark and to a target that does nothing. That is the
hardest case: all that a real query spends on Spark, on workers and on its target would make the share of metrics
smaller. Of each pair, the first is on and off in turn. The median of the ratios is told with its interval of 95 %, by
the ranks of a sign test. It ends with exit code 1 if the interval reaches the goal.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median

from benchmarks.workloads import table_of
from wal_sink import Chunk, Metrics, Settings
from wal_sink.metrics.prometheus import events_of, meter_of
from wal_sink.protocol.dispatch import ServedSink
from wal_sink.protocol.run import Run
from wal_sink.settings import Delivery
from wal_sink.sinks.base import as_sink
from wal_sink.stores.measured import measured
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.testing.simulation.process import served_sink

GOAL = 1.05
MILLION = 1_000_000
BATCH_ROWS = 50_000
CONFIDENCE = 0.95
SCRAPES = 4
"""How often the metrics are read during a trial: more often than each 15 s."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of some ratios, and the bounds between which it lies with 95 %; none with too few pairs."""

    median: float
    low: float | None
    high: float | None


def interval_of(ratios: Sequence[float]) -> Interval:
    """The interval by ranks: the k-th smallest and k-th largest, with the largest k that keeps the confidence."""
    ordered, count = sorted(ratios), len(ratios)
    outside = 0.0
    rank = 0
    while rank < count // 2 and outside + 2 * comb(count, rank) / 2**count <= 1 - CONFIDENCE:
        outside += 2 * comb(count, rank) / 2**count
        rank += 1
    if rank == 0:
        return Interval(median(ordered), None, None)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])


class Trial:
    """A query of some rows into a new WAL below a folder."""

    def __init__(self, rows: int) -> None:
        self._batches = max(1, rows // BATCH_ROWS)
        self._table = table_of(0, min(rows, BATCH_ROWS))
        self.rows = self._batches * self._table.num_rows

    def seconds(self, folder: Path, *, is_watched: bool) -> float:
        """Processor seconds of this process for a million rows."""
        metrics = Metrics() if is_watched else None
        address = metrics.serve("127.0.0.1:0") if metrics is not None else ""
        gc.collect()
        began_s = time.process_time()
        self._run(folder, metrics, address)
        took_s = time.process_time() - began_s
        if metrics is not None:
            metrics.close()
        return took_s * MILLION / self.rows

    def _run(self, folder: Path, metrics: Metrics | None, address: str) -> None:
        wal, checkpoint = (open_store(StoreSpec(str(folder / name))) for name in ("wal", "checkpoint"))
        store = measured(wal, meter_of(wal.root, metrics))
        run = Run(store, checkpoint, Settings(), events=events_of(wal.root, None, metrics))
        run.open([_served(run)])
        run.become_stager()
        query = FakeQuery(checkpoint, lambda *_: [self._table])
        for batch_id in query.batches(run, self._batches):
            run.deliver_all()
            if metrics is not None and batch_id % max(1, self._batches // SCRAPES) == 0:
                _scrape(address)


def _served(run: Run) -> ServedSink:
    return served_sink("default", as_sink(_take), Delivery(_take), run.log)


def _take(chunk: Chunk) -> None:
    del chunk


def _scrape(address: str) -> None:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        answer.read()


def measure(pairs: int, rows: int) -> list[dict[str, float]]:
    """The seconds of each pair, after one pair that does not count."""
    trial, found = Trial(rows), []
    for number in range(-1, pairs):
        pair: dict[str, float] = {}
        for is_watched in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".watching-") as folder:
                pair["on" if is_watched else "off"] = trial.seconds(Path(folder), is_watched=is_watched)
        if number >= 0:
            found.append({**pair, "ratio": pair["on"] / pair["off"]})
            print(f"pair {number + 1}: on {pair['on']:.3f} s, off {pair['off']:.3f} s", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the pairs and the interval as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description="Measure the cost of metrics.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=MILLION, help="rows of a trial")
    given = parser.parse_args(arguments)
    pairs = measure(given.pairs, given.rows)
    found = interval_of([pair["ratio"] for pair in pairs])
    is_reached = found.high is not None and found.high < GOAL
    told = {"goal": GOAL, "median": found.median, "low": found.low, "high": found.high, "is_reached": is_reached}
    print(json.dumps({**told, "unit": "processor seconds for a million rows", "pairs": pairs}, indent=2))
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())

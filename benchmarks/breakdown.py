"""Where the time of the table's contests goes, by subtraction: each step does what the one before does, and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contests import FLINK_MEMORY
from benchmarks.measure import NAME, Unit
from benchmarks.plots import number_text
from benchmarks.results import Results
from benchmarks.sizes import SIZES
from benchmarks.spark_rivals import FOREACH_ARROW, MOVED


@dataclass(frozen=True, slots=True)
class Step:
    """What has been done by then, and the median seconds it took for all rows of the table."""

    what: str
    seconds: float


def steps(results: Results) -> list[Step]:
    """Of those that were measured, in order."""
    found = (
        ("Spark moves the rows to Python, which drops them", _seconds(results, "staging", MOVED)),
        ("the rows are staged: encoded, checksummed, written, synced", _seconds(results, "staging", NAME)),
        ("a whole query into a sink that does nothing", _seconds(results, "null", NAME)),
        ("a whole query into CSV files", _seconds(results, "csv", NAME)),
    )
    return [Step(what, seconds) for what, seconds in found if seconds is not None]


def breakdown(results: Results) -> Iterator[str]:
    """The steps as a table, and what they mean for a rival that is to be twice as slow."""
    known = steps(results)
    if len(known) < 2:
        return
    yield "| by then | seconds | more than the line before |"
    yield "|---|---|---|"
    before = 0.0
    for step in known:
        yield f"| {step.what} | {number_text(step.seconds)} | {number_text(step.seconds - before)} |"
        before = step.seconds
    direct, flink = (_seconds(results, "null", name) for name in (FOREACH_ARROW, FLINK_MEMORY))
    if direct is not None and flink is not None:
        yield ""
        yield f"Flink with its log in memory takes {number_text(flink)} s for as many rows, which its source makes in"
        yield f"memory: twice as fast would be {number_text(flink / 2)} s. Spark's own `foreachBatch`, without any log,"
        yield f"takes {number_text(direct)} s to call the same sink."


def _seconds(results: Results, contest: str, name: str) -> float | None:
    measured = results.find(contest, name)
    if measured is None:
        return None
    return measured.median if measured.unit is Unit.SECONDS else SIZES[results.sizes].table_rows / measured.median

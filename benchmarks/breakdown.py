"""Breakdown of the time of the table's contests, by subtraction: each step includes the work of the previous one."""

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
    """The work done up to this step, and its median time in seconds for all rows of the table."""

    what: str
    seconds: float
    spark_alone: float | None
    """The seconds that Spark takes without a log; None if they were not measured."""

    @property
    def log(self) -> float | None:
        """The seconds that the log takes."""
        return None if self.spark_alone is None else self.seconds - self.spark_alone


def steps(results: Results) -> list[Step]:
    """The measured steps, in order."""
    found = (
        ("the rows are staged", "staging", MOVED),
        ("a whole query into a sink that does nothing", "null", FOREACH_ARROW),
        ("a whole query into CSV files", "csv", FOREACH_ARROW),
    )
    timed = ((what, _seconds(results, key, NAME), _seconds(results, key, alone)) for what, key, alone in found)
    return [Step(what, seconds, alone) for what, seconds, alone in timed if seconds is not None]


def breakdown(results: Results) -> Iterator[str]:
    """The steps as a table, and their meaning for the targets against slower rivals."""
    known = steps(results)
    if len(known) < 2:
        return
    yield "| what | seconds | Spark alone | the log |"
    yield "|---|---|---|---|"
    for step in known:
        numbers = " | ".join("" if value is None else number_text(value) for value in (step.spark_alone, step.log))
        yield f"| {step.what} | {number_text(step.seconds)} | {numbers} |"
    yield ""
    yield "*Spark alone* moves the rows to Python and drops them (staging), or its `foreachBatch` calls the same sink."
    yield "*The log* encodes, checksums, writes and syncs the rows, reads them back, and syncs a record of progress for"
    yield "each 10,000 of them: with 2 cores busy all the time, that is added to whatever the sink takes."
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

"""Time measurement, the same on both sides of a contest on Spark."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Stopwatch:
    """Counts the seconds since it was created."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._began_s

    @staticmethod
    def now_s() -> float:
        """The time of day, comparable with Spark's records."""
        return time.time()


def planned_s(checkpoint: Path) -> float:
    """The time when Spark planned a query's first batch. The time of a query begins there, after its start-up."""
    entry = (checkpoint / "offsets" / "0").read_text().splitlines()[1]
    return float(json.loads(entry)["batchTimestampMs"]) / 1000


def batch_ms(query: StreamingQuery) -> float:
    """The median time of a batch as Spark reports it, without the first two batches."""
    times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
    return statistics.median(times[2:] or times)

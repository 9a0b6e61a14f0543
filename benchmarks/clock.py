"""What is timed, in the same way on both sides of a contest on Spark."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._began_s

    @staticmethod
    def now_s() -> float:
        """The time of day, as Spark's own records have it."""
        return time.time()


def planned_s(checkpoint: Path) -> float:
    """When Spark planned a query's first batch: where the time of a whole query begins, its start-up left out."""
    entry = (checkpoint / "offsets" / "0").read_text().splitlines()[1]
    return float(json.loads(entry)["batchTimestampMs"]) / 1000


def batch_ms(query: StreamingQuery) -> float:
    """The median time of a batch, by Spark's own account, the first two left out."""
    times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
    return statistics.median(times[2:] or times)

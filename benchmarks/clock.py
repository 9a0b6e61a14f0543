"""Time measurement, the same on both sides of a contest on Spark."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

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


def processor_seconds() -> dict[str, float]:
    """The processor seconds so far of this process and of all below it, by kind. Those that ended count too."""
    found: dict[str, float] = {}
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            kind = kind_of(process.pid, process.name(), _command_of(process))
            found[kind] = found.get(kind, 0.0) + sum(
                process.cpu_times()[:4]
            )  # user and system, and the same of children that ended
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return found


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.ZombieProcess:
        return []  # it ended, and its seconds are not yet among those of its parent


def kind_of(pid: int, name: str, command: list[str]) -> str:
    """The kind of one of the processes that a benchmark has."""
    told = " ".join(command)
    if pid == os.getpid():
        return "this process"
    if name == "java":
        return "Spark's JVM"
    if "pyspark" in told or "wal_sink" in told:
        return "Python workers"
    return "proxies" if "multiprocessing" in told else "servers"

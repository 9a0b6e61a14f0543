"""The single Spark session in which our side and Spark's own side are measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
"""Task slots of Spark and subtasks of Flink, the same on every machine."""
CHECKOUT = Path(__file__).resolve().parent.parent

_CONF: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.files.openCostInBytes": "128m",  # so that each file of a workload is a separate partition
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


class Session:
    """The single Spark session, started at the first call. Stop it at the end."""

    def __init__(self, scratch: Path, event_log: Path | None = None) -> None:
        self._scratch = scratch
        self._event_log = event_log
        self._started: SparkSession | None = None

    def __call__(self) -> SparkSession:
        if self._started is None:
            self._started = start_session(self._scratch, self._event_log)
        return self._started

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()


def start_session(scratch: Path, event_log: Path | None = None) -> SparkSession:
    """Start Spark on 127.0.0.1; its workers use this interpreter. `event_log`: a folder for Spark's event log."""
    paths = [str(CHECKOUT), str(CHECKOUT / "backends"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the environment must be set before

    builder = SparkSession.builder.master(f"local[{CORES}]").appName("wal-sink benchmarks").config(map=_CONF)
    builder = builder.config("spark.local.dir", str(scratch / "spark")).config(
        "spark.sql.warehouse.dir", str(scratch / "warehouse")
    )
    if event_log is not None:
        event_log.mkdir(parents=True, exist_ok=True)
        plain = {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
        builder = builder.config(
            map={"spark.eventLog.enabled": "true", "spark.eventLog.dir": event_log.as_uri(), **plain}
        )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session

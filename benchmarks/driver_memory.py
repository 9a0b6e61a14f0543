"""Growth of the driver's memory, Python and JVM, while a batch of thousands of segments is staged and delivered.

`python -m benchmarks.driver_memory --segments 5000`, Linux only. One Spark job has one task with one row per segment,
so it takes minutes: ten for 5,000 segments on two busy cores. In local mode, the executors run in the same JVM.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.test_costs import JvmHeap, Memory, OnExecutors, taking_everything
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.processes import python_environment
from wal_sink.protocol.stage import Attempt, Staged
from wal_sink.spark.staging import stage_dataframe
from wal_sink.testing import FakeQuery


def main() -> None:
    """Print one line for staging and one for delivery."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver_memory", description=__doc__)
    parser.add_argument("--segments", type=int, default=5000)
    segments = parser.parse_args().segments
    os.environ.update(python_environment())
    spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(spark, Path(folder), segments)
    finally:
        spark.stop()


def measure(spark: SparkSession, folder: Path, segments: int) -> None:
    run = OnExecutors(spark, folder, taking_everything())
    query = FakeQuery(run.checkpoint, lambda *_: [])

    def write(attempt: Attempt, partitions: int) -> Staged:
        context = run.run.staging_context(attempt, columns=["id"], spark_schema="")
        rows = spark.range(0, partitions, 1, partitions)
        staged = stage_dataframe(rows, store=run.store, context=context, description="driver_memory")
        return Staged(staged.segments, columns=("id",))

    for batch_id, partitions in enumerate((4, segments)):  # the first, small batch starts the workers
        query.start_batch(batch_id, batch_id)
        after = _Growth(spark)
        attempt = run.run.begin_staging(batch_id, planned_ms=query.planned_ms(batch_id))
        if attempt is None:
            raise RuntimeError(f"batch {batch_id} is taken for a replay")
        run.run.end_staging(attempt, write(attempt, partitions))
        after(f"staging {partitions} segments")
        query.complete_batch(batch_id)
        after = _Growth(spark)
        run.run.deliver_all()
        after(f"delivering {partitions} segments")
        if run.run.committers[0].marked_through != batch_id:
            raise RuntimeError(f"batch {batch_id} was not delivered")


class _Growth:
    """The growth of memory since this object was created."""

    def __init__(self, spark: SparkSession) -> None:
        self._heap = JvmHeap(spark)
        self._python, self._jvm = Memory([os.getpid()]), Memory([self._heap.pid])
        self._began_s = time.monotonic()

    def __call__(self, what: str) -> None:
        seconds = time.monotonic() - self._began_s
        peak, resident = self._heap.peak_mib(), self._jvm.grown_mib([self._heap.pid])
        print(
            f"{what}: {seconds:.0f} s; growth in MiB: Python {self._python.grown_mib([os.getpid()])} at its peak; JVM "
            f"{peak:.0f} at its peak, {self._heap.kept_mib():.1f} kept after collection, {resident} resident",
            flush=True,
        )


if __name__ == "__main__":
    main()

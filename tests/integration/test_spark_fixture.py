"""The tests' own Spark: workers use this interpreter and this checkout, times are UTC."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Child, is_running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KILLED_DRIVER = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("jvm", spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
def sleeping(batches):
    import os, time
    print("worker", os.getpid(), flush=True)
    time.sleep(600)
    yield from batches
spark.range(1).mapInArrow(sleeping, "id long").collect()
"""


def test_workers_use_this_interpreter_and_import_this_checkout(spark: SparkSession) -> None:
    def look(_: int) -> tuple[str, bool]:
        import sys  # noqa: PLC0415 - runs in a worker

        import wal_sink.errors  # noqa: PLC0415

        return sys.executable, bool(wal_sink.errors.__file__)

    executable, imported = spark.sparkContext.parallelize([0], 1).map(look).first()
    assert imported
    assert os.path.realpath(executable) == os.path.realpath(sys.executable)


def test_times_are_utc(spark: SparkSession) -> None:
    row = spark.sql("select cast(timestamp '2024-07-01 12:00:00' as string) as t, current_timezone() as zone").first()
    assert row is not None
    assert tuple(row) == ("2024-07-01 12:00:00", "UTC")


def test_killing_a_driver_ends_its_jvm_and_its_workers(tmp_path: Path) -> None:
    with Child.python(KILLED_DRIVER, log=tmp_path / "log") as driver:
        pids = re.compile(r"worker (\d+)\n")  # written piece by piece
        driver.wait_until(lambda: pids.search(driver.output) is not None, "a worker told its id")
        worker = int(pids.findall(driver.output)[0])
        jvm = int(driver.output.split("jvm ")[1].split()[0])
        assert is_running(worker)
        assert is_running(jvm)
        driver.kill()
        assert not is_running(worker)
        assert not is_running(jvm)

"""Dependencies on a standalone cluster: wal-sink by `--py-files`, an environment by `--archives`, and neither of them.

The Pythons of driver and workers have every package that wal-sink needs, but not wal-sink itself.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes import Child, python_environment
from tests.support.servers.standalone import HOSTS, SPARK_HOME, Standalone, standalone
from tests.support.streams import Home
from tests.support.worker_pythons import add_us, environment_without_us, packed, zip_of_us

pytestmark = pytest.mark.spark

ROWS = 60
LIMIT_S = 400.0
NOT_OURS = {"PYTHONPATH": ""}
DRIVER = """
import sys, time
import wal_sink
from pyspark.sql import SparkSession
from wal_sink import ConfigError, Delivery, Settings, WalSink
from wal_sink_backends import SqlSink

def place(_):
    import wal_sink
    return sys.executable, wal_sink.__file__

root = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
while len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) < 1 + int(sys.argv[2]):
    time.sleep(0.1)
stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(root + "/in").repartition(2)
to = Delivery(SqlSink("sqlite:///" + root + "/out.db", "rows"), where="executors")
try:
    with WalSink(to, wal=root + "/wal", checkpoint=root + "/checkpoint") as sink:
        sink.run(stream.writeStream.trigger(availableNow=True))
    print("DRIVER", *place(0))
    print("WORKER", *spark.sparkContext.parallelize([0], 1).map(place).collect()[0])
except ConfigError as error:
    print("CONFIG", error)
spark.stop()
"""
"""A user's program. It imports nothing of these tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), cores=1, worker_environment=NOT_OURS) as running:
        yield running


@pytest.fixture(scope="module")
def without_us(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that lacks wal-sink alone."""
    return environment_without_us(tmp_path_factory.mktemp("python") / "environment")


@pytest.fixture
def place(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.feed.add(range(ROWS // 2), range(ROWS // 2, ROWS))
    return home


def submitted(
    cluster: Standalone, place: Home, *options: str | Path, driver: Path, workers: str | Path, executors: int = 2
) -> str:
    """Run the program by `spark-submit` with a Python for the driver and one for the workers. Return its output."""
    program = place.root / "program.py"
    program.write_text(DRIVER)
    conf = {
        "spark.pyspark.driver.python": driver,
        "spark.pyspark.python": workers,
        "spark.executor.memory": "512m",
        "spark.cores.max": str(executors),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    confs = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    # spark.pyspark.* stand above these variables. The environment of this test run has one of them.
    environment = {**python_environment(NOT_OURS), "SPARK_HOME": str(SPARK_HOME)}
    environment.pop("PYSPARK_PYTHON")
    args = [
        SPARK_HOME / "bin" / "spark-submit",
        "--master",
        cluster.url,
        *confs,
        *options,
        program,
        place.root,
        str(executors),
    ]
    with Child(args, log=place.root / "driver.log", env=environment, limit_s=LIMIT_S) as child:
        return child.succeed()


def rows_of(place: Home) -> list[int]:
    with closing(sqlite3.connect(place.root / "out.db")) as connection:
        return sorted(row for (row,) in connection.execute("select id from rows"))


def told(output: str, word: str) -> list[str]:
    """Return the words after the first one of a line of the program."""
    return next(line.split()[1:] for line in output.splitlines() if line.startswith(word))


def test_wal_sink_travels_by_py_files(cluster: Standalone, place: Home, without_us: Path) -> None:
    zipped = zip_of_us(place.root / "wal_sink.zip")
    output = submitted(cluster, place, "--py-files", zipped, driver=without_us, workers=without_us)
    for who in ("DRIVER", "WORKER"):
        python, ours = told(output, who)
        assert python == str(without_us)
        assert "wal_sink.zip/wal_sink/__init__.py" in ours
    assert rows_of(place) == list(range(ROWS))


def test_an_environment_that_venv_pack_packed_travels_by_archives(
    cluster: Standalone, place: Home, without_us: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(without_us.parent.parent, whole, symlinks=True, copy_function=os.link)
    add_us(whole)
    archive = packed(whole, tmp_path / "environment.tar.gz")
    output = submitted(
        cluster,
        place,
        "--archives",
        f"{archive}#environment",
        driver=Path(sys.executable),
        workers="./environment/bin/python",
        executors=1,  # each unpacks 300 MB
    )
    python, ours = told(output, "WORKER")
    assert "/environment/bin/python" in python
    assert "/environment/lib/" in ours
    assert str(whole) not in output
    assert rows_of(place) == list(range(ROWS))


def test_workers_without_wal_sink_are_refused_and_the_error_says_how_to_bring_it(
    cluster: Standalone, place: Home, without_us: Path
) -> None:
    output = submitted(cluster, place, driver=Path(sys.executable), workers=without_us)
    assert f"CONFIG Spark's workers run {without_us}" in output
    assert "cannot import these modules: wal_sink (ModuleNotFoundError: No module named 'wal_sink')." in output
    assert "spark-submit --py-files" in output
    assert not (place.root / "wal").exists()
    assert not (place.root / "out.db").exists()


def test_a_single_host_without_wal_sink_is_found(cluster: Standalone, place: Home, without_us: Path) -> None:
    """The same path leads to another Python on each host."""
    python = place.root / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$SPARK_LOCAL_IP" = {HOSTS[1]} ] && exec {without_us} "$@"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    output = submitted(cluster, place, driver=Path(sys.executable), workers=python)
    assert f"CONFIG Spark's workers run {without_us}" in output
    assert "cannot import these modules: wal_sink (ModuleNotFoundError: No module named 'wal_sink')." in output
    assert not (place.root / "out.db").exists()

"""A real Spark for tests: one session per test process, on this machine alone, with this interpreter's workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.components import require
from tests.processes import python_environment
from tests.quick_java import QUICK_SPARK
from tests.quick_workers import QUICK_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONF: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_SPARK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": QUICK_SPARK,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Killed before it has noted its first batch, Spark 4.3 would take its own checkpoint for another's.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    **QUICK_CONF,
}
"""What every Spark of the tests is started with; programs in a `Child` use it too."""

JAVA_HINT = "Spark needs a Java 17 or newer: install a JDK (Debian: openjdk-17-jre-headless) or set JAVA_HOME"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this test process: `local[2]`, UTC, no UI, its warehouse in a temporary folder."""
    require(bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None, JAVA_HINT)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests without Spark need not import it

    with pytest.MonkeyPatch.context() as patch:
        for name, value in python_environment().items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("wal-sink tests")
        home = tmp_path_factory.mktemp("spark")
        builder = builder.config("spark.sql.warehouse.dir", str(home / "warehouse")).config(
            "spark.local.dir", str(home / "local")
        )
        session = builder.config(map=SPARK_CONF).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()

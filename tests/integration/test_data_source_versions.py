"""`format("wal_sink")` on other versions of Spark: who can write, who can read, and what the others say.

Spark 3.5 has no Python data sources. `test_data_source.py` runs on the installed version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_versions import VERSIONS, run_on

pytestmark = pytest.mark.spark

OTHERS = [version for version in VERSIONS if version.startswith(("4.0.", "4.1.", "4.2."))]

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home
from wal_sink import Delivery
from wal_sink.spark.session.cluster import REPEAT_CHECKS

spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
home = Home(Path(sys.argv[1]))

def stage():
    options = {"wal": str(home.wal), "checkpointLocation": str(home.checkpoint)}
    rows = home.feed.stream(spark).groupBy("id").count().select("id")
    writer = rows.writeStream.format("wal_sink").options(**options).trigger(availableNow=True)
    writer.outputMode("complete").start().awaitTermination()

home.feed.add(range(10))
try:
    stage()
except Exception as error:
    print("first:", type(error).__name__, str(error))
for key in REPEAT_CHECKS:
    spark.conf.set(key, "true")
try:
    stage()
    home.feed.add(range(20))
    stage()
    print("staged")
except Exception as error:
    print("then:", type(error).__name__, str(error))
    home.run(spark)
else:
    with home.sink(Delivery(home.lines, start_from="earliest")) as sink:
        sink.drain()
    assert home.lines.ids() == sorted([*range(10), *range(20)]), home.lines.ids()
try:
    found = spark.read.format("wal_sink").load(str(home.wal))
    print("read", sorted(row.id for row in found.collect()))
except Exception as error:
    print("read:", type(error).__name__, str(error))
spark.stop()
"""


@pytest.mark.parametrize("version", OTHERS)
def test_the_format_works_or_says_why_not(version: str, tmp_path: Path) -> None:
    said = run_on(version, PROGRAM, tmp_path, log=tmp_path / "log")
    if version.startswith("4.0"):
        assert "needs Spark 4.1 or newer to write" in said
        assert f"read {list(range(10))}" in said
        return
    assert "staged" in said
    assert f"read {sorted([*range(10), *range(20)])}" in said
    if version.startswith("4.1"):
        assert "only Spark can tell here whether it repeated a part of a shuffle" in said
    else:
        assert "first: " not in said

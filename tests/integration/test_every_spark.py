"""Every version of Spark that wal-sink allows: one process of each runs all programs of this file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration import test_debezium
from tests.support.golden.checkpoints import WRITER, as_written, goldens
from tests.support.lasting import Lasting
from tests.support.programs import identity_scenarios
from tests.support.spark_versions import VERSIONS, environment
from tests.support.streams import SESSION, Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]  # a first run fetches that Spark


@dataclass(frozen=True)
class Other:
    """A version of Spark, and the process in which it runs."""

    version: str
    process: Lasting


@pytest.fixture(scope="module")
def spark_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """Yield the Spark of a version. Tests with the same one run one after the other."""
    version = request.param
    with Lasting(tmp_path_factory.mktemp("spark") / version, environment(version), limit_s=400.0) as process:
        process.run(SESSION.format(master="local[2]"))
        yield Other(version, process)


def on(*versions: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spark_of", versions, indirect=True)


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path / "place")


# Which query calls `stage`, and what a writer already has.


@on(*VERSIONS)
def test_the_calling_query_and_what_a_writer_has_are_told(spark_of: Other, place: Home) -> None:
    place.root.mkdir()
    output = spark_of.process.run(Path(identity_scenarios.__file__), place.root)
    seen = json.loads(next(line for line in output.splitlines() if line.startswith("SEEN ")).removeprefix("SEEN "))

    assert seen["version"] == spark_of.version
    expected = [*seen["expected"], seen["run"], True]
    assert expected[1] == str(place.checkpoint)
    names = {"batch", "static join", "static", "derived", "batch on a thread"}
    assert seen["told"] == dict.fromkeys(names, expected)
    assert seen["on its thread"] == [True, False]
    assert "batch 1: the DataFrame given to stage() holds rows of batch 0" in seen["kept"]
    assert seen["first"] == [True, False, True, False], "two batches of each of two runs"
    assert "on the thread that calls foreachBatch" in seen["static on a thread"]
    assert "runs batch 0, but stage() was given batch 1" in seen["another batch"]
    assert "belongs to no running query" in seen["outside"]
    assert "another WalSink of this process" in seen["second call"]
    assert ("clusterBy" in seen["leftovers"]) == (spark_of.version != "3.5.9")
    for what, said in seen["leftovers"].items():
        assert f"the writer has {what}(" in said
    assert "/nowhere/old" in seen["leftovers"]["option"]
    assert seen["output modes"] == ["Append", "Update", "Complete"]
    assert seen["delivered"] == list(range(25))
    kept = ["cloned_db", 6, "mine"]
    assert seen["clone"] == [kept, ["default", 8, "the clone's"], kept]
    assert seen["active"] == [True] * 4


# Files that Spark writes into a checkpoint.

QUICK = ("file", "two_entries", "two_sources", "offset_log_2", "named", "named_in_log_1")
"""Kinds without state, which take a second or two."""


@on(*VERSIONS)
def test_each_spark_writes_what_its_golden_checkpoints_hold(spark_of: Other, tmp_path: Path) -> None:
    """The kinds without state; `python -m tests.support.golden.checkpoints` writes all of them anew."""
    folder = tmp_path / "written"
    folder.mkdir()

    spark_of.process.run(WRITER, folder, *QUICK)
    expected = goldens(*QUICK, version=spark_of.version)
    assert expected
    assert as_written(spark_of.version, folder) == expected


REPARTITIONS = [version for version in VERSIONS if version >= "4.2"]

LIFE = """
import json, sys
from pathlib import Path
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home
from pyspark.sql import SparkSession

place = Home(Path(sys.argv[1]))
spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.conf.set("spark.sql.streaming.stateStore.providerClass",
               "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
checkpoints = spark._streamingCheckpointManager

def query():
    counts = place.feed.stream(spark).groupBy("id").count()
    return counts.select("id").writeStream.outputMode("update").trigger(availableNow=True)

def run():
    with place.sink() as sink:
        sink.run(query())

def unfinished(batch):
    for name in (str(batch), f".{batch}.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)

place.feed.add([1, 2])
run()
checkpoints.repartition(str(place.checkpoint), 3)
place.feed.add([2, 3])
run()                                               # the stager or the recovery before it meets batch 1
checkpoints.repartition(str(place.checkpoint), 4)
with place.sink() as sink:
    sink.drain()                                    # a drain meets batch 3
place.feed.add([4])
run()
checkpoints.repartition(str(place.checkpoint), 2)
unfinished(5)
place.feed.add([5])
try:
    run()
except Exception as error:
    print("REFUSED", "STREAMING_UNFINISHED_REPARTITION_DETECTED" in str(error))
checkpoints.repartition(str(place.checkpoint), 2)   # taken up again
run()
"""


@on(*REPARTITIONS)
def test_a_query_goes_on_after_its_state_was_repartitioned_offline(spark_of: Other, place: Home) -> None:
    """A stager, the recovery of a start or a drain may meet that batch first. Spark never runs it, even unfinished."""
    output = spark_of.process.run(LIFE, place.root)

    delivered = sorted((sent.batch, number) for sent in place.lines.sent() for number in sent.ids)
    assert delivered == [(0, 1), (0, 2), (2, 2), (2, 3), (4, 4), (6, 5)]
    assert "REFUSED True" in output
    markers = sorted(int(path.stem) for path in place.wal.glob("sinks/default/markers/*.json"))
    assert markers[-1] == 6


# `format("wal_sink")`: who can write, who can read, and what the others say. Spark 3.5 has no Python data sources.
# `test_data_source.py` runs on the installed version.

OTHERS = [version for version in VERSIONS if version.startswith(("4.0.", "4.1.", "4.2."))]

FORMAT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home
from wal_sink import Delivery
from wal_sink.spark.cluster import REPEAT_CHECKS

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
"""


@on(*OTHERS)
def test_the_format_works_or_says_why_not(spark_of: Other, place: Home) -> None:
    said = spark_of.process.run(FORMAT, place.root)
    if spark_of.version.startswith("4.0"):
        assert "needs Spark 4.1 or newer to write" in said
        assert f"read {list(range(10))}" in said
        return
    assert "staged" in said
    assert f"read {sorted([*range(10), *range(20)])}" in said
    if spark_of.version.startswith("4.1"):
        assert "only Spark can tell here whether it repeated a part of a shuffle" in said
    else:
        assert "first: " not in said


# A query that goes on with another version.

ONE_RUN = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
place = Home(Path(sys.argv[1]))
place.run(spark, place.lines)
print("SPARK", spark.version, flush=True)
"""
)


@on(VERSIONS[0])
def test_an_upgrade_and_a_downgrade_of_spark_lose_and_double_nothing(
    spark_of: Other, spark: SparkSession, place: Home
) -> None:
    """From the oldest Spark to the newest, which is that of the tests, and back."""
    assert spark.version == VERSIONS[-1]
    for number in range(3):
        place.feed.add(range(10 * number, 10 * number + 10))
        if number == 1:
            place.run(spark, place.lines)
        else:
            assert f"SPARK {spark_of.version}" in spark_of.process.run(ONE_RUN, place.root)
        assert sorted(place.lines.ids()) == list(range(10 * number + 10))


# Change events.

CHANGES = """
from pyspark.sql import SparkSession
from wal_sink_backends.changes.events import VERSIONS, debezium
spark = SparkSession.builder.getOrCreate()
for name in ("postgresql", "mysql"):
    text = spark.read.text(f"{events}/{name}.jsonl")
    rows = debezium(text, columns="id BIGINT, name STRING, note STRING", key="id", connector=name)
    print("ROWS " + json.dumps([list(row) for row in rows.select("op", "id", *VERSIONS[name]).collect()]))
"""


@on(*VERSIONS)
def test_each_spark_reads_change_events_in_the_same_way(spark_of: Other) -> None:
    output = spark_of.process.run(f"import json\nevents = {str(test_debezium.EVENTS)!r}\n{CHANGES}")
    postgresql, mysql = (json.loads(line[5:]) for line in output.splitlines() if line.startswith("ROWS "))
    assert [tuple(row) for row in postgresql] == test_debezium.POSTGRESQL
    assert [tuple(row[2:]) for row in mysql] == test_debezium.MYSQL

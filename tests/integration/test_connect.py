"""Spark Connect: the server stages through `format("wal_sink")`, and the client delivers."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes import Child
from tests.support.servers.connect_server import ConnectServer, connect_server
from tests.support.streams import Home

pytestmark = pytest.mark.spark

LIMIT_S = 240.0
BATCHES = 4
"""Batches that each life of a killed server gets to do."""
CLIENT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.support.streams import Home
from wal_sink import Delivery, Settings
from wal_sink_backends import SqlSink

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
home = Home(Path(sys.argv[2]))
sink = SqlSink(f"sqlite:///{home.root / 'out.db'}", "rows")
$BODY
print("client: done")
"""
RUN = """
with home.sink(sink, settings=Settings(chunk_rows=7)) as served:
    served.run(home.feed.stream(spark).writeStream.trigger(availableNow=True))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def client(server: ConnectServer, home: Home, body: str = RUN) -> Child:
    return Child.python(
        CLIENT.replace("$BODY", body), server.url, home.root, log=home.root / "client.log", limit_s=LIMIT_S
    )


def rows(home: Home) -> list[int]:
    """Every row of the target, sorted."""
    file = home.root / "out.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as target:
        try:
            return [number for (number,) in target.execute("SELECT id FROM rows ORDER BY id")]
        except sqlite3.OperationalError:  # no table yet
            return []


def test_a_query_over_connect_is_staged_on_the_server_and_delivered_here(server: ConnectServer, home: Home) -> None:
    home.feed.add(range(20), range(20, 45))
    with client(server, home) as child:
        child.succeed()
    assert rows(home) == list(range(45))
    home.feed.add(range(45, 60))
    with client(server, home) as child:
        child.succeed()
    assert rows(home) == list(range(60))


def test_a_client_that_dies_loses_nothing(server: ConnectServer, home: Home) -> None:
    """The query goes on in the server. The next client delivers what it staged meanwhile."""
    home.feed.add(range(20))
    body = """
served = home.sink(sink)
served.start(home.feed.stream(spark).writeStream)
print("client: started")
import time
time.sleep(600)
"""
    with client(server, home, body) as child:
        child.wait_until(lambda: rows(home) == list(range(20)), "the first batch is delivered")
        child.kill()
    home.feed.add(range(20, 40))
    body = (
        """
for query in spark.streams.active:
    query.stop()
"""
        + RUN
    )
    with client(server, home, body) as child:
        child.succeed()
    assert rows(home) == list(range(40))


def test_a_server_that_is_killed_loses_nothing(home: Home, tmp_path: Path) -> None:
    killed_server(home, tmp_path, kills=2, seed=20261125)


def killed_server(home: Home, folder: Path, *, kills: int, seed: int) -> None:
    """Kill the server `kills` times while a query runs, then its client; start both again each time.

    Each row is in the target once at the end. The client is killed because PySpark's client goes on asking a server
    that is gone, for about ten minutes.
    """
    chance = random.Random(seed)
    in_the_middle = 0
    for life in range(kills + 1):
        begin, end = life * BATCHES, (life + 1) * BATCHES
        home.feed.add(*(range(number * 10, number * 10 + 10) for number in range(begin, end)))
        with connect_server(folder / f"server-{life}") as running, client(running, home) as child:
            if life == kills:
                child.succeed()
                break
            before = len(rows(home))
            child.wait_until(lambda: len(rows(home)) > before, "rows of this life are delivered")  # noqa: B023
            time.sleep(chance.uniform(0.0, 1.0))
            running.process.kill()
            in_the_middle += len(rows(home)) < end * 10
            child.kill()
    assert rows(home) == list(range((kills + 1) * BATCHES * 10))
    assert in_the_middle, "every query was done before the server was killed"


def test_stage_over_connect_is_refused_with_the_way(server: ConnectServer, home: Home) -> None:
    """`foreachBatch` runs in a process of the server, on a DataFrame of Spark Connect."""
    home.feed.add(range(3))
    body = """
def take(df, batch_id):
    served.stage(df, batch_id)
served = home.sink(None)
query = home.feed.stream(spark).writeStream.option("checkpointLocation", str(home.checkpoint))
try:
    query.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()
except Exception as error:
    print("refused:", str(error))
"""
    with client(server, home, body) as child:
        assert "pass the query's writer to WalSink.run or WalSink.start" in child.succeed()


@pytest.mark.parametrize(
    ("made", "writer", "expected"),
    [
        ("home.sink(sink)", '.format("memory")', "the writer has the target memory already"),
        ("home.sink(sink)", '.option("checkpointLocation", "/elsewhere")', "Pass the checkpoint to WalSink alone"),
        ("home.sink(sink, settings=Settings(max_pending_batches=2))", "", "max_pending_batches cannot hold back"),
        ("home.sink(sink, storage_options={'key': 'AKIAVERYSECRET'})", "", "'key' may hold a secret"),
    ],
)
def test_what_cannot_work_over_connect_is_refused(
    server: ConnectServer, home: Home, made: str, writer: str, expected: str
) -> None:
    home.feed.add(range(3))
    body = f"""
from wal_sink import ConfigError
try:
    {made}.start(home.feed.stream(spark).writeStream{writer})
except ConfigError as error:
    print("refused:", error)
"""
    with client(server, home, body) as child:
        said = child.succeed()
    assert expected in said
    assert "AKIAVERYSECRET" not in said


def test_the_format_is_found_over_connect_without_a_registration(server: ConnectServer, home: Home) -> None:
    home.feed.add(range(10))
    body = (
        RUN
        + """
found = spark.read.format("wal_sink").load(str(home.wal)).orderBy("id").collect()
assert [row.id for row in found] == list(range(10)), found
"""
    )
    with client(server, home, body) as child:
        child.succeed()

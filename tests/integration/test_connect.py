"""Spark Connect: the server stages through `format("wal_sink")`, and the client delivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.connect import RUN, client, delivered
from tests.support.servers.connect_server import ConnectServer, connect_server
from tests.support.streams import Home

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_query_over_connect_is_staged_on_the_server_and_delivered_here(server: ConnectServer, home: Home) -> None:
    home.feed.add(range(20), range(20, 45))
    with client(server, home) as child:
        child.succeed()
    assert delivered(home) == list(range(45))
    home.feed.add(range(45, 60))
    with client(server, home) as child:
        child.succeed()
    assert delivered(home) == list(range(60))


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
        child.wait_until(lambda: delivered(home) == list(range(20)), "the first batch is delivered")
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
    assert delivered(home) == list(range(40))


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

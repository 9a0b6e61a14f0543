"""Spark Connect: the server stages through `format("wal_sink")`, and the client delivers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.connect import RUN, client, delivered
from tests.integration import test_debezium
from tests.support.processes import Child
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


READ = """
found = spark.read.format("wal_sink").load(str(home.wal)).orderBy("id").collect()
print("read:", [row.id for row in found])
"""


@pytest.fixture(scope="module")
def served(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str]:
    """The home of a query that two clients ran, one after the other, and what the second one said."""
    home = Home(tmp_path_factory.mktemp("served"))
    home.feed.add(range(20), range(20, 45))
    with client(server, home) as child:
        child.succeed()
    assert delivered(home) == list(range(45))
    home.feed.add(range(45, 60))
    with client(server, home, RUN + READ) as child:
        return home, child.succeed()


def test_a_query_over_connect_is_staged_on_the_server_and_delivered_here(served: tuple[Home, str]) -> None:
    home, _ = served
    assert delivered(home) == list(range(60))


def test_the_format_is_found_over_connect_without_a_registration(served: tuple[Home, str]) -> None:
    _, said = served
    assert f"read: {list(range(60))}" in said


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


CHANGES = """
from wal_sink_backends.changes import debezium
text = spark.readStream.text(str(home.feed.folder))
rows = debezium(text, columns="id BIGINT, name STRING", key="id", connector="mysql")
with home.sink(sink) as served:
    served.run(rows.writeStream.trigger(availableNow=True))
"""


def test_change_events_become_rows_on_the_server(server: ConnectServer, home: Home) -> None:
    home.feed.add_text((test_debezium.EVENTS / "mysql.jsonl").read_text())
    with client(server, home, CHANGES) as child:
        child.succeed()
    assert delivered(home) == [1, 1, 1, 2, 3, 3, 3, 4]


WRONG = (
    ("home.sink(sink)", '.format("memory")', "the writer has the target memory already"),
    ("home.sink(sink)", '.option("checkpointLocation", "/elsewhere")', "Pass the checkpoint to WalSink alone"),
    ("home.sink(sink, settings=Settings(max_pending_batches=2))", "", "max_pending_batches cannot hold back"),
    ("home.sink(sink, storage_options={'key': 'AKIAVERYSECRET'})", "", "'key' may hold a secret"),
    ("home.sink(sink, checkpoint_options={'anon': True})", "", "checkpoint_options stay in this process"),
)
"""The sink that is passed to `start`, the text that is added to the writer, and the text of the error."""
REFUSED = """
from wal_sink import ConfigError
home = Home(Path(sys.argv[2]) / "$NUMBER")
home.feed.add(range(3))
sink = SqlSink(f"sqlite:///{home.root / 'out.db'}", "rows")
try:
    $MADE.start(home.feed.stream(spark).writeStream$WRITER)
except ConfigError as error:
    print("refused $NUMBER:", *str(error).split())
"""
STAGED = """
home = Home(Path(sys.argv[2]) / "staged")
home.feed.add(range(3))
def take(df, batch_id):
    served.stage(df, batch_id)
served = home.sink(None)
query = home.feed.stream(spark).writeStream.option("checkpointLocation", str(home.checkpoint))
try:
    query.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()
except Exception as error:
    print("not staged:", *str(error).split())
"""
"""`foreachBatch` runs in a process of the server, on a DataFrame of Spark Connect."""


@pytest.fixture(scope="module")
def refusals(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a client that makes every mistake, one after the other."""
    home = Home(tmp_path_factory.mktemp("refusals"))
    tried = [
        REFUSED.replace("$MADE", made).replace("$WRITER", writer).replace("$NUMBER", str(number))
        for number, (made, writer, _) in enumerate(WRONG)
    ]
    with client(server, home, "".join([*tried, STAGED])) as child:
        return child.succeed()


def test_what_cannot_work_over_connect_is_refused(refusals: str) -> None:
    said = dict(line.split(":", 1) for line in refusals.splitlines() if line.startswith("refused "))
    missed = [
        (made, writer, told)
        for number, (made, writer, expected) in enumerate(WRONG)
        if expected not in (told := said.get(f"refused {number}", ""))
    ]
    assert missed == []
    assert "AKIAVERYSECRET" not in refusals


SLOW = """
import time
from tests.support.streams import Lines
import wal_sink.spark.connect as connect
connect.ASK_EVERY_S = $EVERY
connect.STOP_WAIT_S = 5.0
to = Lines(home.root / "out.jsonl", pause_s=0.5)
"""
WAITING = """
with home.sink(to) as served:
    query = served.start(home.feed.stream(spark).writeStream.trigger(processingTime="1 second"))
    while to.ids() != [0, 1, 2]:
        time.sleep(0.1)
    print("client: delivered", flush=True)
    connect.ASK_EVERY_S = $EVERY
    time.sleep($SLEEP)
"""
"""A client that asks every second until the first batch is delivered, then at another pace."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server that ends a session without requests after 10 seconds."""
    keys = {"defaultSessionTimeout": "10s", "maintenanceInterval": "1s"}
    conf = {f"spark.connect.session.manager.{key}": value for key, value in keys.items()}
    with connect_server(tmp_path_factory.mktemp("impatient"), conf) as running:
        yield running


def _waiting(every_s: float, sleep_s: float) -> str:
    return SLOW.replace("$EVERY", "1") + WAITING.replace("$EVERY", str(every_s)).replace("$SLEEP", str(sleep_s))


def test_a_query_that_nobody_asks_about_keeps_its_session(impatient: ConnectServer, home: Home) -> None:
    home.feed.add(range(3))
    body = _waiting(1.0, 20.0) + '    print("client: active", query.isActive)\n'
    with client(impatient, home, body) as child:
        assert "client: active True" in child.succeed()


def test_a_query_that_ended_with_its_session_is_a_failure(impatient: ConnectServer, home: Home) -> None:
    home.feed.add(range(3))
    with client(impatient, home, _waiting(600.0, 25.0)) as child:
        assert child.wait() != 0
        assert "does not have the query" in child.output
    assert home.lines.ids() == [0, 1, 2]


# A server that is killed, with two clients.


def test_a_start_whose_answer_is_lost_goes_on_with_the_query_that_runs(server: ConnectServer, home: Home) -> None:
    home.feed.add(range(20))
    body = (
        """
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter
start = DataStreamWriter.start
def losing(writer):
    start(writer)
    raise SparkConnectGrpcException("Socket closed")
DataStreamWriter.start = losing
"""
        + RUN.replace("availableNow=True", 'processingTime="1 second"').replace("served.run(", "query = served.start(")
        + """
    while len(list(home.checkpoint.glob("commits/[0-9]*"))) < 1:
        time.sleep(0.1)
    assert query.isActive
"""
    )
    with client(server, home, "import time\n" + body) as child:
        assert "This process continues with that query" in child.succeed()
    assert delivered(home) == list(range(20))


def test_stage_over_connect_is_refused_with_the_way(refusals: str) -> None:
    assert "not staged:" in refusals
    assert "pass the query's writer to WalSink.run or WalSink.start" in refusals


def test_a_query_that_fails_on_the_server_is_noticed_while_it_is_followed(server: ConnectServer, home: Home) -> None:
    home.feed.add(range(3), range(3, 6))
    failing = "if(id < 3, id, raise_error('too large')) AS id"
    body = _waiting(1.0, 120.0).replace("stream(spark)", f'stream(spark).selectExpr("{failing}")')
    body = body.replace("time.sleep(120.0)", 'wait_until((home.root / "noticed").exists)')
    body = "from tests.support.waiting import wait_until\n" + body
    with client(server, home, body) as child:
        child.wait_for_output("has ended on its server of Spark Connect")
        (home.root / "noticed").touch()
        assert child.wait() != 0
        assert "StreamingQueryException" in child.output
    assert home.lines.ids() == [0, 1, 2]


DELIVERING = (
    SLOW.replace("$EVERY", "1")
    + """
served = home.sink(to, settings=Settings(chunk_rows=1))
served.start(home.feed.stream(spark).writeStream)
while not (home.root / "killed").exists():
    time.sleep(0.1)
print("client: rows before the end", len(to.ids()), flush=True)
served.close()
"""
)


FOLLOWING = """
with home.sink(home.lines) as served:
    served.run(home.feed.stream(spark).writeStream)
"""


@dataclass(frozen=True)
class Left:
    """A client whose server was killed."""

    home: Home
    child: Child


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Left]]:
    """A client that is delivering a batch, and one that follows its query and gets Ctrl-C right after that."""
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as stack:
        running = stack.enter_context(connect_server(folder / "server"))
        clients = dict[str, Left]()
        for name, body, rows in (("delivering", DELIVERING, 30), ("following", FOLLOWING, 3)):
            home = Home(folder / name)
            home.feed.add(range(rows))
            clients[name] = Left(home, stack.enter_context(client(running, home, body)))
        delivering, following = clients["delivering"], clients["following"]
        following.child.wait_until(lambda: following.home.lines.ids() == [0, 1, 2], "the batch is delivered")
        delivering.child.wait_until(lambda: bool(delivering.home.lines.ids()), "delivery began")
        running.process.kill()
        following.child.send(signal.SIGINT)
        (delivering.home.root / "killed").touch()
        yield clients


def test_what_is_complete_is_delivered_although_the_server_is_gone_and_the_end_is_an_error(
    left: dict[str, Left],
) -> None:
    client = left["delivering"]
    client.child.wait_for_output("did not confirm that the query")  # then PySpark's own threads go on for minutes
    assert "rows before the end 30" not in client.child.output
    assert client.home.lines.ids() == list(range(30))


def test_ctrl_c_beside_a_dead_server_ends_the_committers_first(left: dict[str, Left]) -> None:
    home, child = left["following"].home, left["following"].child
    child.wait_until(lambda: home.sink(None).status().sinks[0].state == "ended", "the end is recorded")
    child.send(signal.SIGINT)  # a second one does not wait for the server; PySpark's own threads do
    child.wait_for_output("KeyboardInterrupt")

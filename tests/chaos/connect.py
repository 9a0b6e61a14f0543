"""Servers of Spark Connect that are killed while a query stages on them, each with its client."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from contextlib import closing

from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.processes import Child, ChildError
from tests.support.servers.connect_server import ConnectServer, connect_server
from tests.support.streams import Home

KILLS = 10
BATCHES = 12
"""Batches that each life gets to do."""
ROWS = 10
"""Rows of a batch."""
LIMIT_S = 240.0
LONGEST_DELAY_S = 1.0
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


def client(server: ConnectServer, home: Home, body: str = RUN) -> Child:
    """Start a program over Spark Connect. It has `spark`, `home`, and `sink`, a table in a file."""
    source = CLIENT.replace("$BODY", body)
    return Child.python(source, server.url, home.root, log=home.root / "client.log", limit_s=LIMIT_S)


def delivered(home: Home) -> list[int]:
    """Return every row of the target, sorted."""
    file = home.root / "out.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as target:
        if not target.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchall():
            return []
        return [number for (number,) in target.execute("SELECT id FROM rows ORDER BY id")]


def killed_servers(effort: Effort) -> Outcome:
    """Kill the server some moment after the first rows of each life, then its client; start both again.

    The client is killed because PySpark's client goes on asking a server that is gone, for about ten minutes.
    """
    chance = random.Random(effort.seed)
    kills = effort.times(KILLS, least=2)
    home = Home(effort.folder)
    outcome = Outcome()
    left = []
    try:
        for life in range(kills + 1):
            end = (life + 1) * BATCHES
            home.feed.add(*(range(number * ROWS, (number + 1) * ROWS) for number in range(life * BATCHES, end)))
            with connect_server(effort.folder / f"server-{life}") as running, client(running, home) as child:
                if life == kills:
                    child.succeed()
                    break
                before = len(delivered(home))
                child.wait_until(lambda: len(delivered(home)) > before, "rows of this life are delivered")  # noqa: B023
                time.sleep(chance.uniform(0.0, LONGEST_DELAY_S))
                running.process.kill()
                left.append(end * ROWS - len(delivered(home)))
                child.kill()
                outcome.rounds += 1
    except ChildError as error:
        outcome.violations.append(f"seed {effort.seed}: {error}")
    found, expected = Counter(delivered(home)), range((kills + 1) * BATCHES * ROWS)
    outcome.lost = sum(row not in found for row in expected)
    outcome.repeated = sum(times - 1 for times in found.values())
    if not any(left):
        outcome.violations.append("every query was done before its server was killed")
    outcome.detail = f"rows that were not delivered yet when the server was killed: {', '.join(map(str, left))}"
    return outcome


SCENARIOS = [
    Scenario(
        "servers of Spark Connect killed",
        "SIGKILL of the server and its client loses no row and repeats none in a table",
        "kill",
        killed_servers,
    )
]

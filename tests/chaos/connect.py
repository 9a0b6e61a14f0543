"""Servers of Spark Connect that are killed while a query stages on them, alone or with their client."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

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
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as target:
        if not target.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchall():
            return []
        return [number for (number,) in target.execute("SELECT id FROM rows ORDER BY id")]


def newest(home: Home, log: str) -> int:
    """The newest entry of a log of the checkpoint; -1 if there is none."""
    return max((int(entry.name) for entry in (home.checkpoint / log).glob("[0-9]*")), default=-1)


def planned(home: Home) -> int | None:
    """The batch that the checkpoint has planned and not completed; None if there is none."""
    batch_id = newest(home, "offsets")
    return batch_id if batch_id > newest(home, "commits") else None


@dataclass
class Kills:
    """The kills of one scenario, and what each met."""

    home: Home
    folder: Path
    chance: random.Random
    done: int = 0
    alone: int = 0
    """Kills whose client lived on, met the next server, and ended by itself."""
    planned: int = 0
    """Kills that met a batch which was planned and not complete."""
    staged: int = 0
    """Those of them whose batch had a manifest already."""
    left: list[int] = field(default_factory=list)
    """Rows that were not delivered yet when the server was killed."""

    def kill(self, running: ConnectServer, child: Child, fed: int) -> None:
        """Kill the server some moment after the first batch of this life, most times while a batch is planned.

        Not after the first delivered rows: the client looks for complete batches every 5 s at most, and by then the
        server may have done them all.
        """
        before = newest(self.home, "commits")
        child.wait_until(lambda: newest(self.home, "commits") > before, "a batch of this life is complete")
        time.sleep(self.chance.uniform(0.0, LONGEST_DELAY_S))
        if self.done % 4:
            last = fed // ROWS - 1
            child.wait_until(
                lambda: planned(self.home) is not None or newest(self.home, "commits") == last, "a batch is planned"
            )
        running.process.kill()
        if (batch_id := planned(self.home)) is not None:
            self.planned += 1
            self.staged += any(self.home.wal.glob(f"batches/{batch_id:019}/manifest-*"))
        self.left.append(fed - len(delivered(self.home)))
        self.done += 1


def killed_servers(effort: Effort) -> Outcome:
    """Kill the server in each life, and its client in every second one; start both again."""
    count = effort.times(KILLS, least=2)
    home = Home(effort.folder)
    kills = Kills(home, effort.folder, random.Random(effort.seed))
    outcome = Outcome()
    try:
        with ExitStack() as servers:
            running = servers.enter_context(connect_server(effort.folder / "server-0"))
            for life in range(count):
                running = _one_life(kills, servers, running, life)
                outcome.rounds += 1
            _feed(home, count)
            with client(running, home) as child:
                child.succeed()
    except ChildError as error:
        outcome.violations.append(f"seed {effort.seed}: {error}")
    _judge(outcome, kills, Counter(delivered(home)), range((count + 1) * BATCHES * ROWS))
    return outcome


def _feed(home: Home, life: int) -> int:
    """Add the input of one life. Return how many rows there are now."""
    end = (life + 1) * BATCHES
    home.feed.add(*(range(number * ROWS, (number + 1) * ROWS) for number in range(life * BATCHES, end)))
    return end * ROWS


def _one_life(kills: Kills, servers: ExitStack, running: ConnectServer, life: int) -> ConnectServer:
    """One server that is killed. Return the next one, which has the same address.

    In every second life the client lives on. It asks the next server for its query, and ends by the answer.
    """
    fed = _feed(kills.home, life)
    with client(running, kills.home) as child:
        kills.kill(running, child, fed)
        if life % 2 == 0:
            child.kill()
        folder = kills.folder / f"server-{life + 1}"
        following: ConnectServer = servers.enter_context(connect_server(folder, port=running.port))
        if life % 2:
            if child.wait() == 0 or "Traceback" not in child.output:
                raise ChildError(f"the client of server {life} ended without an error:\n{child.output[-2000:]}")
            kills.alone += 1
    return following


def _judge(outcome: Outcome, kills: Kills, found: Counter[int], expected: range) -> None:
    outcome.lost = sum(row not in found for row in expected)
    outcome.repeated = sum(times - 1 for times in found.values())
    if not any(kills.left):
        outcome.violations.append("every query was done before its server was killed")
    if not kills.planned:
        outcome.violations.append("no kill met a batch that was planned and not complete")
    if not kills.alone:
        outcome.violations.append("no client outlived its server")
    outcome.detail = (
        f"rows that were not delivered yet when the server was killed: {', '.join(map(str, kills.left))}. "
        f"{kills.planned} of {kills.done} kills met a batch that was planned and not complete, {kills.staged} of these "
        f"one that was staged already. {kills.alone} clients outlived their server, met the next one, and ended by an "
        "error"
    )


SCENARIOS = [
    Scenario(
        "servers of Spark Connect killed",
        "SIGKILL of the server, alone or with its client, loses no row and repeats none in a table",
        "kill",
        killed_servers,
    )
]

"""Drivers that are killed while their queries stage and deliver, with each WAL on another store that has a server."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import Child
from tests.support.streams import SESSION, Feed
from tests.support.waiting import wait_until
from wal_sink import Chunk
from wal_sink_backends.sql import SqlSink

BATCHES, ROWS = 6, 40
GATE = "gate"

DRIVER = (
    SESSION.format(master="local[2]")
    + """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.support.streams import Feed
from tests.support.killed_drivers import Gated
from wal_sink import Settings, WalSink

def run(root, wal, checkpoint, options):  # a start may wait for the gate, while other queries go on
    settings = Settings(chunk_rows=10)
    with WalSink(Gated(root), wal=wal, checkpoint=checkpoint, settings=settings, storage_options=options) as sink:
        sink.run(Feed(Path(root) / "in").stream(spark).writeStream.trigger(availableNow=True))

queries = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(queries)) as pool:
    for started in [pool.submit(run, *query) for query in queries]:
        started.result()
spark.stop()
"""
)


@dataclass(frozen=True)
class Served:
    """A query: its folder, its WAL on a store with a server, and its checkpoint."""

    root: Path
    wal: str
    checkpoint: str
    objects: Callable[[], Iterable[str]]
    """Lists the paths in the WAL without wal-sink."""
    options: Mapping[str, Any]

    def is_staged(self) -> bool:
        """Whether there is more than a segment, or more than a manifest."""
        return sum(path.startswith("batches/") for path in self.objects()) > 1

    def rows(self) -> list[int]:
        """Return every row of the target, one number for each."""
        try:
            with closing(sqlite3.connect(f"file:{self.root}/rows.db?mode=ro", uri=True)) as database:
                return [row[0] for row in database.execute("select id from orders")]
        except sqlite3.OperationalError:  # there is no table yet
            return []


class Gated(SqlSink):
    """Takes the later half of the batches once a file is there: on a slow machine, too, no driver ends before it."""

    def __init__(self, root: str) -> None:
        super().__init__(f"sqlite:///{root}/rows.db", "orders")
        self._gate = Path(root) / GATE

    def write(self, chunk: Chunk) -> Any:
        if chunk.batch_id >= BATCHES // 2:
            wait_until(self._gate.exists, "the test opens the gate", timeout_s=600)
        return super().write(chunk)


def kill_twice(queries: Sequence[Served], folder: Path) -> None:
    """Kill a driver of all queries once each has staged a batch, and another once rows of each arrived.

    Each time, every query was under way. Then a third driver finishes all.
    """
    for query in queries:
        Feed(query.root / "in").add(*(range(n * ROWS, (n + 1) * ROWS) for n in range(BATCHES)))
    moments: Sequence[Callable[[Served], bool]] = (Served.is_staged, lambda query: bool(query.rows()))
    told = json.dumps([[str(each.root), each.wal, each.checkpoint, dict(each.options)] for each in queries])
    for number, moment in enumerate(moments):
        with Child.python(DRIVER, told, log=folder / f"driver-{number}") as child:
            child.wait_until(lambda: all(map(moment, queries)), "batches were staged, or rows arrived")  # noqa: B023
            child.kill()
        early = [query.wal for query in queries if len(query.rows()) == BATCHES * ROWS]
        assert early == [], "it was killed before the end"
    for query in queries:
        (query.root / GATE).touch()
    with Child.python(DRIVER, told, log=folder / "last") as child:
        child.succeed()


def lost_and_doubled(query: Served) -> tuple[set[int], set[int]]:
    """Return the rows that the target of a query lacks, and those that it has more than once or should not have."""
    counts = Counter(query.rows())
    expected = set(range(BATCHES * ROWS))
    return expected - set(counts), {row for row, times in counts.items() if times > 1 or row not in expected}

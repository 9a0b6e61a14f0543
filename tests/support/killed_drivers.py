"""Drivers that are killed while their query stages and delivers, with the WAL on a store with a server."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
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
from pathlib import Path
from tests.support.streams import Feed
from tests.support.killed_drivers import Gated
from wal_sink import Settings, WalSink
root, wal, checkpoint, options = sys.argv[1:]
to = Gated(root)
print("ready", flush=True)
settings = Settings(chunk_rows=10)
with WalSink(to, wal=wal, checkpoint=checkpoint, settings=settings, storage_options=json.loads(options)) as sink:
    sink.run(Feed(Path(root) / "in").stream(spark).writeStream.trigger(availableNow=True))
spark.stop()
"""
)


class Gated(SqlSink):
    """Takes the later half of the batches once a file is there: on a slow machine, too, no driver ends before it."""

    def __init__(self, root: str) -> None:
        super().__init__(f"sqlite:///{root}/rows.db", "orders")
        self._gate = Path(root) / GATE

    def write(self, chunk: Chunk) -> Any:
        if chunk.batch_id >= BATCHES // 2:
            wait_until(self._gate.exists, "the test opens the gate", timeout_s=600)
        return super().write(chunk)


def kill_twice(
    root: Path, wal: str, checkpoint: str, options: Mapping[str, object], *, objects: Callable[[], Iterable[str]]
) -> None:
    """Kill a driver once a batch is staged, and another once rows arrived. A third finishes; each row is there once.

    `objects` lists the paths in the WAL without wal-sink.
    """
    Feed(root / "in").add(*(range(n * ROWS, (n + 1) * ROWS) for n in range(BATCHES)))
    moments = (
        lambda: sum(path.startswith("batches/") for path in objects()) > 1,  # a segment, and the manifest
        lambda: len(_rows_in(root)) > 0,
    )
    arguments = (root, wal, checkpoint, json.dumps(options))
    for number, moment in enumerate(moments):
        with Child.python(DRIVER, *arguments, log=root / f"driver-{number}") as child:
            child.wait_until(moment, "a batch was staged, or rows arrived")
            child.kill()
        assert len(_rows_in(root)) < BATCHES * ROWS, "it was killed before the end"
    (root / GATE).touch()
    with Child.python(DRIVER, *arguments, log=root / "last") as child:
        child.succeed()
    counts = Counter(_rows_in(root))
    lost = set(range(BATCHES * ROWS)) - set(counts)
    doubled = {row for row, times in counts.items() if times > 1}
    assert (lost, doubled, len(counts)) == (set(), set(), BATCHES * ROWS)


def _rows_in(root: Path) -> list[int]:
    """Return every row of the target, one number for each."""
    try:
        with closing(sqlite3.connect(f"file:{root}/rows.db?mode=ro", uri=True)) as database:
            return [row[0] for row in database.execute("select id from orders")]
    except sqlite3.OperationalError:  # there is no table yet
        return []

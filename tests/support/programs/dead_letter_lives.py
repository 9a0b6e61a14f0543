"""Processes that deliver rows of which the target refuses some, or that replay these, until they are killed.

A folder holds the WAL and the checkpoint, as earlier processes left them. Only the query is a fake. The rest is what a
`WalSink` runs: the core, the local store, real time. Each life ends itself with SIGKILL, so that its connections to the
target end as those of any killed process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from tests.house.kit import served_sink
from tests.house.log import Log
from tests.house.protocol import Run
from tests.house.sinks import sink_from_url
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.forked import ForkedChild
from tests.support.made_up import live_through
from wal_sink.operate.replay import DeadLetters
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery, FaultyStore

BATCHES = 3
BATCH_ROWS = 16
CHUNK_ROWS = 4
NAME = "default"
_LIMIT_S = 240.0

Hook: TypeAlias = Callable[[str, str], None]


@dataclass(frozen=True)
class Death:
    """The end of a life: at the n-th matching operation of the WAL's store, or after some time."""

    what: str = ""
    """The beginning of the operation, for example `before create`."""
    where: str = ""
    """A part of the path."""
    nth: int = 1
    after_s: float | None = None

    def prepare(self) -> Hook:
        """Return the hook of the store."""
        if self.after_s is not None:
            threading.Timer(self.after_s, _die).start()
        seen: list[str] = []

        def hook(what: str, where: str) -> None:
            if self.what and what == self.what and self.where in where:
                seen.append(where)
                if len(seen) == self.nth:
                    _die()

        return hook


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal needs a moment


def batch_ids(batch_id: int) -> range:
    return range(batch_id * BATCH_ROWS, (batch_id + 1) * BATCH_ROWS)


def is_bad(row: int) -> bool:
    """Tell whether the target refuses a row. Most chunks have such a row."""
    return row % 5 == 3 and row % 16 < 12


ALL = [row for batch_id in range(BATCHES) for row in batch_ids(batch_id)]
BAD = [row for row in ALL if is_bad(row)]


def word_of(row: int) -> str:
    """Return the word of a row. The words of bad rows are too long for the target."""
    return f"word {row} " + "x" * 3_000 * is_bad(row)


def deliver(folder: Path, url: str, hook: Hook) -> None:
    """Take over, then stage, complete and deliver until all batches are done."""
    checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
    store = FaultyStore(open_store(StoreSpec(str(folder / "wal"))), hook)
    run = Run(store, checkpoint, Settings(chunk_rows=CHUNK_ROWS))
    sink = sink_from_url(url)
    served = served_sink(NAME, sink, Delivery(sink, on_rejected="dead_letter"), run.log)
    assert served.promise.guarantee == "exactly_once", served.promise.sentence
    live_through(run, [served], FakeQuery(checkpoint, lambda batch_id, _: _partitions(batch_id)), BATCHES)


def replay(folder: Path, url: str, hook: Hook) -> None:
    store = FaultyStore(open_store(StoreSpec(str(folder / "wal"))), hook)
    DeadLetters(Log(store, SYSTEM, SYSTEM.new_id()), name=NAME).replay(url)


def _partitions(batch_id: int) -> Sequence[pa.Table]:
    ids = batch_ids(batch_id)
    halves = (ids[: BATCH_ROWS // 2], ids[BATCH_ROWS // 2 :])
    return [pa.table({"id": list(half), "word": [word_of(row) for row in half]}) for half in halves]


def was_killed(
    do: Callable[[Path, str, Hook], None], folder: Path, url: str, death: Death, env: Mapping[str, str]
) -> bool:
    """Run one process. Return False if it finished. Raise `AssertionError` if it ended in any other way."""
    with ForkedChild(_live, do, folder, url, death, log=folder / "life.log", env=env, limit_s=_LIMIT_S) as child:
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.output
    return code != 0


def _live(do: Callable[[Path, str, Hook], None], folder: Path, url: str, death: Death) -> None:
    do(folder, url, death.prepare())

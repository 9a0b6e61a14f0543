"""The behaviour of a Spark query, as far as its checkpoint and its sink can see it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tests.house.stores import ObjectExists
from tests.simulation.histories.plans import Tamper, Tampering
from tests.simulation.histories.stores import SimulatedStore, Space
from wal_sink.testing.simulation.fake_query import QUERY_ID

_METADATA = msgspec.json.encode({"id": QUERY_ID})
_FIRST_PLAN_MS = 1_767_225_600_000


class QueryFailedError(Exception):
    """The query ended early."""


class Input(Protocol):
    """The input of the query, and the world's memory of its checkpoint."""

    restored: int
    """How often the checkpoint was restored to an older state."""

    def end_of(self, batch_id: int) -> int: ...
    def next_plan(self) -> int: ...


class Query:
    """One start of a query. Like Spark, it reads the checkpoint once, and ends if it is changed meanwhile."""

    def __init__(self, checkpoint: SimulatedStore, space: Space, given: Input) -> None:
        self._checkpoint = checkpoint
        self._given = given
        self._restored = given.restored
        if "metadata" not in space.objects:
            self._write("metadata", _METADATA)
        self.planned_ms = 0
        self.end = 0
        self._planned = newest(space, "offsets")
        self.batch_id = next_batch(space)
        if self.batch_id == self._planned:
            self._adopt(space.objects[f"offsets/{self.batch_id}"])

    def plan(self) -> None:
        """Write down the offsets of the batch, unless an earlier start of the query did."""
        if self.batch_id > self._planned:
            self.end = self._given.end_of(self.batch_id)
            self.planned_ms = _FIRST_PLAN_MS + self._given.next_plan()
            text = f'v1\n{{"batchTimestampMs":{self.planned_ms},"conf":{{}}}}\n{{"end":{self.end}}}'
            self._write(f"offsets/{self.batch_id}", text.encode())
            self._planned = self.batch_id

    def complete(self) -> None:
        self._write(f"commits/{self.batch_id}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.batch_id += 1

    def _adopt(self, entry: bytes) -> None:
        lines = entry.splitlines()
        self.planned_ms = int(msgspec.json.decode(lines[1])["batchTimestampMs"])
        self.end = end_in(entry)

    def _write(self, path: str, data: bytes) -> None:
        """Write an entry. A query that finds it there already ends, as Spark does with CONCURRENT_STREAM_LOG_UPDATE."""
        try:
            self._checkpoint.put(path, data, "before create", "after create", allow=self._own)
        except ObjectExists as error:
            raise QueryFailedError(str(error)) from error

    def _own(self) -> None:
        if self._given.restored != self._restored:
            raise QueryFailedError("the checkpoint was restored under this query")


def end_in(entry: bytes) -> int:
    """The end of the offsets in an entry of `offsets`."""
    return int(entry.rpartition(b":")[2].rstrip(b"}"))


def newest(space: Space, folder: str) -> int:
    return max((int(name) for name in space.list(folder)), default=-1)


def next_batch(space: Space) -> int:
    """The batch that a query started on this checkpoint runs: an entry without its commit is run again."""
    planned = newest(space, "offsets")
    return planned + (newest(space, "commits") == planned)


def tamper(space: Space, given: Tamper) -> None:
    """Change a checkpoint as people or a lost disk may change it."""
    if given.what is Tampering.FORGET:
        if (last := newest(space, "commits")) >= 0:
            space.delete([f"commits/{last}"])
        return
    for folder in ("offsets", "commits"):
        space.delete(f"{folder}/{name}" for name in space.list(folder) if int(name) > given.through)

"""Targets of the golden WALs: one of each kind. Their whole state is plain data, so that a file can hold it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.house.sinks import BatchCommit, CommitPosition, CommitSink, ReleasedBatch, SinkContext, StagedSegment
from wal_sink import BatchSink, Chunk, Rejected, Sink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks import LedgerEntry, Position, SegmentSink, Transaction

Hook = Callable[[str], None]


@dataclass
class Target:
    """The state that outlives processes, with rows given by their ids."""

    rows: list[int] = field(default_factory=list)
    """The rows, each as often as it arrived."""
    keys: list[str] = field(default_factory=list)
    """The keys of the chunks that arrived."""
    ledger: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    """Term, batch, rows and segment of each slot."""
    held: dict[str, list[int]] = field(default_factory=dict)
    """The rows of each open transaction, which no reader sees yet."""
    shown: list[str] = field(default_factory=list)
    """The transactions that were committed."""
    refused: list[int] = field(default_factory=list)
    """The ids of rows that the target refuses."""
    is_away: bool = False
    """True if no transaction can begin."""

    def refusal_of(self, chunk: Chunk) -> Rejected | None:
        found = {index: f"row {row} is refused" for index, row in enumerate(ids_of(chunk)) if row in self.refused}
        return Rejected(found) if found else None


def ids_of(chunk: Chunk) -> list[int]:
    found: Any = chunk.table.column("id").to_pylist()
    return [int(row) for row in found]


class Plain(Sink):
    """A sink that accepts every chunk."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook

    def write(self, chunk: Chunk) -> Rejected | None:
        self.hook("before write")
        rejected = self.target.refusal_of(chunk)
        refused = rejected.reasons if rejected else {}
        self.target.rows += [row for index, row in enumerate(ids_of(chunk)) if index not in refused]
        self.target.keys.append(chunk.key)
        self.hook("after write")
        return rejected


class Idempotent(Plain):
    """A sink that ignores keys that it has seen."""

    idempotent = True

    def write(self, chunk: Chunk) -> Rejected | None:
        return None if chunk.key in self.target.keys else super().write(chunk)


class LookedUp(Plain):
    """A sink that tells whether it has a chunk."""

    def was_applied(self, key: str) -> bool:
        return key in self.target.keys


class Transactional(TransactionalSink):
    """A sink that stores rows and position together."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook

    def last(self, slot: str) -> Position | None:
        stored = self._stored(slot)
        return stored.position if stored else None

    def write(self, chunk: Chunk) -> Rejected | None:
        self.hook("before write")
        if LedgerEntry.is_known(self._stored(chunk.position.slot), chunk, "the golden ledger"):
            return None
        rejected = self.target.refusal_of(chunk)
        if rejected is None:
            entry = LedgerEntry.of(chunk)
            at = entry.position
            self.target.rows += ids_of(chunk)
            self.target.ledger[at.slot] = (entry.term, at.batch_id, at.rows, at.segment_id)
        self.hook("after write")
        return rejected

    def _stored(self, slot: str) -> LedgerEntry | None:
        if slot not in self.target.ledger:
            return None
        term, batch_id, rows, segment_id = self.target.ledger[slot]
        return LedgerEntry(term, Position(slot, batch_id, rows, segment_id))


class TwoPhase(TwoPhaseSink):
    """A sink that holds rows back until they are committed. `begin` returns a token, so that the WAL stores one."""

    def __init__(self, target: Target, hook: Hook, *, keep_segments: bool = True) -> None:
        self.target, self.hook = target, hook
        self.keep_segments = keep_segments
        self.open_id = ""

    def begin(self, transaction: Transaction) -> str:
        if self.target.is_away:
            raise ConnectionError("unreachable")
        self.open_id = transaction.id
        self.target.held[transaction.id] = []
        return f"token of {transaction.id}"

    def write(self, chunk: Chunk) -> None:
        self.target.held[self.open_id] += ids_of(chunk)

    def prepare(self) -> str:
        return f"handle of {self.open_id}"

    def commit(self, transaction: Transaction, handle: str) -> None:
        self.hook("before commit")
        assert handle == f"handle of {transaction.id}"
        if transaction.id not in self.target.shown:
            self.target.rows += self.target.held.pop(transaction.id)
            self.target.shown.append(transaction.id)
        self.hook("after commit")

    def abort(self, transaction: Transaction, token: str) -> None:
        assert token in {"", f"token of {transaction.id}"}
        self.target.held.pop(transaction.id, None)


class Committed(CommitSink):
    """A sink that shows all rows of a batch at once. The handle of a segment is its rows."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook
        self.slot = ""

    def open(self, context: SinkContext) -> None:
        self.slot = f"{context.wal_id}/{context.sink}"

    def prepare(self, segment: StagedSegment) -> str:
        return json.dumps([row for chunk in segment.chunks for row in ids_of(chunk)])

    def position(self) -> CommitPosition | None:
        if self.slot not in self.target.ledger:
            return None
        _, batch_id, _, digest = self.target.ledger[self.slot]
        return CommitPosition(batch_id, digest)

    def commit(self, batch: BatchCommit) -> None:
        self.hook("before commit")
        assert self.position() == batch.follows
        self.target.rows += [row for handle in batch.handles for row in json.loads(handle)]
        self.target.ledger[self.slot] = (0, batch.batch_id, batch.rows, batch.digest)
        self.hook("after commit")


class BySegment(SegmentSink):
    """A sink that takes whole segments."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:  # noqa: ARG002 - the interface
        for chunk in chunks:
            self.target.rows += ids_of(chunk)
        self.hook("after write_segment")


class ByBatch(BatchSink):
    """A sink that takes whole batches."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write_batch(self, batch: ReleasedBatch) -> None:
        frame: Any = batch.read()
        self.target.rows += frame.column("id").to_pylist()

"""Targets of the golden WALs: one of each kind, whose whole state is plain data, so that it can lie in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from wal_sink import (
    BatchSink,
    Chunk,
    LedgerEntry,
    Position,
    Rejected,
    SegmentSink,
    Sink,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.base import ReleasedBatch

Hook = Callable[[str], None]


@dataclass
class Target:
    """What outlives processes, by the ids of rows."""

    rows: list[int] = field(default_factory=list)
    """Each row as often as it arrived."""
    keys: list[str] = field(default_factory=list)
    """Of the chunks that arrived."""
    ledger: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    """By slot: term, batch, rows, segment."""
    held: dict[str, list[int]] = field(default_factory=dict)
    """By transaction: rows that nobody sees yet."""
    shown: list[str] = field(default_factory=list)
    """The transactions that were committed."""
    refused: list[int] = field(default_factory=list)
    """Ids of rows that it does not take."""
    is_away: bool = False
    """Whether no transaction can be begun."""

    def refusal_of(self, chunk: Chunk) -> Rejected | None:
        found = {index: f"row {row} is refused" for index, row in enumerate(ids_of(chunk)) if row in self.refused}
        return Rejected(found) if found else None


def ids_of(chunk: Chunk) -> list[int]:
    found: Any = chunk.table.column("id").to_pylist()
    return [int(row) for row in found]


class Plain(Sink):
    """Takes whatever it is given."""

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
    """Ignores keys that it has seen."""

    idempotent = True

    def write(self, chunk: Chunk) -> Rejected | None:
        return None if chunk.key in self.target.keys else super().write(chunk)


class LookedUp(Plain):
    """Says whether it has a chunk."""

    def was_applied(self, key: str) -> bool:
        return key in self.target.keys


class Transactional(TransactionalSink):
    """Stores rows and position together."""

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
    """Holds rows back until they are committed. `begin` returns a token, so that the WAL keeps one."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook
        self.open_id = ""

    def begin(self, transaction: Transaction) -> str:
        if self.target.is_away:
            raise ConnectionError("away")
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


class BySegment(SegmentSink):
    """Takes segments whole."""

    def __init__(self, target: Target, hook: Hook) -> None:
        self.target, self.hook = target, hook

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:  # noqa: ARG002 - the interface
        for chunk in chunks:
            self.target.rows += ids_of(chunk)
        self.hook("after write_segment")


class ByBatch(BatchSink):
    """Takes batches whole."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write_batch(self, batch: ReleasedBatch) -> None:
        frame: Any = batch.read()
        self.target.rows += frame.column("id").to_pylist()

"""Targets that outlive processes, and one sink for each ability, through which processes reach them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.histories.judge import Judge
from tests.simulation.histories.segments import numbers_in
from wal_sink.delivery.segment import chunks_of
from wal_sink.errors import HandleGoneError
from wal_sink.messages import DeliveryContext
from wal_sink.sinks.base import (
    BatchSink,
    ReleasedBatch,
    SegmentSink,
    Sink,
    SinkContext,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest
from wal_sink.wal.segment_reader import load_segment


class CallingProcess(Protocol):
    """The process that calls a target."""

    number: int

    def met(self, what: str) -> None: ...
    def point(self, what: str, where: str) -> None: ...


class Receiver(Protocol):
    """The part of a target that a sink needs."""

    name: str
    ledger: dict[str, LedgerEntry]

    @property
    def keys(self) -> Container[str]: ...
    def called(self, life: Any, chunk: Chunk, numbers: list[int], /) -> None: ...
    def take(self, chunk: Chunk, numbers: list[int], /) -> None: ...


@dataclass(slots=True)
class Target:
    """The contents of one sink's target."""

    name: str
    judge: Judge
    keys: set[str] = field(default_factory=set)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are held back, by transaction."""
    shown: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are committed, by transaction."""

    def copy(self, judge: Judge) -> Target:
        held = {number: rows.copy() for number, rows in self.held.items()}
        return Target(self.name, judge, self.keys.copy(), self.ledger.copy(), held, self.shown.copy())

    def current(self) -> Target:
        """The copy that a new connection reaches."""
        return self

    def called(self, life: CallingProcess, chunk: Chunk, numbers: list[int]) -> None:
        ordinal = int(chunk.position.slot.rpartition("/")[2])
        self.judge.sent(life.number, self.name, numbers, batch_id=chunk.batch_id, ordinal=ordinal, term=chunk.term)

    def take(self, chunk: Chunk, numbers: list[int]) -> None:
        self.keys.add(chunk.key)
        self.judge.took_effect(self.name, chunk.key, numbers)


class PlainSink(Sink):
    def __init__(self, life: CallingProcess, target: Receiver) -> None:
        self._life = life
        self._target = target

    def write(self, chunk: Chunk) -> None:
        send(self._life, self._target, chunk, self._put)

    def _put(self, chunk: Chunk, numbers: list[int]) -> None:
        self._target.take(chunk, numbers)


class IdempotentSink(PlainSink):
    idempotent = True

    def _put(self, chunk: Chunk, numbers: list[int]) -> None:
        if chunk.key not in self._target.keys:
            self._target.take(chunk, numbers)


class LookupSink(PlainSink):
    def was_applied(self, key: str) -> bool:
        self._life.point("before lookup", key)
        return key in self._target.keys


class LedgerSink(PlainSink, TransactionalSink):
    def last(self, slot: str) -> Position | None:
        self._life.point("before last", slot)
        stored = self._target.ledger.get(slot)
        return stored.position if stored else None

    def _put(self, chunk: Chunk, numbers: list[int]) -> None:
        slot = chunk.position.slot
        if LedgerEntry.is_known(self._target.ledger.get(slot), chunk, self._target.name):
            return
        self._target.take(chunk, numbers)
        self._target.ledger[slot] = LedgerEntry.of(chunk)


class WholeSegmentSink(SegmentSink):
    def __init__(self, life: CallingProcess, target: Receiver) -> None:
        self._life = life
        self._target = target

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:  # noqa: ARG002
        for chunk in chunks:
            send(self._life, self._target, chunk, self._target.take)


class HoldingSink(TwoPhaseSink):
    """A two-phase sink. Its target remembers its commits, so it can tell which transactions were never committed."""

    def __init__(self, life: CallingProcess, target: Target) -> None:
        self._life = life
        self._target = target
        self._term = 0
        self._rows: list[int] = []

    def open(self, context: SinkContext) -> None:
        self._term = context.term

    def begin(self, transaction: Transaction) -> str:
        self._life.point("before begin", transaction.id)
        self._rows = self._target.held[transaction.id] = []
        self._life.point("after begin", transaction.id)
        return ""

    def write(self, chunk: Chunk) -> None:
        self._life.point("before hold", chunk.key)
        self._rows += numbers_in(chunk.table)
        self._life.point("after hold", chunk.key)

    def prepare(self) -> str:
        self._life.point("before prepare", "")
        return "a handle"

    def commit(self, transaction: Transaction, handle: str) -> None:
        assert handle == "a handle"
        target, term = self._target, self._term  # it may be opened again before this call goes on
        self._life.point("before sink", transaction.id)
        rows = target.held.get(transaction.id) or target.shown.get(transaction.id)
        if rows is None:
            self._life.met("gone")
            raise HandleGoneError(f"{transaction.id} is gone", never_committed=True)
        target.judge.sent(
            self._life.number,
            target.name,
            rows,
            batch_id=transaction.batch_id,
            ordinal=transaction.partition,
            term=term,
        )
        if target.held.pop(transaction.id, None) is not None:
            target.shown[transaction.id] = rows
            target.judge.took_effect(target.name, transaction.id, rows)
            self._life.met("committed")
        self._life.point("after sink", transaction.id)

    def abort(self, transaction: Transaction, token: str) -> None:  # noqa: ARG002 - the id is enough
        self._life.point("before abort", transaction.id)
        if self._target.held.pop(transaction.id, None) is not None:
            self._life.met("aborted")
        self._life.point("after abort", transaction.id)


class WholeBatchSink(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise AssertionError(f"`batch_writer` writes batch {batch.batch_id}")


SINKS: dict[str, Callable[[CallingProcess, Receiver], Sink]] = {
    "plain": PlainSink,
    "at_most_once": PlainSink,
    "idempotent": IdempotentSink,
    "lookup": LookupSink,
    "transactional": LedgerSink,
    "segment": WholeSegmentSink,
}


def sink_of(kind: str, life: CallingProcess, target: Target) -> Sink | BatchSink:
    if kind == "two_phase":
        return HoldingSink(life, target)
    return WholeBatchSink() if kind == "batch" else SINKS[kind](life, target)


def batch_writer(life: CallingProcess, target: Receiver, log: Log) -> Callable[[DeliveryContext, Manifest], None]:
    """A function that writes a whole batch, as a wrapped writer would."""

    def write(given: DeliveryContext, manifest: Manifest) -> None:
        for ordinal, segment in enumerate(manifest.segments):
            data = load_segment(log.store, segment)
            for chunk in chunks_of(given, ordinal, segment, data, 0, where=segment.path, reader=log.segment_reader):
                send(life, target, chunk, target.take)

    return write


def send(life: CallingProcess, target: Receiver, chunk: Chunk, put: Callable[[Chunk, list[int]], None]) -> None:
    """Call the target once. A crash, an error or a standstill may come before or after the call."""
    life.point("before sink", chunk.key)
    numbers = numbers_in(chunk.table)
    target.called(life, chunk, numbers)
    put(chunk, numbers)
    life.point("after sink", chunk.key)

"""Targets that lose what they acknowledged: commits, or only their rows. This works with any target and any sink that
gets chunks: a copy takes the target's place.

The copy is a new target. The sink itself wrote everything to it except the newest commits, or their rows. Processes do
not see the change: their next call reaches the copy, as after a fail-over to a standby that lagged behind. If the
author of the sink tells how to take and restore a snapshot, a target that forgets goes back itself instead, and the
sink keeps its memory. The target of a commit sink always goes back itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from wal_sink.sinks.base import (
    BatchCommit,
    CommitPosition,
    CommitSink,
    Lookup,
    Sink,
    SinkContext,
    StagedSegment,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.support.texts import name_of
from wal_sink.testing.data.rows import Row, Rows
from wal_sink.testing.simulation.process import resolve

T = TypeVar("T")
_DIGITS = "0123456789abcdef"


@dataclass(slots=True)
class _Commit:
    """One chunk that the target acknowledged, one transaction of a two-phase sink, or one commit of a commit sink."""

    context: Any
    chunks: list[Chunk]
    after: Any = None
    """The snapshot of the target with this chunk; None if none are taken."""
    transaction: Any = None
    state: Literal["prepared", "committed", "gone"] = "committed"

    def without_rows(self) -> _Commit:
        """Return the same commit, position and key included, with none of its rows."""
        return replace(self, chunks=[replace(chunk, table=chunk.table.slice(0, 0), rows=()) for chunk in self.chunks])


GoBack: TypeAlias = Callable[[T, Any], object]


@dataclass(frozen=True, slots=True)
class Restoring(Generic[T]):
    """The functions that take a snapshot of a target and bring it back, with a separate client."""

    snapshot: Callable[[T], Any]
    restore: GoBack[T] | None = None
    """Brings rows and positions back."""
    roll_back: GoBack[T] | None = None
    """Brings the rows back and leaves the positions."""


class Replaced(Generic[T]):
    """The target of one run, and the copies that take its place."""

    def __init__(
        self,
        make_sink: Callable[[T], object],
        new_target: Callable[[], T],
        rows_in: Callable[[T], Iterable[Row]],
        sent: Rows,
        restoring: Restoring[T] | None,
    ) -> None:
        self._make_sink = make_sink
        self._new_target = new_target
        self._rows_in = rows_in
        self._sent = sent
        self._snapshot = restoring.snapshot if restoring else None
        self._go_back = (restoring.restore, restoring.roll_back) if restoring else (None, None)
        self._target = new_target()
        self._before = sent.found(rows_in(self._target))
        self._empty = self._snapshot(self._target) if self._snapshot else None
        self._commits: list[_Commit] = []
        self._lost: list[Chunk] = []
        self.prepared: dict[str, _Commit] = {}
        """The transactions that are neither committed nor aborted, by their ids."""
        self.texts: dict[tuple[str, str], str] = {}
        """The token (`begin`) and the handle (`prepare`) of each transaction in the present copy, by its id."""
        self.number = 0
        """The number of the present copy. Each copy has other slots and keys: its target may hold those of others."""

    def make_sink(self) -> object:
        """Make a sink that reaches the present copy, in the form that `WalSink` accepts. For `Place`."""
        delivery, sink = resolve(self._make_sink(self._target))
        return replace(delivery, to=self._connected(sink))

    def delivered(self, rejected: Iterable[Row]) -> Rows:
        """Return the rows that this run added to the present copy and to the dead letters."""
        return self._sent.found([*self._rows_in(self._target), *rejected]).added_since(self._before)

    def lose(self, newest: int, *, keeps_positions: bool) -> None:
        """Lose this many of the newest commits: rows and positions together, or the rows alone."""
        kept, lost = self._commits[:-newest], self._commits[-newest:]
        self._lost += [chunk for commit in lost for chunk in commit.chunks]
        go_back = self._go_back[keeps_positions]
        if go_back is not None:
            if lost:
                go_back(self._target, kept[-1].after if kept else self._empty)
            self._commits = kept
            return
        left = [commit.without_rows() if keeps_positions else replace(commit, state="gone") for commit in lost]
        held, self._commits, self.prepared = list(self.prepared.values()), [], {}
        self._target, self.number = self._new_target(), self.number + 1
        self._before = self._sent.found(self._rows_in(self._target))
        for number, commit in enumerate(kept):
            if not self._copy(commit):  # the target refuses a chunk that it took before: its copy lags further behind
                self._lost += [chunk for rest in kept[number:] for chunk in rest.chunks]
                return
        for commit in (*left, *held):
            self._copy(commit)

    def _copy(self, commit: _Commit) -> bool:
        """Bring the new copy to have what the old one has of a commit. Return False if it refuses that."""
        copying = self._connected(self.new_sink())
        copying.open(commit.context)
        try:
            return copying.copy(commit)
        finally:
            copying.close()

    def _connected(self, sink: object) -> _Connection:
        kinds = {
            TransactionalSink: _LedgerConnection,
            TwoPhaseSink: _TwoPhaseConnection,
            CommitSink: _CommitConnection,
        }
        kind = next((ours for theirs, ours in kinds.items() if isinstance(sink, theirs)), _Connection)
        return kind(self, sink)

    def owes(self, marked: Iterable[int]) -> bool:
        """Tell whether a chunk of a marked batch is lost. Delivery must then refuse to continue."""
        return bool({chunk.batch_id for chunk in self._lost}.intersection(marked))

    def lost(self) -> tuple[str, ...]:
        """Return the rows that this target and its copies lost, as texts."""
        rows = Rows.sent(chunk.table for chunk in self._lost)
        return rows.difference(rows.found(())).lost

    # For connections.

    def new_sink(self) -> Any:
        """Make a sink that reaches the present copy."""
        return resolve(self._make_sink(self._target))[1]

    def acknowledged(self, context: SinkContext, chunk: Chunk) -> None:
        """Note that a chunk is in the target. An earlier call may have written it."""
        known = (commit.chunks[0].position for commit in self._commits)
        if any(at.slot == chunk.position.slot and at >= chunk.position for at in known):
            return
        self._note(context, [chunk])

    def shown(self, context: SinkContext | None, chunks: list[Chunk]) -> None:
        """Note that a commit sink has shown these rows of a batch. An earlier call may have done that."""
        if all(commit.chunks[0].batch_id != chunks[0].batch_id for commit in self._commits):
            self._note(context, chunks)

    def _note(self, context: SinkContext | None, chunks: list[Chunk]) -> None:
        after = self._snapshot(self._target) if self._snapshot else None
        self._commits.append(_Commit(context, chunks, after))

    def committed(self, transaction: Transaction) -> None:
        """Note that a transaction was committed. An earlier call may have done that."""
        if commit := self.prepared.pop(transaction.id, None):
            self._commits.append(replace(commit, state="committed"))


class _Connection(Sink):
    """A sink under test that is connected anew when another copy takes the place of its target."""

    driver_only = True

    def __init__(self, replaced: Replaced[Any], sink: Any) -> None:
        self._replaced = replaced
        self._number = replaced.number
        self._sink = sink
        self._context: SinkContext | None = None
        for name in ("max_chunk_rows", "max_chunk_bytes", "max_concurrency", "idempotent", "replaces_rows"):
            setattr(self, name, getattr(self._sink, name))
        if isinstance(sink, Lookup):
            self.was_applied = lambda key: self._reached().was_applied(self._renamed(key))

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._reached(is_open=False).open(replace(context, wal_id=self._renamed(context.wal_id)))

    def write(self, chunk: Chunk) -> Any:
        returned = self._reached().write(self._as_of_copy(chunk))
        if returned is None and self._context is not None:
            self._replaced.acknowledged(self._context, chunk)
        return returned

    def copy(self, commit: _Commit) -> bool:
        """Write a commit of the old copy to the new one. Return False if that refuses it."""
        return commit.state == "gone" or self.write(commit.chunks[0]) is None

    def close(self) -> None:
        self._context = None
        self._sink.close()

    def describe(self) -> str:
        return name_of(self._sink)

    def _reached(self, *, is_open: bool = True) -> Any:
        """Return the sink, connected to the present copy."""
        if self._number != self._replaced.number:
            if is_open:
                self._sink.close()
            self._number, self._sink = self._replaced.number, self._replaced.new_sink()
            if is_open and self._context is not None:
                self._sink.open(replace(self._context, wal_id=self._renamed(self._context.wal_id)))
        return self._sink

    def _as_of_copy(self, chunk: Chunk) -> Chunk:
        return replace(
            chunk,
            key=self._renamed(chunk.key),
            segment_id=self._renamed(chunk.segment_id),
            position=self._moved(chunk.position),
            follows=self._moved(chunk.follows) if chunk.follows else None,
        )

    def _moved(self, position: Position, *, back: bool = False) -> Position:
        slot, segment_id = (self._renamed(name, back=back) for name in (position.slot, position.segment_id))
        return replace(position, slot=slot, segment_id=segment_id)

    def _found(self, position: Position | None) -> Position | None:
        return self._moved(position, back=True) if isinstance(position, Position) else position

    def _renamed(self, name: str, *, back: bool = False) -> str:
        """Return the id of a copy for an original id (`back`: the reverse), by another first hexadecimal digit.

        A text that is no id comes from a wrong sink, and stays as it is.
        """
        if name[:1] not in _DIGITS or not name:
            return name
        turn = -self._number if back else self._number
        return _DIGITS[(_DIGITS.index(name[0]) + turn) % len(_DIGITS)] + name[1:]


class _LedgerConnection(_Connection, TransactionalSink):
    def last(self, slot: str) -> Position | None:
        return self._found(self._reached().last(self._renamed(slot)))

    def positions(self, slots: Sequence[str]) -> Any:
        sink = self._reached()  # before any renaming, since the names depend on the copy
        found = sink.positions([self._renamed(slot) for slot in slots])
        if not isinstance(found, Mapping):
            return found  # delivery refuses it
        return {self._renamed(slot, back=True): self._found(position) for slot, position in found.items()}


class _TwoPhaseConnection(_Connection, TwoPhaseSink):
    def __init__(self, replaced: Replaced[Any], sink: Any) -> None:
        super().__init__(replaced, sink)
        self.keep_segments, self.on_gone = sink.keep_segments, sink.on_gone
        self._begun: _Commit | None = None

    def begin(self, transaction: Transaction) -> Any:
        token = self._reached().begin(self._as_in_copy(transaction))
        self._begun = _Commit(self._context, [], transaction=transaction, state="prepared")
        return self._noted("begin", transaction, token)

    def write(self, chunk: Chunk) -> Any:
        returned = self._reached().write(self._as_of_copy(chunk))
        if self._begun is not None:
            self._begun.chunks.append(chunk)
        return returned

    def prepare(self) -> Any:
        handle = self._reached().prepare()
        begun, self._begun = self._begun, None
        if begun is not None:
            self._replaced.prepared[begun.transaction.id] = begun
            self._noted("prepare", begun.transaction, handle)
        return handle

    def commit(self, transaction: Transaction, handle: str) -> Any:
        sink = self._reached()
        mine = self._replaced.texts.get(("prepare", transaction.id), handle)
        returned = sink.commit(self._as_in_copy(transaction), mine)
        self._replaced.committed(transaction)
        return returned

    def abort(self, transaction: Transaction, token: str) -> None:
        sink = self._reached()
        sink.abort(self._as_in_copy(transaction), self._replaced.texts.get(("begin", transaction.id), token))
        self._replaced.prepared.pop(transaction.id, None)

    def copy(self, commit: _Commit) -> bool:
        token = self.begin(commit.transaction)
        for chunk in commit.chunks:
            self.write(chunk)
        handle = self.prepare()
        if commit.state == "committed":
            self.commit(commit.transaction, handle)
        elif commit.state == "gone":
            self.abort(commit.transaction, token)
        return True

    def close(self) -> None:
        self._begun = None
        super().close()

    def _reached(self, *, is_open: bool = True) -> Any:
        """Return the sink. A transaction that is under way continues in the present copy."""
        moved = self._number != self._replaced.number
        sink = super()._reached(is_open=is_open)
        if moved and self._begun is not None:
            transaction = self._begun.transaction
            self._noted("begin", transaction, sink.begin(self._as_in_copy(transaction)))
            for chunk in self._begun.chunks:
                sink.write(self._as_of_copy(chunk))
        return sink

    def _as_in_copy(self, transaction: Transaction) -> Transaction:
        return replace(transaction, id=self._renamed(transaction.id), wal_id=self._renamed(transaction.wal_id))

    def _noted(self, call: str, transaction: Transaction, text: Any) -> Any:
        self._replaced.texts[call, transaction.id] = text
        return text


class _CommitConnection(_Connection, CommitSink):
    def __init__(self, replaced: Replaced[Any], sink: Any) -> None:
        super().__init__(replaced, sink)
        self._prepared: dict[str, list[Chunk]] = {}

    def prepare(self, segment: StagedSegment) -> str:
        chunks = list(segment.chunks)
        handle: str = self._sink.prepare(replace(segment, chunks=iter(chunks)))
        self._prepared[handle] = chunks
        return handle

    def position(self) -> CommitPosition | None:
        found: CommitPosition | None = self._sink.position()
        return found

    def commit(self, batch: BatchCommit) -> Any:
        returned = self._sink.commit(batch)
        self._replaced.shown(self._context, [chunk for handle in batch.handles for chunk in self._prepared[handle]])
        return returned

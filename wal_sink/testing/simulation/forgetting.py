"""A transactional sink's target that loses what it acknowledged, for whatever target: a copy takes its place, unseen.

The copy is a new target to which all but the newest commits were written, through the sink itself. To the processes
nothing shows: the next call reaches the copy, as after a fail-over to a standby that lagged behind. Where the author of
the sink can say how the target is saved and restored, it is the target itself that goes back, and the sink keeps what
it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Rejected, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.testing.data.rows import Row, Rows
from wal_sink.testing.simulation.served import resolve

T = TypeVar("T")
_DIGITS = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Restoring(Generic[T]):
    """How a target is brought back to what it was, by a client of its own."""

    snapshot: Callable[[T], Any]
    restore: Callable[[T, Any], object]


class Targets(Protocol[T]):
    """Where targets and sinks come from."""

    def make_sink(self, target: T, /) -> object: ...
    def new_target(self) -> T: ...
    def rows_in(self, target: T, /) -> Iterable[Row]: ...


@dataclass(frozen=True, slots=True)
class _Commit:
    """What the target acknowledged."""

    context: SinkContext
    chunk: Chunk
    after: Any = None
    """The target once it had it, where that can be saved."""


class Replaced(Generic[T]):
    """The target of one run, and the copies that take its place."""

    def __init__(self, targets: Targets[T], sent: Rows, restoring: Restoring[T] | None) -> None:
        self._targets = targets
        self._sent = sent
        self._restoring = restoring
        self._target = targets.new_target()
        self._before = sent.found(targets.rows_in(self._target))
        self._empty = restoring.snapshot(self._target) if restoring else None
        self._commits: list[_Commit] = []
        self._lost: list[Chunk] = []
        self.number = 0
        """Of the present copy. It gives other names to slots and rows, since its target may hold what others wrote."""

    def make_sink(self) -> object:
        """For `Place`: what `WalSink` would take, with a sink that reaches the present copy."""
        delivery, sink = resolve(self._targets.make_sink(self._target))
        return replace(delivery, to=_Connection(self, cast("TransactionalSink", sink)))

    def delivered(self, rejected: Iterable[Row]) -> Rows:
        """What this run added to the present copy, and to the dead letters."""
        return self._sent.found([*self._targets.rows_in(self._target), *rejected]).added_since(self._before)

    def forget(self, newest: int) -> None:
        """Lose the newest commits, rows and positions together."""
        kept = self._commits[:-newest]
        self._lost += [commit.chunk for commit in self._commits[-newest:]]
        self._commits = []
        if self._restoring is not None:
            self._restoring.restore(self._target, kept[-1].after if kept else self._empty)
            self._commits = kept
            return
        self._target, self.number = self._targets.new_target(), self.number + 1
        self._before = self._sent.found(self._targets.rows_in(self._target))
        for number, commit in enumerate(kept):
            if not self._is_copied(commit):  # a target that changes its mind: its copy lags behind from here on
                self._lost += [rest.chunk for rest in kept[number:]]
                return

    def _is_copied(self, commit: _Commit) -> bool:
        """Write to the new copy what the old one had; False if it refuses that."""
        copying = _Connection(self, self.new_sink())
        copying.open(commit.context)
        try:
            return copying.write(commit.chunk) is None
        finally:
            copying.close()

    def owes(self, marked: Iterable[int]) -> bool:
        """Whether it lost something of a batch that is marked, so that delivery has to refuse to go on."""
        return bool({chunk.batch_id for chunk in self._lost}.intersection(marked))

    # For connections.

    def new_sink(self) -> TransactionalSink:
        sink = resolve(self._targets.make_sink(self._target))[1]
        return cast("TransactionalSink", sink)  # no other kind is made to forget

    def acknowledged(self, context: SinkContext, chunk: Chunk) -> None:
        """A chunk is in the target, perhaps since long ago."""
        if any(commit.chunk.position >= chunk.position for commit in self._commits if _is_of_slot(commit, chunk)):
            return
        after = self._restoring.snapshot(self._target) if self._restoring else None
        self._commits.append(_Commit(context, chunk, after))


class _Connection(TransactionalSink):
    """A sink under test, whose connection is replaced when its target is."""

    driver_only = True

    def __init__(self, replaced: Replaced[Any], sink: TransactionalSink) -> None:
        self._replaced = replaced
        self._number = replaced.number
        self._sink = sink
        self._context: SinkContext | None = None
        for name in ("max_chunk_rows", "max_chunk_bytes", "max_concurrency"):
            setattr(self, name, getattr(self._sink, name))

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._reached(is_open=False).open(replace(context, wal_id=self._renamed(context.wal_id)))

    def write(self, chunk: Chunk) -> Rejected | None:
        returned = self._reached().write(self._as_of_copy(chunk))
        if returned is None and self._context is not None:
            self._replaced.acknowledged(self._context, chunk)
        return returned

    def last(self, slot: str) -> Position | None:
        return self._found(self._reached().last(self._renamed(slot)))

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        sink = self._reached()  # first: it says under which names
        found: Any = sink.positions([self._renamed(slot) for slot in slots])
        if not isinstance(found, Mapping):
            return cast("Mapping[str, Position | None]", found)  # which delivery refuses
        return {self._renamed(slot, back=True): self._found(position) for slot, position in found.items()}

    def close(self) -> None:
        self._context = None
        self._sink.close()

    def describe(self) -> str:
        return name_of(self._sink)

    def _reached(self, *, is_open: bool = True) -> TransactionalSink:
        """The sink, connected to the present copy."""
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
        """Another name for each copy: every id begins with a hexadecimal digit. What is no id, a wrong sink made up."""
        if name[:1] not in _DIGITS or not name:
            return name
        turn = -self._number if back else self._number
        return _DIGITS[(_DIGITS.index(name[0]) + turn) % len(_DIGITS)] + name[1:]


def _is_of_slot(commit: _Commit, chunk: Chunk) -> bool:
    return commit.chunk.position.slot == chunk.position.slot

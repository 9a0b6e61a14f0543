"""Targets of transactional sinks that lose acknowledged commits. This works with any target: a copy takes its place.

The copy is a new target. The sink itself wrote everything to it except the newest commits. Processes do not see the
change: their next call reaches the copy, as after a fail-over to a standby that lagged behind. If the author of the
sink tells how to take and restore a snapshot, the target itself goes back instead, and the sink keeps its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast

from wal_sink.sinks.base import Rejected, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.support.texts import name_of
from wal_sink.testing.data.rows import Row, Rows
from wal_sink.testing.simulation.process import resolve

T = TypeVar("T")
_DIGITS = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class _Commit:
    """One chunk that the target acknowledged."""

    context: SinkContext
    chunk: Chunk
    after: Any = None
    """The snapshot of the target with this chunk; None if none are taken."""


Restoring: TypeAlias = tuple[Callable[[T], Any], Callable[[T, Any], object]]
"""The functions that take a snapshot of a target and restore it, with a separate client."""


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
        self._snapshot = restoring[0] if restoring else None
        self._restore = restoring[1] if restoring else None
        self._target = new_target()
        self._before = sent.found(rows_in(self._target))
        self._empty = self._snapshot(self._target) if self._snapshot else None
        self._commits: list[_Commit] = []
        self._lost: list[Chunk] = []
        self.number = 0
        """The number of the present copy. Each copy has other slots and keys: its target may hold those of others."""

    def make_sink(self) -> object:
        """Make a sink that reaches the present copy, in the form that `WalSink` accepts. For `Place`."""
        delivery, sink = resolve(self._make_sink(self._target))
        return replace(delivery, to=_Connection(self, cast("TransactionalSink", sink)))

    def delivered(self, rejected: Iterable[Row]) -> Rows:
        """Return the rows that this run added to the present copy and to the dead letters."""
        return self._sent.found([*self._rows_in(self._target), *rejected]).added_since(self._before)

    def forget(self, newest: int) -> None:
        """Lose this many of the newest commits, rows and positions together."""
        kept = self._commits[:-newest]
        self._lost += [commit.chunk for commit in self._commits[-newest:]]
        self._commits = []
        if self._restore is not None:
            self._restore(self._target, kept[-1].after if kept else self._empty)
            self._commits = kept
            return
        self._target, self.number = self._new_target(), self.number + 1
        self._before = self._sent.found(self._rows_in(self._target))
        for number, commit in enumerate(kept):
            if not self._copy(commit):  # the target refuses a chunk that it took before: its copy lags further behind
                self._lost += [rest.chunk for rest in kept[number:]]
                return

    def _copy(self, commit: _Commit) -> bool:
        """Write a chunk of the old copy to the new one. Return False if the new one refuses it."""
        copying = _Connection(self, self.new_sink())
        copying.open(commit.context)
        try:
            return copying.write(commit.chunk) is None
        finally:
            copying.close()

    def owes(self, marked: Iterable[int]) -> bool:
        """Tell whether a chunk of a marked batch is lost. Delivery must then refuse to continue."""
        return bool({chunk.batch_id for chunk in self._lost}.intersection(marked))

    # For connections.

    def new_sink(self) -> TransactionalSink:
        """Make a sink that reaches the present copy."""
        sink = resolve(self._make_sink(self._target))[1]
        return cast("TransactionalSink", sink)  # no other kind is made to forget

    def acknowledged(self, context: SinkContext, chunk: Chunk) -> None:
        """Note that a chunk is in the target. An earlier call may have written it."""
        if any(commit.chunk.position >= chunk.position for commit in self._commits if _is_of_slot(commit, chunk)):
            return
        after = self._snapshot(self._target) if self._snapshot else None
        self._commits.append(_Commit(context, chunk, after))


class _Connection(TransactionalSink):
    """A sink under test that is connected anew when another copy takes the place of its target."""

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
        sink = self._reached()  # before any renaming, since the names depend on the copy
        found: Any = sink.positions([self._renamed(slot) for slot in slots])
        if not isinstance(found, Mapping):
            return cast("Mapping[str, Position | None]", found)  # delivery refuses it
        return {self._renamed(slot, back=True): self._found(position) for slot, position in found.items()}

    def close(self) -> None:
        self._context = None
        self._sink.close()

    def describe(self) -> str:
        return name_of(self._sink)

    def _reached(self, *, is_open: bool = True) -> TransactionalSink:
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


def _is_of_slot(commit: _Commit, chunk: Chunk) -> bool:
    return commit.chunk.position.slot == chunk.position.slot

"""A user's sink with a point before and after each call, at which its process can die or the call can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from wal_sink.sinks.base import (
    BatchSink,
    Lookup,
    Rejected,
    ReleasedBatch,
    SegmentSink,
    Sink,
    SinkContext,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.support.texts import name_of
from wal_sink.testing.simulation.own_lines import OwnLines

SENDING = ("write", "begin", "prepare", "commit")
"""Calls in which a sink sends. In these, each line of the sink's own code is a point."""


_READING = ("was_applied", "last", "positions")
CALLS = ("open", "write", "write_segment", "write_batch", *_READING, *SENDING[1:], "abort", "close")
"""All calls that are points."""


class Watcher(Protocol):
    """An observer of every point. Its exceptions are raised at the point."""

    lines: bool
    """Whether each line of the sink's own code is a point too, while the sink sends."""

    def point(self, what: str, where: str) -> None:
        """Observe one point."""


class _Calls:
    """The calls of one sink, until its process dies."""

    def __init__(self, sink: Any, watcher: Watcher) -> None:
        self._sink = sink
        self._watcher = watcher
        self._lines = OwnLines(sink) if watcher.lines else None

    def __call__(self, name: str, where: str, *args: object) -> Any:
        self._watcher.point(f"before {name}", where)
        method: Callable[..., Any] = getattr(self._sink, name)
        if self._lines is not None and name.startswith(SENDING):
            returned = self._lines.call(method, *args, on_line=self._line)
        else:
            returned = method(*args)
        self._watcher.point(f"after {name}", where)
        return returned

    def _line(self, place: str) -> None:
        self._watcher.point("inside", place)

    def die(self) -> None:
        """Drop the sink without a call of `close`, as the end of a process does."""
        self._sink = None
        self._lines = None


class WatchedSink(Sink):
    """A sink that passes each call to the user's sink. `watched` makes one of the same kind."""

    def __init__(self, sink: Sink, watcher: Watcher) -> None:
        self._name = name_of(sink)
        self.calls = _Calls(sink, watcher)
        self.idempotent = sink.idempotent
        self.driver_only = True
        if isinstance(sink, Lookup):
            self.was_applied = self._was_applied

    def open(self, context: SinkContext) -> None:
        self.calls("open", f"for batch {context.batch_id}", context)

    def write(self, chunk: Chunk) -> Rejected | None:
        returned: Rejected | None = self.calls("write", _of(chunk), chunk)
        return returned

    def close(self) -> None:
        self.calls("close", "")

    def describe(self) -> str:
        return self._name

    def _was_applied(self, key: str) -> bool:
        applied: bool = self.calls("was_applied", key, key)
        return applied


class _WatchedLedger(WatchedSink, TransactionalSink):
    def last(self, slot: str) -> Position | None:
        position: Position | None = self.calls("last", slot, slot)
        return position

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        found: Mapping[str, Position | None] = self.calls("positions", f"of {len(slots)} slots", slots)
        return found


class _WatchedSegments(WatchedSink, SegmentSink):
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Rejected | None:
        where = f"segment {ordinal} of batch {batch_id}"
        returned: Rejected | None = self.calls("write_segment", where, ordinal, batch_id, chunks)
        return returned


class _WatchedTwoPhase(WatchedSink, TwoPhaseSink):
    def __init__(self, sink: TwoPhaseSink, watcher: Watcher) -> None:
        super().__init__(sink, watcher)
        self.keep_segments, self.on_gone = sink.keep_segments, sink.on_gone

    def begin(self, transaction: Transaction) -> str:
        begun: str = self.calls("begin", _of_transaction(transaction), transaction)
        return begun

    def write(self, chunk: Chunk) -> None:
        returned: None = self.calls("write", _of(chunk), chunk)
        return returned  # a wrong sink may return something

    def prepare(self) -> str:
        handle: str = self.calls("prepare", "")
        return handle

    def commit(self, transaction: Transaction, handle: str) -> None:
        returned: None = self.calls("commit", _of_transaction(transaction), transaction, handle)
        return returned

    def abort(self, transaction: Transaction, token: str) -> None:
        self.calls("abort", _of_transaction(transaction), transaction, token)


class WatchedBatches(BatchSink):
    """A writer of whole batches that passes each call to the user's writer."""

    def __init__(self, sink: BatchSink, watcher: Watcher) -> None:
        self._name = name_of(sink)
        self.calls = _Calls(sink, watcher)
        self.idempotent = sink.idempotent

    def write_batch(self, batch: ReleasedBatch) -> None:
        self.calls("write_batch", f"of batch {batch.batch_id}", batch)

    def describe(self) -> str:
        return self._name


Watched = WatchedSink | WatchedBatches


def watched(sink: Sink | BatchSink, watcher: Watcher) -> Watched:
    """Wrap a sink so that `watcher` sees every call. The result is a sink of the same kind."""
    if isinstance(sink, BatchSink):
        return WatchedBatches(sink, watcher)
    if isinstance(sink, TransactionalSink):
        return _WatchedLedger(sink, watcher)
    if isinstance(sink, TwoPhaseSink):
        return _WatchedTwoPhase(sink, watcher)
    if isinstance(sink, SegmentSink):
        return _WatchedSegments(sink, watcher)
    return WatchedSink(sink, watcher)


def _of(chunk: Chunk) -> str:
    if not isinstance(chunk.rows, range):
        return f"of {chunk.num_rows} rows of batch {chunk.batch_id}"
    ordinal = chunk.position.slot.rpartition("/")[2]
    return f"of rows {chunk.rows.start} to {chunk.rows.stop} of segment {ordinal} of batch {chunk.batch_id}"


def _of_transaction(transaction: Transaction) -> str:
    return f"of segment {transaction.partition}-{transaction.file_index} of batch {transaction.batch_id}"

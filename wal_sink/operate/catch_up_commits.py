"""The part of a `catch-up` that only commit sinks have: one position tells the batches that the target shows, and each
batch is sent only on the state that is expected then.
"""

from __future__ import annotations

from dataclasses import replace

from wal_sink.errors import HistoryError
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import without_segments
from wal_sink.operate.ledgers import asked
from wal_sink.protocol.positions import position_of
from wal_sink.sinks.base import BatchCommit, CommitPosition, CommitSink, SinkContext, StagedSegment
from wal_sink.support.texts import name_of


def read_position(log: Log, to: CommitSink, sink: str, *, wal_id: str, batch_id: int) -> CommitPosition | None:
    """The position of a sink in its target. `batch_id`: for messages. Raises `DeliveryError` and `HistoryError`."""
    with asked(log, to, without_segments(batch_id), wal_id=wal_id, sink=sink) as session:
        return position_of(session, to, "position")


def shown_through(found: CommitPosition | None) -> int:
    """The newest batch of a sink that the target shows; -1 if it shows none."""
    if found is None:
        return NOTHING
    return found.batch_id if found.is_shown else found.held_through


def told(found: CommitPosition | None) -> str:
    """A position in words."""
    if found is None:
        return "nothing"
    if found.is_shown:
        return f"batch {found.batch_id}"
    shows = f"batch {found.held_through}" if found.held_through > NOTHING else "nothing of this sink"
    return f"batch {found.batch_id}, which it does not show; it shows {shows}"


class OnState(CommitSink):
    """A commit sink that gets one batch, and only if its target has the position that is expected then.

    To the core that position is none: it may be one that the target does not show, and no marker tells of it. The
    target itself compares it when it commits.
    """

    def __init__(self, inner: CommitSink, batch_id: int, follows: CommitPosition | None) -> None:
        self._inner = inner
        self._batch_id = batch_id
        self._follows = follows
        self.driver_only = inner.driver_only

    def open(self, context: SinkContext) -> None:
        self._inner.open(context)

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return name_of(self._inner)

    def prepare(self, segment: StagedSegment) -> str:
        return self._inner.prepare(segment)

    def position(self) -> CommitPosition | None:
        """The position if it is that of the batch. Raises `HistoryError` for another one than is expected."""
        found = self._inner.position()
        if found == self._follows:
            return None
        if found is not None and found.is_shown and found.batch_id == self._batch_id:
            return found
        raise HistoryError(
            f"the target changed while it was caught up: expected {told(self._follows)}, found {told(found)}. It was "
            f"restored again, or another process delivers to it. Batch {self._batch_id} was not committed. Repeat the "
            "command"
        )

    def commit(self, batch: BatchCommit) -> None:
        self._inner.commit(replace(batch, follows=self._follows))

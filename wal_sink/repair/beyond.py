"""Targets that get only the rows that they lack, when a batch is sent again on purpose.

A transactional target tells by its ledger which rows of a batch it has (see `there`). A replay has separate slots, so
it never moves the position of another sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wal_sink.errors import PermanentError
from wal_sink.repair.positions_seen import PositionsSeen
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Lookup, Rejected, Sink, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position


class Beyond(PositionsSeen):
    """A transactional sink that begins each segment behind the rows that its target has by the slots of other sinks."""

    def __init__(self, inner: TransactionalSink) -> None:
        super().__init__(inner)
        self._there: Mapping[str, Position] = {}

    def begin_after(self, there: Mapping[str, Position]) -> None:
        """From now on the target counts as having these positions, by the slots of the replay."""
        self._there = there

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the chunk. The first one behind the rows that are there begins the slot of the replay."""
        slot = chunk.position.slot
        there = self._there.get(slot)
        if there is not None and chunk.start == there.rows:
            chunk = replace(chunk, start=0, follows=self.inner.last(slot))
        return self.inner.write(chunk)

    def seen(self, slot: str, found: Position | None) -> Position | None:
        there = self._there.get(slot)
        if there is None or (found is not None and found.batch_id >= there.batch_id):
            return found
        return there


class Asked(Sink):
    """A sink that looks up each chunk before it sends the chunk. Counts the rows that its target had."""

    def __init__(self, inner: Sink, lookup: Lookup) -> None:
        self._inner = inner
        self._lookup = lookup
        self.rows_there = 0

    def open(self, context: SinkContext) -> None:
        self._inner.open(context)

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return name_of(self._inner)

    def was_applied(self, key: str) -> bool:
        return self._lookup.was_applied(key)

    def write(self, chunk: Chunk) -> Rejected | None:
        answer: object = self._lookup.was_applied(chunk.key)
        if not isinstance(answer, bool):
            raise PermanentError(
                f"was_applied({chunk.key!r}) returned a {type(answer).__name__}: expected True or False; nothing was "
                "sent"
            )
        if answer:
            self.rows_there += chunk.num_rows
            return None
        return self._inner.write(chunk)

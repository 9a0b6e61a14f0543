"""A transactional target whose positions are seen in another way than its ledger holds them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Position


class PositionsSeen(TransactionalSink):
    """Passes everything on to a target but its positions."""

    def __init__(self, inner: TransactionalSink) -> None:
        self.inner = inner

    @abstractmethod
    def seen(self, slot: str, found: Position | None) -> Position | None:
        """The position that counts. `found`: the one in the ledger of the target."""

    def open(self, context: SinkContext) -> None:
        self.inner.open(context)

    def close(self) -> None:
        self.inner.close()

    def describe(self) -> str:
        return name_of(self.inner)

    def last(self, slot: str) -> Position | None:
        return self.seen(slot, self.inner.last(slot))

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        found = self.inner.positions(slots)
        return {slot: self.seen(slot, found.get(slot)) for slot in slots}

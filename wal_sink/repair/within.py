"""A target that gets a batch again only as far as it had it when its sink skipped the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Rejected, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.wal.records import Manifest


class Within(TransactionalSink):
    """A transactional sink that takes each segment of one batch up to a row. At that row the segment counts as whole.

    The rows end where a chunk ends, since they come from the ledger of the same target.
    """

    def __init__(
        self, inner: TransactionalSink, manifest: Manifest, slots: Sequence[str], limits: Sequence[int]
    ) -> None:
        """`slots` and `limits`: for each segment, its slot and the rows that are taken."""
        self._inner = inner
        self._limits = dict(zip(slots, limits, strict=True))
        self._whole = {
            slot: Position(slot, manifest.batch_id, segment.rows, segment.id)
            for slot, segment in zip(slots, manifest.segments, strict=True)
        }

    def open(self, context: SinkContext) -> None:
        self._inner.open(context)

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return name_of(self._inner)

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the chunk if the target had it."""
        if chunk.position.rows > self._limits[chunk.position.slot]:
            return None
        return self._inner.write(chunk)

    def last(self, slot: str) -> Position | None:
        return self._seen(slot, self._inner.last(slot))

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        found = self._inner.positions(slots)
        return {slot: self._seen(slot, found.get(slot)) for slot in slots}

    def _seen(self, slot: str, found: Position | None) -> Position | None:
        """The position that counts. `found`: the one in the ledger of the target."""
        whole, limit = self._whole[slot], self._limits[slot]
        reached = found is not None and (found.batch_id, found.rows) >= (whole.batch_id, limit)
        return whole if reached or limit == 0 else found

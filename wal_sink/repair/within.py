"""A target that gets a batch again only as far as it had it when its sink skipped the batch."""

from __future__ import annotations

from collections.abc import Sequence

from wal_sink.repair.positions_seen import PositionsSeen
from wal_sink.sinks.base import Rejected, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.wal.records import Manifest


class Within(PositionsSeen):
    """A transactional sink that takes each segment of one batch up to a row. At that row the segment counts as whole.

    The rows end where a chunk ends, since they come from the ledger of the same target.
    """

    def __init__(
        self, inner: TransactionalSink, manifest: Manifest, slots: Sequence[str], limits: Sequence[int]
    ) -> None:
        """`slots` and `limits`: for each segment, its slot and the rows that are taken."""
        super().__init__(inner)
        self._limits = dict(zip(slots, limits, strict=True))
        self._whole = {
            slot: Position(slot, manifest.batch_id, segment.rows, segment.id)
            for slot, segment in zip(slots, manifest.segments, strict=True)
        }

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the chunk if the target had it."""
        if chunk.position.rows > self._limits[chunk.position.slot]:
            return None
        return self.inner.write(chunk)

    def seen(self, slot: str, found: Position | None) -> Position | None:
        whole, limit = self._whole[slot], self._limits[slot]
        reached = found is not None and (found.batch_id, found.rows) >= (whole.batch_id, limit)
        return whole if reached or limit == 0 else found

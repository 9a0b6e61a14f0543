"""Targets that get only the rows that they lack, when a batch is sent again on purpose.

A transactional target tells by its ledger which rows of a batch it has. Every sink of the WAL, retired ones included,
may have delivered to this target before. A replay has separate slots, so it never moves the position of another sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Lookup, Rejected, Sink, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.guarantees import Ability
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker


class Beyond(TransactionalSink):
    """A transactional sink that begins each segment behind the rows that its target has by the slots of other sinks."""

    def __init__(self, inner: TransactionalSink) -> None:
        self.inner = inner
        self._there: Mapping[str, Position] = {}

    def begin_after(self, there: Mapping[str, Position]) -> None:
        """From now on the target counts as having these positions, by the slots of the replay."""
        self._there = there

    def open(self, context: SinkContext) -> None:
        self.inner.open(context)

    def close(self) -> None:
        self.inner.close()

    def describe(self) -> str:
        return name_of(self.inner)

    def last(self, slot: str) -> Position | None:
        return self._further(slot, self.inner.last(slot))

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        found = self.inner.positions(slots)
        return {slot: self._further(slot, found.get(slot)) for slot in slots}

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the chunk. The first one behind the rows that are there begins the slot of the replay."""
        slot = chunk.position.slot
        there = self._there.get(slot)
        if there is not None and chunk.start == there.rows:
            chunk = replace(chunk, start=0, follows=self.inner.last(slot))
        return self.inner.write(chunk)

    def _further(self, slot: str, found: Position | None) -> Position | None:
        there = self._there.get(slot)
        if there is None or (found is not None and found.batch_id >= there.batch_id):
            return found
        return there


class Asked(Sink):
    """A sink that is asked for each chunk before the chunk is sent. Counts the rows that its target had."""

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
                f"was_applied({chunk.key!r}) returned a {type(answer).__name__}: expected True or False"
            )
        if answer:
            self.rows_there += chunk.num_rows
            return None
        return self._inner.write(chunk)


def rows_there(
    log: Log, session: SinkSession, sink: TransactionalSink, wal_id: str, manifest: Manifest, *, others: Sequence[str]
) -> list[int]:
    """For each segment of a batch, the rows that the target has by the slots of these sinks.

    A position behind the batch stands for it only if the sink has the batch. Raises `ConfigError` if a sink skipped the
    batch and nobody knows how many of its rows the target has. Raises `SinkFailedError` if the target gives no answer.
    """
    most = [0] * len(manifest.segments)
    for name in others if manifest.segments else ():
        marker = log.find(Marker, paths.marker(name, manifest.batch_id))
        if marker is None:
            continue  # the sink does not have this batch, so later positions of it prove nothing
        slots = [slot_name(wal_id, name, ordinal) for ordinal in range(len(most))]
        found: Mapping[str, object] = session.call(f"positions of sink {name!r}", sink.positions, slots)
        for ordinal, slot in enumerate(slots):
            position = stored_position(f"last({slot!r})", slot, found.get(slot))
            most[ordinal] = max(most[ordinal], _rows(manifest, ordinal, position, marker, name))
    return most


def transactional(kind: str) -> bool:
    """Whether the target of a sink of this kind keeps positions."""
    return kind == Ability.TRANSACTIONAL.value


def _rows(manifest: Manifest, ordinal: int, position: Position | None, marker: Marker, name: str) -> int:
    segment = manifest.segments[ordinal]
    if position is None or position.batch_id < manifest.batch_id:
        return 0
    if position.batch_id == manifest.batch_id:
        return position.rows if position.segment_id == segment.id else 0
    if not marker.skipped:
        return segment.rows
    if marker.skipped_rows is None:
        raise ConfigError(
            f"batch {manifest.batch_id}: sink {name!r} skipped this batch, and its target may have some of the rows, "
            "but nobody recorded how many. Look into the target. To send all rows of the batch, whether they are there "
            "or not, give this repair up (wal-sink repairs give-up), then repeat the command with --again"
        )
    return marker.skipped_rows[ordinal] if ordinal < len(marker.skipped_rows) else 0

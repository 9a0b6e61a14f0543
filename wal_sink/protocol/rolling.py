"""Rolls: consecutive small batches that a sink shows as one. They become one segment, and one commit or file.

A roll is decided before any of its rows leave the log: its record names the last batch and the segment that holds the
rows of all. It is created for the first batch, once and for all processes. So a process that goes on, after a crash or
a takeover, delivers exactly the roll that another one began. Until then a roll is only in memory.

Every process that serves the sink must roll: one that does not would ignore a record. So a registration holds it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, RollRecord, SegmentRef
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.log.segment_writer import SegmentLimits, SegmentWriter, segment_names
from wal_sink.settings import Settings

if TYPE_CHECKING:
    from wal_sink.protocol.batch_delivery import BatchDelivery
    from wal_sink.protocol.dispatch import ServedSink

MOST_BATCHES = 1000
"""The most batches of a roll: a release and a few requests each are read again after a crash."""


class Rolling:
    """The roll that is being formed. Lives in the committer's process, not shared between threads."""

    def __init__(self, log: Log, served: ServedSink) -> None:
        self._log = log
        self._sink = served.name
        self._roll_s = served.delivery.roll_s
        self._roll_bytes = served.delivery.roll_bytes
        self._chunk_bytes = getattr(served.delivery.to, "max_chunk_bytes", None) or Settings().chunk_bytes
        self.batches: list[Manifest] = []
        """Released and complete, in order, the first one after the newest marker."""
        self.delivery: BatchDelivery | None = None
        """None until an attempt begins to deliver the roll."""
        self._record: RollRecord | None = None
        self._since_s = math.inf
        self._is_first = True

    @property
    def is_on(self) -> bool:
        """Whether this sink gets rolls."""
        return self._roll_s is not None

    def wait_s(self) -> float | None:
        """Seconds until the roll has to be delivered; None if there is none, or if it is decided and lacks batches."""
        if not self.batches or self._roll_s is None:
            return None
        if self._record is not None:
            return 0.0 if self.is_due() else None
        return max(0.0, self._since_s + self._roll_s - self._log.runtime.monotonic_s())

    def is_due(self) -> bool:
        """Whether the roll waits for no other batch: it is decided, full, or old enough."""
        if self._record is not None:
            return self.batches[-1].batch_id == self._record.through
        return bool(self.batches) and (
            self.wait_s() == 0 or len(self.batches) >= MOST_BATCHES or _bytes(self.batches) >= self._roll_bytes
        )

    def may_close(self) -> bool:
        """Whether the roll may be delivered without another batch. A decided one needs all its batches."""
        return bool(self.batches) and (self._record is None or self.is_due())

    def fits(self, manifest: Manifest) -> bool:
        """Whether the batch may join the roll: it is small enough, and its rows look alike."""
        if self._record is not None:
            return manifest.batch_id <= self._record.through
        if not self.batches:
            return True
        first = next((each for each in self.batches if each.segments), None)
        is_alike = first is None or not manifest.segments or _shape(first) == _shape(manifest)
        return is_alike and _bytes(self.batches) + manifest.bytes <= self._roll_bytes

    def take(self, manifest: Manifest) -> None:
        """Let the batch join the roll."""
        if not self.batches:
            self._since_s = self._log.runtime.monotonic_s()
        self.batches.append(manifest)

    def decide(self, term: int) -> Manifest | None:
        """Decide the roll. Returns the manifest of its last batch with rows, with the rows of all in one segment.

        None if another process decided for more batches, which must be taken first. Raises `CorruptError` if the record
        of a roll that was begun is lost.
        """
        first = self.batches[0].batch_id
        path = paths.roll(self._sink, first)
        record = self._record or self._log.find(RollRecord, path) or self._find_begun(first, path)
        if record is None:
            merged = self._merged(first)
            through = self.batches[-1].batch_id
            wanted = RollRecord(
                first_batch=first,
                through=through,
                segment=merged,
                term=term,
                run_id=self._log.run_id,
                **self._log.stamp(),
            )
            record, is_own = self._log.create_or_find(path, wanted)
            if not is_own and merged is not None:
                self._log.store.delete([merged.path])
        self._is_first = False
        self._record = record
        self.batches = [each for each in self.batches if each.batch_id <= record.through]
        if self.batches[-1].batch_id < record.through:
            return None
        last = next((each for each in reversed(self.batches) if each.segments), self.batches[-1])
        if record.segment is None:
            return last
        return msgspec.structs.replace(last, segments=(record.segment,), prepared={})

    @property
    def is_of_another(self) -> bool:
        """Whether another process decided, and may have begun to deliver."""
        return self._record is not None and self._record.run_id != self._log.run_id

    def clear(self) -> None:
        """Forget the roll: a marker stands for it."""
        self.batches = []
        self._record = self.delivery = None

    def _merged(self, first: int) -> SegmentRef | None:
        """The rows of all batches in one separate segment; None if one batch has them all, and keeps its segments.

        A batch whose rows are lost or damaged ends the roll before it, so that it is the only one that waits.
        """
        filled = [each for each in self.batches if each.segments]
        if len(filled) < 2:
            return None
        one_segment = sys.maxsize  # encoded anew, the rows may take more bytes than `roll_bytes`
        limits = SegmentLimits(filled[0].chunk_rows, self._chunk_bytes, one_segment)
        names = segment_names(filled[0].columns)
        with SegmentWriter(
            self._log.store,
            folder=paths.progress_folder(self._sink, first),
            partition=0,
            limits=limits,
            new_id=self._log.runtime.new_id,
        ) as writer:
            for manifest in filled:
                try:
                    for segment in manifest.segments:
                        self._copy(manifest, segment, names, writer)
                except (CorruptError, HistoryError):
                    if manifest.batch_id == first:
                        raise
                    self.batches = [each for each in self.batches if each.batch_id < manifest.batch_id]
                    break
            else:
                (merged,) = writer.finish()
                return merged
        return self._merged(first)

    def _copy(self, manifest: Manifest, segment: SegmentRef, names: list[str], writer: SegmentWriter) -> None:
        chunks = read_chunks(
            load_segment(self._log.store, segment),
            segment,
            chunk_rows=manifest.chunk_rows,
            columns=manifest.columns,
            where=self._log.store.url_of(segment.path),
            reader=self._log.segment_reader,
        )
        for _, _, table in chunks:
            for batch in table.rename_columns(names).to_batches():
                writer.write(batch)

    def _find_begun(self, first: int, path: str) -> RollRecord | None:
        """The record of a roll that another process began to deliver, if it was made since it was looked for. Two
        listings or so, once a run. Raises `CorruptError` if it was lost: then nothing may be decided anew.
        """
        if not self._is_first:
            return None
        for number in self._log.numbers(paths.progress_batches(self._sink), after=first - 1):
            folder = paths.progress_folder(self._sink, number)
            if any(paths.is_prepared(name) for name in self._log.store.list(folder)):
                if (record := self._log.find(RollRecord, path)) is not None:
                    return record
                raise CorruptError(
                    f"{self._log.store.url_of(path)}: expected the record of a roll of "
                    f"batches, since {folder} holds rows that were prepared for one, found nothing. Delete nothing, "
                    "and restore the object from a version or a backup"
                )
        return None


def _bytes(batches: Sequence[Manifest]) -> int:
    return sum(each.bytes for each in batches)


def _shape(manifest: Manifest) -> tuple[object, ...]:
    """The facts that the batches of a roll share."""
    return manifest.columns, manifest.spark_schema, manifest.time_zone, manifest.chunk_rows

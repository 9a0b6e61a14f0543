"""How far a sink came: progress records within a batch, to go on where another process stopped; and markers.

Of markers: the one that a committer goes on from, the last delivered rows that each of them names, and the group of
consecutive batches that share one.

A marker stands for its batch and all earlier ones. After a crash, batches without a marker are sent again under the
same keys. So only a target that ignores repeats has groups. Every other sink gets one marker per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from wal_sink.errors import ConfigError, CorruptError, StoreError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import (
    DeliveryTiming,
    Manifest,
    Marker,
    OlderSlots,
    Progress,
    Release,
    SegmentRef,
    SinkRecord,
    without_segments,
)
from wal_sink.log.segment_reader import chunk_ends, load_segment
from wal_sink.log.terms import Term
from wal_sink.protocol.inventory import Lost, require
from wal_sink.protocol.letters import Kept, Rejections, keep_unknown
from wal_sink.protocol.messages import SMALL_BATCH_BYTES, DeliveryContext
from wal_sink.protocol.release import CommitContext
from wal_sink.protocol.segment_delivery import chunks_of
from wal_sink.stores.base import Store
from wal_sink.support.clock import epoch_s
from wal_sink.support.events import Marked


def recorded_chunks(store: Store, sink: str, manifest: Manifest) -> list[paths.ProgressName]:
    """The names of a batch's progress records, parsed. One listing."""
    found = map(paths.parse_progress, store.list(paths.progress_folder(sink, manifest.batch_id)))
    return [name for name in found if name is not None]


def recorded_rows(store: Store, sink: str, manifest: Manifest) -> dict[int, int]:
    """Rows recorded by segment ordinal; a segment without a record is absent."""
    return furthest_rows(recorded_chunks(store, sink, manifest))


def furthest_rows(recorded: Iterable[paths.ProgressName]) -> dict[int, int]:
    """The most rows that any record names, by segment ordinal."""
    return {name.ordinal: name.rows for name in sorted(recorded)}


def check_recorded(log: Log, sink: str, manifest: Manifest, ordinal: int, rows: int) -> Progress:
    """The progress record whose name was listed, provided that it is one of this segment. One read.

    Raises `CorruptError` if it is of another segment, `StoreError` if it is gone: the next listing may not have it.
    """
    path = paths.progress(sink, manifest.batch_id, ordinal, rows)
    where = log.store.url_of(path)
    record = log.find(Progress, path)
    if record is None:
        raise StoreError(
            f"{where} was listed, but it does not exist. Another process or a person may be deleting files of the WAL. "
            "Stop this deletion, then start the query or command again"
        )
    expected = manifest.segments[ordinal].id if ordinal < len(manifest.segments) else "none"
    if record.segment_id != expected:
        raise CorruptError(
            f"{where}: expected progress of segment {ordinal} of the released batch ({expected}), found that of "
            f"{record.segment_id}; restore the object that belongs here"
        )
    return record


def keep_last_recorded(given: DeliveryContext, ordinal: int, segment: SegmentRef, rows: int, log: Log) -> None:
    """Keep the chunk that ends at `rows` as a dead letter, unless the sink is known to have answered.

    A process that has ended recorded the chunk before it sent it.
    """
    start = max((end for end in chunk_ends(segment, given.chunk_rows) if end < rows), default=0)
    data = load_segment(log.store, segment)
    where = log.store.url_of(segment.path)
    chunk = next(chunks_of(given, ordinal, segment, data, start, where=where, reader=log.segment_reader))
    if Rejections(log, given.sink, ordinal, chunk).is_answered():
        return
    keep_unknown(
        log, given.sink, ordinal, chunk, reason="the process that sent the rows ended before it recorded the outcome"
    )


def keep_each_last_recorded(log: Log, wal_id: str, sink: str, manifest: Manifest, term: Term) -> None:
    """`keep_last_recorded` for each segment of a batch that an at-most-once sink gets no more.

    Raises as `check_recorded`, and `CorruptError` if a segment is lost.
    """
    given = DeliveryContext(
        wal_id=wal_id,
        sink=sink,
        term=term,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        spark_schema=manifest.spark_schema,
        chunk_rows=manifest.chunk_rows,
        segments=len(manifest.segments),
        at_most_once=True,
        keeps_rejected=False,
        attempt_timeout_s=math.inf,
        last_delivered=None,
    )
    for ordinal, rows in recorded_rows(log.store, sink, manifest).items():
        check_recorded(log, sink, manifest, ordinal, rows)
        keep_last_recorded(given, ordinal, manifest.segments[ordinal], rows, log)


GROUP_BATCHES = 8
"""The most batches that share a marker."""
GROUP_S = 1.0
"""The longest time for which they may, by the monotonic clock: a process that slept looks at its term again."""
MOST_LAST_DELIVERED_SLOTS = 1024
"""Slots from this number on are watched only if the newest batch with rows uses them, so that a marker stays small."""

MarkedSlots = tuple[int, tuple[int, ...], tuple[OlderSlots, ...]]
"""A batch, the rows of each of its segments, and the slots that it did not use."""


def find_marker(log: Log, sink: str, batch_id: int) -> Marker | None:
    """The marker of the batch, else the newest one, which is never collected; None if the sink lacks the batch.

    One read, and a listing and a read if the batch has no marker.
    """
    marker = log.find(Marker, paths.marker(sink, batch_id))
    if marker is not None:
        return marker
    newest = max(log.numbers(paths.markers(sink)), default=NOTHING)
    return log.find(Marker, paths.marker(sink, newest)) if newest >= batch_id else None


def first_due(log: Log, sink: SinkRecord) -> int:
    """The batch with which a sink without a marker begins. A listing, or a few if its first batch was collected during
    its registration: then it begins at the oldest batch that the WAL still holds. Raises `ConfigError` if a person
    named that batch.
    """
    low_water, first_batch = log.low_water(), sink.first_batch
    if first_batch > low_water:
        return first_batch
    if sink.is_exact or (sink.through is not None and sink.through <= low_water):
        raise ConfigError(
            f"sink {sink.name!r} of {log.store.root} was to begin with batch {first_batch}, but the WAL deleted "
            f"batches through {low_water} while the sink was registered. No batch is marked as delivered to it. "
            f"Retire it (wal-sink sinks retire WAL {sink.name}), then begin with a later batch under a new name"
        )
    folders = log.numbers(paths.BATCHES, after=first_batch - 1)
    # A store may show the folder of a batch for minutes after its objects were deleted.
    held = (batch_id for batch_id in folders if log.store.list(paths.batch(batch_id)))
    return next(held, low_water + 1)


def read_marked(log: Log, sink: str, marker: Marker) -> Manifest:
    """The manifest of the sink's newest marked batch, which no collection takes. Two reads.

    A sink may have passed over the batch because its manifest is lost. Then an empty one stands for it.
    """
    if marker.skipped:
        return _left_of(log, marker.batch_id)
    batch_id, path = marker.batch_id, paths.marker(sink, marker.batch_id)
    release = require(log, Release, paths.release(batch_id), Lost.RELEASE, path)
    return require(log, Manifest, paths.manifest(batch_id, release.term, release.attempt), Lost.MANIFEST, path)


def _left_of(log: Log, batch_id: int) -> Manifest:
    with suppress(CorruptError):
        release = log.find(Release, paths.release(batch_id))
        path = release and paths.manifest(batch_id, release.term, release.attempt)
        if path and (manifest := log.find(Manifest, path)):
            return manifest
    return without_segments(batch_id)


def last_delivered_through(manifest: Manifest, before: Marker | None) -> MarkedSlots:
    """The newest batch with rows, the rows of each segment, and the slots after these. A transactional target must
    remember them. `before`: the marker that precedes the batch of the manifest.
    """
    if manifest.segments:
        rows = tuple(segment.rows for segment in manifest.segments)
        return manifest.batch_id, rows, _slots_after(len(rows), before)
    if before is None:
        return NOTHING, (), ()
    return before.last_delivered_batch, before.last_delivered_rows, before.last_delivered_older


def new_marker(
    log: Log,
    term: Term,
    group: Sequence[Manifest],
    *,
    kept: Mapping[Kept, int],
    last_delivered: MarkedSlots,
    timings: Mapping[int, DeliveryTiming],
) -> Marker:
    """The marker of the last batch of a group, for all of them. `timings`: by batch, as far as they are known."""
    return Marker(
        batch_id=group[-1].batch_id,
        term=term.number,
        run_id=log.run_id,
        rows=sum(each.rows for each in group),
        rejected=kept.get("rejected", 0),
        unknown=kept.get("unknown", 0),
        last_delivered_batch=last_delivered[0],
        last_delivered_rows=last_delivered[1],
        last_delivered_older=last_delivered[2],
        timings=tuple(timings[each.batch_id] for each in group if each.batch_id in timings),
        **log.stamp(),
    )


def _slots_after(used: int, before: Marker | None) -> tuple[OlderSlots, ...]:
    """The slots from number `used` on, as the marker before names them: the present batch did not use them."""
    if before is None:
        return ()
    parts = [
        OlderSlots(batch_id=before.last_delivered_batch, rows=before.last_delivered_rows),
        *before.last_delivered_older,
    ]
    left, first = [], 0
    for part in parts:
        end = min(first + len(part.rows), MOST_LAST_DELIVERED_SLOTS)
        if end > max(first, used):
            rows = part.rows[max(0, used - first) : end - first]
            left.append(OlderSlots(batch_id=part.batch_id, rows=rows))
        first += len(part.rows)
    return tuple(left)


def tell_marked(log: Log, sink: str, group: Sequence[Manifest], marker: Marker) -> None:
    """Tell that a marker stands for a group of batches."""
    staged = [epoch_s(manifest.created) for manifest in group]
    marked_s = epoch_s(marker.created)
    log.events.tell(
        Marked,
        sink=sink,
        batch=marker.batch_id,
        batches=len(group),
        rows=marker.rows,
        rejected=marker.rejected,
        unknown=marker.unknown,
        delays_s=tuple(max(0.0, marked_s - each) for each in staged if each is not None and marked_s is not None),
    )


class Group:
    """The batches that a sink that is behind has without a marker, and the last look at the term. Not shared between
    threads.
    """

    def __init__(self, shared: CommitContext, *, is_allowed: bool) -> None:
        """`is_allowed`: the target ignores repeats, and so does every other that the sink's name may get."""
        self.batches: list[Manifest] = []
        self.timings: dict[int, DeliveryTiming] = {}
        """Of the batches, and of the one that is delivered now."""
        self.looked_s = -math.inf
        """Time of the last look at the term, by the monotonic clock."""
        self._known_at_look = shared.gate.known
        self._began_s = -math.inf  # the time of the look for the first batch of the group
        self._s_per_byte = math.inf  # of the last delivery
        self._is_allowed = is_allowed
        self._gate = shared.gate
        self._history = shared.history
        self._runtime = shared.log.runtime

    def look(self, check: Callable[[], None]) -> None:
        """Look at the term by `check`. Only what was known before the look may rest on it."""
        now_s, known = self._runtime.monotonic_s(), self._gate.known
        check()
        self.looked_s, self._known_at_look = now_s, known
        if not self.batches:
            self._began_s = now_s

    def is_in_time(self, limit_s: float = GROUP_S) -> bool:
        """Whether the last look is no older than `limit_s`."""
        return self._runtime.monotonic_s() - self.looked_s < limit_s

    def learn_of_backlog(self, batch_id: int) -> None:
        """Learn by one read which batches may share a look and a marker, where several after this one are staged.

        Spark ran the newest after it completed the one before. That is learnt before the look: see `covers`.
        """
        newest = self._history.newest_known
        if self._is_allowed and newest - 1 > batch_id and not self._gate.is_known_open(batch_id):
            self._gate.is_open(newest - 1)

    def covers(self, batch_id: int) -> bool:
        """Whether the last look counts for the group's next batch.

        A batch that became known as complete after the look may have been staged anew by a newer process, and only that
        attempt be complete.
        """
        was_known = self._gate.knew(self._known_at_look, batch_id)
        return bool(self.batches) and self.is_in_time() and was_known

    def must_end_before(self, manifest: Manifest) -> bool:
        """Whether the group gets its marker before this batch is sent: one that takes long would keep it waiting, and a
        crash would send the group again. A large batch takes long, unless the pace of the last one says otherwise.
        """
        is_large = manifest.bytes > SMALL_BATCH_BYTES
        return bool(self.batches) and is_large and manifest.bytes * self._s_per_byte >= GROUP_S

    def note_pace(self, manifest: Manifest, took_s: float) -> None:
        """Note how long the delivery of a batch took. One without rows tells nothing of the next."""
        self._s_per_byte = took_s / manifest.bytes if manifest.bytes else math.inf

    def may_take(self, batch_id: int) -> bool:
        """Whether this batch may wait for the marker of the next one, which is complete and so is delivered now.

        At most one read of the checkpoint, and none unless this run has staged the next batch.
        """
        is_young = self._runtime.monotonic_s() - self._began_s < GROUP_S
        return (
            self._is_allowed and len(self.batches) + 1 < GROUP_BATCHES and is_young and self._is_complete(batch_id + 1)
        )

    def _is_complete(self, later: int) -> bool:
        gate = self._gate
        return gate.is_known_open(later) or (self._history.staged(later) is not None and gate.is_open(later))

    def clear(self) -> None:
        """Forget the batches: there is a marker for them."""
        self.batches.clear()
        self.timings.clear()

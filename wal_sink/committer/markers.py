"""What a marker says of earlier batches, and which marker a committer goes on from."""

from __future__ import annotations

from wal_sink.recovery.inventory import Lost, find_again
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, OlderSlots, Release

MOST_LAST_DELIVERED_SLOTS = 1024
"""Of slots that the newest batch with rows did not use, those from here on are not watched: a marker stays small."""

MarkedSlots = tuple[int, tuple[int, ...], tuple[OlderSlots, ...]]
"""A batch, the rows of each of its segments, and the slots that it did not use."""


def find_marker(log: Log, sink: str, batch_id: int) -> Marker | None:
    """The marker of the batch, else the newest one, which is never collected; None if the sink has not the batch.

    One read, and a listing and a read if the batch has no marker.
    """
    marker = log.find(Marker, paths.marker(sink, batch_id))
    if marker is not None:
        return marker
    newest = max(log.numbers(paths.markers(sink)), default=NOTHING)
    return log.find(Marker, paths.marker(sink, newest)) if newest >= batch_id else None


def read_marked(log: Log, sink: str, batch_id: int) -> Manifest:
    """The manifest of the sink's newest marked batch, which no collection takes. Two reads."""
    path, marker = paths.release(batch_id), paths.marker(sink, batch_id)
    release = log.find(Release, path) or find_again(log, Release, path, Lost.RELEASE, marker)
    path = paths.manifest(batch_id, release.term, release.attempt)
    return log.find(Manifest, path) or find_again(log, Manifest, path, Lost.MANIFEST, marker)


def last_delivered_through(manifest: Manifest, before: Marker | None) -> MarkedSlots:
    """The newest batch that had rows, how many in each segment, and the slots after these: a transactional target must
    remember them. `before`: the marker before that of the manifest's batch.
    """
    if manifest.segments:
        rows = tuple(segment.rows for segment in manifest.segments)
        return manifest.batch_id, rows, _slots_after(len(rows), before)
    if before is None:
        return NOTHING, (), ()
    return before.last_delivered_batch, before.last_delivered_rows, before.last_delivered_older


def _slots_after(used: int, before: Marker | None) -> tuple[OlderSlots, ...]:
    """What the marker before says of slots from number `used` on, which the batch at hand did not use."""
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

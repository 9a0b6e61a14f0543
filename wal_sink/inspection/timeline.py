"""Where the time of one batch went: staging, Spark's checkpoint, the queue, fetching, sending, retries, the marker.

Durations within a stage were measured by one process. Times between two records are those of their writers' clocks.
None means: not recorded, or not yet there.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.inspection.ages import moment_of, seconds_between
from wal_sink.wal.records import Manifest, Marker, Release
from wal_sink.wal.timings import SegmentTiming, StagingTiming


@dataclass(frozen=True, slots=True)
class SinkTimeline:
    """The delivery of a batch to one sink."""

    sink: str
    queue_s: float | None
    """After it was staged, until the sink had all earlier batches; 0 if it had them before."""
    checkpoint_s: float | None
    """After that, until Spark had completed the batch and it was released."""
    delivery_s: float | None
    """After that, until the sink had every row, with all attempts."""
    fetch_s: float | None
    """Reading all segments from the store, side by side or not."""
    send_s: float | None
    """Sending them."""
    retries: int | None
    slowest: SegmentTiming | None
    """The segment that took longest."""
    marker_s: float | None
    """After the last row, until the marker. Batches that share a marker wait for each other."""
    marked_at: str | None
    """When the marker of the batch was made, or that of the batches that share it; None if there is none yet."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of a batch went."""

    staged_at: str
    staging_s: float | None
    """From the beginning of the attempt that counts until its manifest."""
    tasks: StagingTiming | None
    """Its tasks, with the slowest one."""
    released_at: str | None
    release_s: float | None
    """From the manifest until the release: Spark's checkpoint, and the queue of the first sink that was ready."""
    sinks: tuple[SinkTimeline, ...]


def whole_timeline(manifest: Manifest, release: Release | None, sinks: tuple[SinkTimeline, ...]) -> Timeline:
    """The timeline of a batch, with those of its sinks."""
    timing = manifest.timing
    return Timeline(
        staged_at=manifest.created,
        staging_s=seconds_between(timing.began if timing else None, manifest.created),
        tasks=timing,
        released_at=release.created if release else None,
        release_s=seconds_between(manifest.created, release.created) if release else None,
        sinks=sinks,
    )


def timeline_of(sink: str, staged_at: str, marker: Marker | None, batch_id: int) -> SinkTimeline:
    """The timeline of a batch that was staged at this time, by the first marker that stands for it."""
    timings = marker.timings if marker else ()
    timing = next((each for each in timings if each.batch_id == batch_id), None)
    marked_at = marker.created if marker and (timing or marker.batch_id == batch_id) else None
    if timing is None:
        return SinkTimeline(sink, None, None, None, None, None, None, None, None, marked_at)
    total_s = seconds_between(timing.began, marked_at)
    return SinkTimeline(
        sink=sink,
        queue_s=_not_below_0(seconds_between(staged_at, timing.due)),
        checkpoint_s=_not_below_0(seconds_between(_later(staged_at, timing.due), timing.began)),
        delivery_s=timing.seconds,
        fetch_s=timing.fetch_seconds,
        send_s=timing.send_seconds,
        retries=timing.attempts - 1,
        slowest=timing.slowest,
        marker_s=None if total_s is None else _not_below_0(round(total_s - timing.seconds, 3)),
        marked_at=marked_at,
    )


def _later(one: str, other: str) -> str:
    """The later of two moments; the first if one of them cannot be read."""
    first, second = moment_of(one), moment_of(other)
    return other if first is not None and second is not None and second > first else one


def _not_below_0(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)

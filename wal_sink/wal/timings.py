"""How long the stages of a batch took, as its manifest and its markers tell people. No decision depends on it.

Durations are measured by the monotonic clock of the process that did the work. Moments are ISO 8601, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class TaskTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One staging task."""

    partition: int
    seconds: float
    host: str = ""
    """Empty: the process of the driver."""


class StagingTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The staging tasks of one attempt at a batch."""

    tasks: int
    task_seconds: float
    """Of all tasks together."""
    slowest: TaskTiming | None = None
    began: str = ""
    """When the attempt began, before Spark's job. It ends with the manifest."""


class SegmentTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery of one segment, in the attempt that completed it."""

    ordinal: int
    fetch_seconds: float
    """Reading the segment from the store."""
    send_seconds: float
    """All else: opening the sink, reading positions, sending chunks, recording progress."""
    host: str = ""
    """Empty: the process of the committer."""


class DeliveryTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery of one batch to one sink, in the process that completed it."""

    batch_id: int
    due: str
    """When this batch was the next one of the sink: it had all earlier ones."""
    began: str
    """When its delivery began: Spark had completed it by then, and it was released."""
    seconds: float
    """From then on until the sink had every row, with all attempts."""
    attempts: int
    fetch_seconds: float
    """Of all segments together."""
    send_seconds: float
    slowest: SegmentTiming | None = None


def rounded(seconds: float) -> float:
    """Seconds in whole milliseconds, so that records stay small."""
    return round(seconds, 3)


def combined(timings: Iterable[StagingTiming | None]) -> StagingTiming | None:
    """The timing of several tasks together; None if none of them told its own."""
    known = [timing for timing in timings if timing is not None]
    if not known:
        return None
    tasks = [timing.slowest for timing in known if timing.slowest is not None]
    return StagingTiming(
        tasks=sum(timing.tasks for timing in known),
        task_seconds=rounded(sum(timing.task_seconds for timing in known)),
        slowest=max(tasks, key=lambda task: task.seconds, default=None),
    )

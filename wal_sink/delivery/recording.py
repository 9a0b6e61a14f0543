"""Requests of a delivery between two chunks: looks at the term, and records of progress.

For most targets both happen for every chunk. A target that ignores repeats, or refuses them, does not need that. Then a
look at the term is good for a second, and progress is recorded once a second.
"""

from __future__ import annotations

import math

from wal_sink.messages import DeliveryContext, SegmentTask
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Progress

LOOK_S = 1.0
"""How long a look at the term is good, by the monotonic clock. Never for ever: a process that slept for days must not
send a segment to a target that has forgotten its keys.
"""
RECORD_S = 1.0
"""Least time between two records of one task, where they go by time."""


class Looks:
    """The looks at the term. One delivery task has one, in the driver or on an executor.

    `looked_s`: the time of a look that was taken before, by the monotonic clock of this process.
    """

    def __init__(self, given: DeliveryContext, log: Log, *, looked_s: float = -math.inf) -> None:
        self._given = given
        self._log = log
        self._looked_s = looked_s

    def is_due(self, task: SegmentTask) -> bool:
        """Whether the first chunk of a task will need a look that may be taken some time before it."""
        return self._given.looks_by_time and not task.term_checked and not self._is_good()

    def look(self, task: SegmentTask, *, is_first: bool) -> None:
        """Read the next term before a send, unless a look is good. `is_first`: the task has sent nothing yet.

        So a superseded process repeats only the chunk in hand; by time, what it sends within the second. One read.
        """
        if task.term_checked and is_first:
            return
        if not (self._given.looks_by_time and self._is_good()):
            self.look_now()

    def look_now(self) -> None:
        """Read the next term. Raises `FencedError` if it was claimed."""
        now_s = self._log.runtime.monotonic_s()
        self._given.term.check(self._log.store)
        self._looked_s = now_s

    def _is_good(self) -> bool:
        return self._log.runtime.monotonic_s() - self._looked_s < LOOK_S


class Records:
    """The progress records of one delivery task."""

    def __init__(self, given: DeliveryContext, log: Log) -> None:
        self._given = given
        self._log = log
        self._due: dict[int, tuple[SegmentTask, int]] = {}
        self._chunks_due = 0
        self._recorded_s = -math.inf

    def begin(self) -> None:
        """Count the time from now on: the first chunk is about to be sent."""
        if self._recorded_s == -math.inf:
            self._recorded_s = self._log.runtime.monotonic_s()

    def note(self, task: SegmentTask, rows: int) -> int:
        """Note that the sink has a segment up to `rows`. Once a second, record that of every segment of the task.

        Return the number of chunks that became recorded. Raises as `create` does.
        """
        self._due[task.ordinal] = task, rows
        self._chunks_due += 1
        if self._log.runtime.monotonic_s() - self._recorded_s < RECORD_S:
            return 0
        return self.create_due()

    def create_due(self) -> int:
        """Record all that was noted. Return the number of chunks that became recorded."""
        while self._due:
            ordinal = next(iter(self._due))
            task, rows = self._due[ordinal]
            if not self.marker_follows(task, rows):
                self.create(task, rows)
            del self._due[ordinal]
        self._recorded_s = self._log.runtime.monotonic_s()
        recorded, self._chunks_due = self._chunks_due, 0
        return recorded

    def create(self, task: SegmentTask, rows: int) -> None:
        """Create the record. If it exists, another process delivers the segment, and this one stops."""
        given = self._given
        path = paths.progress(given.sink, given.batch_id, task.ordinal, rows)
        record = Progress(
            batch_id=given.batch_id,
            ordinal=task.ordinal,
            rows=rows,
            segment_id=task.segment.id,
            term=given.term.number,
            run_id=self._log.run_id,
            **self._log.stamp(),
        )
        if self._log.create(path, record):
            return
        given.term.check(self._log.store)
        raise SinkFailedError(
            FailureKind.UNKNOWN, f"{self._log.store.url_of(path)} was written by another attempt at the same segment"
        )

    def marker_follows(self, task: SegmentTask, rows: int) -> bool:
        """Whether the marker makes a record needless: these are all rows of the batch's only segment."""
        return self._given.segments == 1 and rows == task.segment.rows

"""Messages between the driver and its delivery tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wal_sink.log.log import NOTHING
from wal_sink.log.records import Marker, SegmentRef
from wal_sink.log.terms import Term
from wal_sink.sinks.base import SinkContext
from wal_sink.sinks.failures import Failure
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.support.measures import OperationTimes, Times

SMALL_BATCH_BYTES = 4 << 20
"""Segment bytes up to which the driver delivers a batch: a Spark job alone costs about 100 ms (measured)."""
NO_SEGMENT = -1
"""The ordinal of a result that concerns no segment in particular."""


@dataclass(frozen=True, slots=True)
class LastDelivered:
    """The positions that a transactional target must at least hold. Lower ones mean that it lost acknowledged rows."""

    slots: tuple[tuple[int, int], ...]
    """Of each slot: the newest batch that had rows in it, and their number."""

    @classmethod
    def of(cls, marker: Marker | None) -> LastDelivered | None:
        """The positions that a marker stands for; None if no batch with rows was marked."""
        if marker is None or not marker.last_delivered_rows:
            return None
        newest = [(marker.last_delivered_batch, rows) for rows in marker.last_delivered_rows]
        older = [(part.batch_id, rows) for part in marker.last_delivered_older for rows in part.rows]
        return cls((*newest, *older))


@dataclass(frozen=True, slots=True)
class ByTime:
    """Looks and records by time, where a target ignores what it gets again, or refuses it. A look at the term is good
    for a second, whatever a superseded process sends meanwhile. See `wal_sink.protocol.segment_delivery`.
    """

    looked_s: float = -math.inf
    """Time of the committer's last look at the term, by the monotonic clock of its process."""
    records: bool = False
    """Whether progress is recorded once a second too: the target ignores what it gets again."""


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Facts that all segments of a batch share when they are delivered to one sink."""

    wal_id: str
    sink: str
    term: Term
    batch_id: int
    columns: tuple[str, ...]
    spark_schema: str
    chunk_rows: int
    segments: int
    at_most_once: bool
    keeps_rejected: bool
    """Whether rows that the sink refuses become dead letters; else the first refusal ends the delivery."""
    attempt_timeout_s: float
    last_delivered: LastDelivered | None
    marked_through: int = NOTHING
    """The newest batch that was marked; -1: none."""
    prepares_again: bool = False
    """Of a two-phase sink: whether a lost transaction is prepared again although it may have been committed."""
    rows_per_s: float | None = None
    """Limit for each delivery task: rows a second, on average."""
    by_time: ByTime | None = None
    """Looks and records by time; None: the term is looked at and progress is recorded for each chunk."""
    measured: bool = False
    """Whether tasks count their requests and time their chunks."""
    time_zone: str = ""
    """As in the manifest."""
    renaming: Renaming = SAME
    """How the sink gets the columns. All else here names them as they were staged."""

    def context(self, *, on_executor: bool) -> SinkContext:
        """The context that the sink is opened with, before `renaming`."""
        return SinkContext(
            wal_id=self.wal_id,
            sink=self.sink,
            term=self.term.number,
            batch_id=self.batch_id,
            columns=self.columns,
            on_executor=on_executor,
            spark_schema=self.spark_schema,
            time_zone=self.time_zone,
            at_most_once=self.at_most_once,
        )


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to deliver, from row `start` on."""

    ordinal: int
    segment: SegmentRef
    start: int
    maybe_sent: bool
    """Whether the chunk at `start` may have been sent before."""
    sent_through: int = 0
    """Every chunk that begins before this row may have been sent before: another process or a lost task sent it, or a
    transactional target forgot it.
    """
    term_checked: bool = False
    """Whether the committer has just checked its term, so that the first chunk needs no check."""
    handle: str | None = None
    """Of a two-phase sink: the handle that was prepared while the segment was staged."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """The state of a segment after an attempt to deliver it."""

    ordinal: int
    rows: int
    """Rows from the segment's beginning that are settled: delivered, or given up by an at-most-once delivery. For a
    transactional target never more than it acknowledged in this attempt.
    """
    chunks: int = 0
    """Chunks that the sink took and the log recorded in this attempt. Only these count as progress."""
    failure: Failure | None = None
    rejected: int = 0
    """Rows that the sink refused in this attempt, and that were kept as dead letters."""
    fetch_s: float = 0.0
    """Seconds that reading the segment took in this attempt."""
    send_s: float = 0.0
    """Seconds of all else in this attempt."""
    host: str = ""
    """The executor's host; empty in the committer's process."""
    chunk_times: Times | None = None
    """Times of the calls that sent a chunk; None if they are not measured."""
    handle: str = ""
    """Of a commit sink: what it prepared. The rows are delivered once a commit names it."""
    requests: tuple[OperationTimes, ...] = ()
    """Requests that the task of an executor made, if they are measured. One of its results holds them all."""

    @property
    def took_s(self) -> float:
        """Seconds of this attempt at the segment."""
        return self.fetch_s + self.send_s


def failed_as_a_whole(failure: Failure) -> SegmentResult:
    """The result of a failure that concerns no segment in particular."""
    return SegmentResult(ordinal=NO_SEGMENT, rows=0, failure=failure)

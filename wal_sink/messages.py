"""What travels between the committer and the delivery tasks: assignments, orders, outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from wal_sink.sinks.base import MakeSink, SinkContext
from wal_sink.sinks.failures import Failure
from wal_sink.wal.fencing import Term
from wal_sink.wal.records import Marker, SegmentRef
from wal_sink.wal.segment_writer import SegmentLimits


@dataclass(frozen=True, slots=True)
class LastDelivered:
    """What a transactional target must at least hold, slot by slot. Less means that it lost what it acknowledged."""

    slots: tuple[tuple[int, int], ...]
    """Of each slot, the newest batch that had rows in it, and how many."""

    @classmethod
    def of(cls, marker: Marker | None) -> LastDelivered | None:
        """What a marker stands for. None where nothing that had rows was marked: then a target owes nothing."""
        if marker is None or not marker.last_delivered_rows:
            return None
        newest = [(marker.last_delivered_batch, rows) for rows in marker.last_delivered_rows]
        older = [(part.batch_id, rows) for part in marker.last_delivered_older for rows in part.rows]
        return cls((*newest, *older))


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What all segments of a batch have in common when they are delivered to one sink."""

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
    """Whether rows that the sink refuses become dead letters; else the first of them ends the delivery."""
    attempt_timeout_s: float
    last_delivered: LastDelivered | None
    prepares_again: bool = False
    """Of a two-phase sink: whether a handle that is gone is prepared again although it may have been committed."""
    rows_per_s: float | None = None
    """Most rows a second that each delivery task sends, on average."""
    spread: bool = False
    """Whether the batch's progress lies in shards: its manifest's."""

    def context(self, *, on_executor: bool) -> SinkContext:
        """What the sink is told when it is opened."""
        return _sink_context(self, self.sink, self.term.number, on_executor=on_executor)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to deliver, from a row on."""

    ordinal: int
    segment: SegmentRef
    start: int
    maybe_sent: bool
    """Whether the chunk at `start` may have been sent before."""
    sent_through: int = 0
    """Every chunk that begins before this row may have been sent before: a transactional target has forgotten it."""
    term_checked: bool = False
    """Whether the committer checked its term so shortly before that the first chunk needs no check of its own."""
    handle: str | None = None
    """Of a two-phase sink: what the segment was prepared as while it was staged."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """How far a segment came."""

    ordinal: int
    rows: int
    """Rows from the segment's beginning that are settled: delivered, or given up by an at-most-once delivery. Of a
    transactional target never more than it acknowledged in this attempt.
    """
    chunks: int = 0
    """Chunks the sink took and the log knows of, in this attempt: what counts as progress."""
    failure: Failure | None = None
    rejected: int = 0
    """Rows that were kept as dead letters in this attempt, since the sink refused them."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """How one two-phase sink takes part in staging. Travels to executors."""

    sink: str
    make_sink: MakeSink = field(repr=False)
    attempt_timeout_s: float


@dataclass(frozen=True, slots=True)
class StagingContext:
    """What the staging tasks of one attempt at a batch have in common. Travels to executors."""

    folder: str
    limits: SegmentLimits
    run_id: str = ""
    wal_id: str = ""
    batch_id: int = 0
    term: int = 0
    """The stager's."""
    columns: tuple[str, ...] = ()
    spark_schema: str = field(default="", repr=False)
    keep_segments: bool = True
    preparations: tuple[Preparation, ...] = ()

    def context(self, sink: str, *, on_executor: bool) -> SinkContext:
        """What a two-phase sink is told when it is opened to prepare rows."""
        return _sink_context(self, sink, self.term, on_executor=on_executor)


class StagedPartition(msgspec.Struct, frozen=True):
    """What one staging task leaves: its segments in order, and by sink the handle of each."""

    segments: tuple[SegmentRef, ...]
    prepared: dict[str, tuple[str | None, ...]]


def _sink_context(batch: DeliveryContext | StagingContext, sink: str, term: int, *, on_executor: bool) -> SinkContext:
    return SinkContext(
        wal_id=batch.wal_id,
        sink=sink,
        term=term,
        batch_id=batch.batch_id,
        columns=batch.columns,
        on_executor=on_executor,
        spark_schema=batch.spark_schema,
    )

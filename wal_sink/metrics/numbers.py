"""The metrics, and `Numbers`: what this process counted, by metric and labels. Knows nothing of Prometheus.

docs/operations/metrics.md lists the metrics, held by a test. Labels take few values: the URLs of this process's WALs,
the names of their sinks, operations of a store, kinds of failures. No label holds a text of an error, a batch or a key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Literal

from wal_sink import errors
from wal_sink.sinks.failures import FailureKind
from wal_sink.support import events
from wal_sink.support.measures import Histogram, Meter, OperationTimes, RequestCounts, Times

WAL = ("wal",)
SINK = ("wal", "sink")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A counter's name ends in `_total` where it is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """The name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


STAGED_BATCHES = Metric("wal_sink_staged_batches", "counter", WAL, "Batches staged, repeated attempts included.")
STAGED_ROWS = Metric("wal_sink_staged_rows", "counter", WAL, "Rows staged.")
STAGED_BYTES = Metric("wal_sink_staged_bytes", "counter", WAL, "Bytes of the staged segments.")
STAGED_SEGMENTS = Metric("wal_sink_staged_segments", "counter", WAL, "Segments staged.")
STAGING_SECONDS = Metric("wal_sink_staging_seconds", "histogram", WAL, "Time to stage a batch, Spark's job included.")
REPLAYED_BATCHES = Metric(
    "wal_sink_replayed_batches", "counter", WAL, "Released batches that Spark ran again. Their rows are not staged."
)
STREAM_WAITING = Metric(
    "wal_sink_stream_waiting", "gauge", WAL, "1 while the stream waits because the backlog has reached its limit."
)
STREAM_WAITED = Metric("wal_sink_stream_waited_seconds", "counter", WAL, "Time that the stream waited for that reason.")
PENDING_BATCHES = Metric(
    "wal_sink_pending_batches", "gauge", SINK, "Batches that this process knows and the sink does not have."
)
LAG_SECONDS = Metric(
    "wal_sink_lag_seconds", "gauge", SINK, "Age of the oldest pending batch since it was staged; 0 without one."
)
DELIVERED_THROUGH = Metric("wal_sink_delivered_through", "gauge", SINK, "Newest batch that the sink has; -1 if none.")
LAST_DELIVERY = Metric(
    "wal_sink_last_delivery_timestamp_seconds", "gauge", SINK, "Time of the last delivery of this process; 0 if none."
)
DELIVERED_BATCHES = Metric("wal_sink_delivered_batches", "counter", SINK, "Batches delivered and marked.")
DELIVERED_ROWS = Metric("wal_sink_delivered_rows", "counter", SINK, "Rows of these batches.")
DELAY_SECONDS = Metric(
    "wal_sink_delay_seconds", "histogram", SINK, "Time of a batch from its manifest to its marker, by the clocks."
)
DELIVERY_SECONDS = Metric("wal_sink_delivery_seconds", "histogram", SINK, "Time to deliver a batch, retries included.")
SENT_ROWS = Metric("wal_sink_sent_rows", "counter", SINK, "Rows that arrived so far, also of unfinished batches.")
SENT_CHUNKS = Metric("wal_sink_sent_chunks", "counter", SINK, "Chunks that arrived so far.")
CHUNK_SECONDS = Metric("wal_sink_chunk_seconds", "histogram", SINK, "Time of one call of the sink that sends a chunk.")
RETRIES = Metric("wal_sink_retries", "counter", (*SINK, "kind"), "Failed attempts that another attempt follows.")
LAST_ERROR = Metric(
    "wal_sink_last_error_timestamp_seconds", "gauge", (*SINK, "kind"), "Time and kind of the sink's last failure."
)
GAVE_UP = Metric("wal_sink_gave_up", "gauge", SINK, "1 after the delivery to the sink ended with an error.")
REJECTED_ROWS = Metric(
    "wal_sink_rejected_rows",
    "counter",
    SINK,
    "Rows refused by the sink and kept as dead letters, also of unfinished batches.",
)
DEAD_LETTER_ROWS = Metric(
    "wal_sink_dead_letter_rows", "counter", (*SINK, "reason"), "Rows in dead letters of the marked batches."
)
LOW_WATER = Metric("wal_sink_low_water", "gauge", WAL, "Newest batch that this process deleted from the WAL.")
SLOW_STORE = Metric("wal_sink_slow_store", "gauge", WAL, "1 after some requests took longer than a second.")
REQUEST_SECONDS = Metric(
    "wal_sink_store_request_seconds",
    "histogram",
    (*WAL, "operation", "answer"),
    "Time of one request to the WAL's store, from the driver and from tasks.",
)

METRICS = (
    STAGED_BATCHES,
    STAGED_ROWS,
    STAGED_BYTES,
    STAGED_SEGMENTS,
    STAGING_SECONDS,
    REPLAYED_BATCHES,
    STREAM_WAITING,
    STREAM_WAITED,
    PENDING_BATCHES,
    LAG_SECONDS,
    DELIVERED_THROUGH,
    LAST_DELIVERY,
    DELIVERED_BATCHES,
    DELIVERED_ROWS,
    DELAY_SECONDS,
    DELIVERY_SECONDS,
    SENT_ROWS,
    SENT_CHUNKS,
    CHUNK_SECONDS,
    RETRIES,
    LAST_ERROR,
    GAVE_UP,
    REJECTED_ROWS,
    DEAD_LETTER_ROWS,
    LOW_WATER,
    SLOW_STORE,
    REQUEST_SECONDS,
)

MOST_TIMES = 10_000
"""Pending batches whose time is remembered. The time of a later one is learned when its delivery begins."""
OTHER = "other"
"""The kind of a failure that is no known one. So a label takes few values."""
_KINDS = frozenset(
    {kind.value for kind in FailureKind}
    | {name for name, known in vars(errors).items() if isinstance(known, type) and issubclass(known, Exception)}
)

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Backlog:
    """The batches that a sink does not have."""

    next_batch: int | None
    newest: int
    since: float
    """When this run began to serve the sink."""
    last_delivery: float = 0.0
    staged_at: dict[int, float] = field(default_factory=dict)

    def note(self, batch: int, staged_at: float | None) -> None:
        """Note that the WAL holds a batch."""
        if self.next_batch is None:
            self.next_batch = batch
        self.newest = max(self.newest, batch)
        if staged_at is not None and batch >= self.next_batch and len(self.staged_at) < MOST_TIMES:
            self.staged_at[batch] = staged_at

    def deliver(self, batch: int) -> None:
        """Note that the sink has every batch up to this one."""
        self.next_batch = max(self.next_batch or 0, batch + 1)
        self.newest = max(self.newest, batch)
        for known in [known for known in self.staged_at if known <= batch]:
            del self.staged_at[known]

    @property
    def pending(self) -> int:
        return 0 if self.next_batch is None else max(0, self.newest - self.next_batch + 1)

    def lag_s(self, now: float) -> float:
        """The age of the oldest pending batch. If its time is unknown: the time since the run began, which is less."""
        if not self.pending or self.next_batch is None:
            return 0.0
        return max(0.0, now - self.staged_at.get(self.next_batch, self.since))


class Numbers:
    """The numbers of all runs of this process that share one `Metrics`. Threads may share it."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: the time of day in seconds since 1970."""
        self._now = now
        self._lock = threading.Lock()
        self._values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in METRICS}
        self._times: dict[Metric, dict[Labels, Histogram]] = {metric: {} for metric in METRICS}
        self._backlogs: dict[Labels, _Backlog] = {}
        self._requests: dict[str, RequestCounts] = {}

    def meter(self, wal: str) -> Meter:
        """The meter of the requests to the store of a WAL."""
        with self._lock:
            return self._requests.setdefault(wal, RequestCounts())

    def on_event(self, event: events.Event) -> None:
        """Count an event."""
        with self._lock:
            self._count(event)

    def values(self, metric: Metric) -> Mapping[Labels, float]:
        """The present values of a counter or gauge."""
        with self._lock:
            now = self._now()
            if metric is PENDING_BATCHES:
                return {labels: backlog.pending for labels, backlog in self._backlogs.items()}
            if metric is LAG_SECONDS:
                return {labels: backlog.lag_s(now) for labels, backlog in self._backlogs.items()}
            if metric is DELIVERED_THROUGH:
                return {labels: (backlog.next_batch or 0) - 1 for labels, backlog in self._backlogs.items()}
            if metric is LAST_DELIVERY:
                return {labels: backlog.last_delivery for labels, backlog in self._backlogs.items()}
            return dict(self._values[metric])

    def times(self, metric: Metric) -> Mapping[Labels, Times]:
        """The present counts of a histogram."""
        with self._lock:
            if metric is REQUEST_SECONDS:
                return {
                    (wal, each.operation, each.answer): each.times
                    for wal, requests in self._requests.items()
                    for each in requests.counted()
                }
            return {labels: histogram.times() for labels, histogram in self._times[metric].items()}

    @singledispatchmethod
    def _count(self, event: events.Event) -> None:
        """Count an event that has no metric."""

    @_count.register
    def _(self, event: events.Began) -> None:
        labels = event.wal, event.sink
        self._backlogs[labels] = _Backlog(event.next_batch, event.newest_batch, self._now())
        self._set(GAVE_UP, labels, 0)
        for metric in (DELIVERED_BATCHES, DELIVERED_ROWS, SENT_ROWS, REJECTED_ROWS):
            self._add(metric, labels, 0)
        for reason in ("rejected", "unknown"):
            self._add(DEAD_LETTER_ROWS, (*labels, reason), 0)
        self._add(RETRIES, (*labels, FailureKind.RETRIABLE.value), 0)
        self._set(SLOW_STORE, (event.wal,), 0)

    @_count.register
    def _(self, event: events.Ended) -> None:
        self._backlogs.pop((event.wal, event.sink), None)

    @_count.register
    def _(self, event: events.Staged) -> None:
        wal = (event.wal,)
        self._add(STAGED_BATCHES, wal, 1)
        self._add(STAGED_ROWS, wal, event.rows)
        self._add(STAGED_BYTES, wal, event.bytes)
        self._add(STAGED_SEGMENTS, wal, event.segments)
        self._set(STREAM_WAITING, wal, 0)
        self._histogram(STAGING_SECONDS, wal).add(event.took_s)
        self._merge_requests(event.wal, event.requests)
        for (of, _), backlog in self._backlogs.items():
            if of == event.wal:
                backlog.note(event.batch, event.staged_at)

    @_count.register
    def _(self, event: events.Replayed) -> None:
        self._add(REPLAYED_BATCHES, (event.wal,), 1)

    @_count.register
    def _(self, event: events.StreamHeld) -> None:
        self._set(STREAM_WAITING, (event.wal,), 1)

    @_count.register
    def _(self, event: events.StreamResumed) -> None:
        self._set(STREAM_WAITING, (event.wal,), 0)
        self._add(STREAM_WAITED, (event.wal,), event.waited_s)

    @_count.register
    def _(self, event: events.Released) -> None:
        backlog = self._backlog(event)
        backlog.note(event.batch, event.staged_at)
        backlog.newest = max(backlog.newest, event.complete_through)

    @_count.register
    def _(self, event: events.Sent) -> None:
        labels = event.wal, event.sink
        self._add(SENT_ROWS, labels, event.rows)
        self._add(SENT_CHUNKS, labels, event.chunks)
        for times in event.chunk_times:
            self._histogram(CHUNK_SECONDS, labels).merge(times)
        self._merge_requests(event.wal, event.requests)

    @_count.register
    def _(self, event: events.Rejected) -> None:
        self._add(REJECTED_ROWS, (event.wal, event.sink), event.rows)

    @_count.register
    def _(self, event: events.AttemptFailed) -> None:
        kind = _kind(event.kind)
        if event.next_in_s is not None:
            self._add(RETRIES, (event.wal, event.sink, kind), 1)
        self._note_error(event.wal, event.sink, kind)

    @_count.register
    def _(self, event: events.GaveUp) -> None:
        self._set(GAVE_UP, (event.wal, event.sink), 1)
        self._note_error(event.wal, event.sink, _kind(event.kind))

    @_count.register
    def _(self, event: events.Delivered) -> None:
        self._histogram(DELIVERY_SECONDS, (event.wal, event.sink)).add(event.took_s)

    @_count.register
    def _(self, event: events.Marked) -> None:
        labels = event.wal, event.sink
        self._add(DELIVERED_BATCHES, labels, event.batches)
        self._add(DELIVERED_ROWS, labels, event.rows)
        self._add(DEAD_LETTER_ROWS, (*labels, "rejected"), event.rejected)
        self._add(DEAD_LETTER_ROWS, (*labels, "unknown"), event.unknown)
        for delay_s in event.delays_s:
            self._histogram(DELAY_SECONDS, labels).add(delay_s)
        backlog = self._backlog(event)
        backlog.deliver(event.batch)
        backlog.last_delivery = self._now()

    @_count.register
    def _(self, event: events.FoundDelivered) -> None:
        self._backlog(event).deliver(event.batch)

    @_count.register
    def _(self, event: events.Collected) -> None:
        self._set(LOW_WATER, (event.wal,), event.low_water)

    @_count.register
    def _(self, event: events.SlowStore) -> None:
        self._set(SLOW_STORE, (event.wal,), 1)

    def _backlog(self, event: events.Released | events.Marked | events.FoundDelivered) -> _Backlog:
        new = _Backlog(None, -1, self._now())
        return self._backlogs.setdefault((event.wal, event.sink), new)

    def _note_error(self, wal: str, sink: str, kind: str) -> None:
        errors_of_sink = self._values[LAST_ERROR]
        for labels in [labels for labels in errors_of_sink if labels[:2] == (wal, sink)]:
            del errors_of_sink[labels]
        errors_of_sink[wal, sink, kind] = self._now()

    def _merge_requests(self, wal: str, requests: Iterable[OperationTimes]) -> None:
        self._requests.setdefault(wal, RequestCounts()).merge(requests)

    def _add(self, metric: Metric, labels: Labels, by: float) -> None:
        values = self._values[metric]
        values[labels] = values.get(labels, 0.0) + by

    def _set(self, metric: Metric, labels: Labels, value: float) -> None:
        self._values[metric][labels] = value

    def _histogram(self, metric: Metric, labels: Labels) -> Histogram:
        return self._times[metric].setdefault(labels, Histogram())


def _kind(kind: str) -> str:
    return kind if kind in _KINDS else OTHER

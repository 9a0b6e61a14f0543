"""`Numbers`: what this process counted, by metric and labels. Knows nothing of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod

from wal_sink import errors
from wal_sink.metrics import names
from wal_sink.metrics.names import Metric
from wal_sink.sinks.failures import FailureKind
from wal_sink.telemetry import events
from wal_sink.telemetry.measures import Histogram, Meter, OperationTimes, RequestCounts, Times

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
        self._values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in names.METRICS}
        self._times: dict[Metric, dict[Labels, Histogram]] = {metric: {} for metric in names.METRICS}
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
            if metric is names.PENDING_BATCHES:
                return {labels: backlog.pending for labels, backlog in self._backlogs.items()}
            if metric is names.LAG_SECONDS:
                return {labels: backlog.lag_s(now) for labels, backlog in self._backlogs.items()}
            if metric is names.DELIVERED_THROUGH:
                return {labels: (backlog.next_batch or 0) - 1 for labels, backlog in self._backlogs.items()}
            if metric is names.LAST_DELIVERY:
                return {labels: backlog.last_delivery for labels, backlog in self._backlogs.items()}
            return dict(self._values[metric])

    def times(self, metric: Metric) -> Mapping[Labels, Times]:
        """The present counts of a histogram."""
        with self._lock:
            if metric is names.REQUEST_SECONDS:
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
        self._set(names.GAVE_UP, labels, 0)
        for metric in (names.DELIVERED_BATCHES, names.DELIVERED_ROWS, names.SENT_ROWS, names.REJECTED_ROWS):
            self._add(metric, labels, 0)
        for reason in ("rejected", "unknown"):
            self._add(names.DEAD_LETTER_ROWS, (*labels, reason), 0)
        self._add(names.RETRIES, (*labels, FailureKind.RETRIABLE.value), 0)
        self._set(names.SLOW_STORE, (event.wal,), 0)

    @_count.register
    def _(self, event: events.Ended) -> None:
        self._backlogs.pop((event.wal, event.sink), None)

    @_count.register
    def _(self, event: events.Staged) -> None:
        wal = (event.wal,)
        self._add(names.STAGED_BATCHES, wal, 1)
        self._add(names.STAGED_ROWS, wal, event.rows)
        self._add(names.STAGED_BYTES, wal, event.bytes)
        self._add(names.STAGED_SEGMENTS, wal, event.segments)
        self._set(names.STREAM_WAITING, wal, 0)
        self._histogram(names.STAGING_SECONDS, wal).add(event.took_s)
        self._merge_requests(event.wal, event.requests)
        for (of, _), backlog in self._backlogs.items():
            if of == event.wal:
                backlog.note(event.batch, event.staged_at)

    @_count.register
    def _(self, event: events.Replayed) -> None:
        self._add(names.REPLAYED_BATCHES, (event.wal,), 1)

    @_count.register
    def _(self, event: events.StreamHeld) -> None:
        self._set(names.STREAM_WAITING, (event.wal,), 1)

    @_count.register
    def _(self, event: events.StreamResumed) -> None:
        self._set(names.STREAM_WAITING, (event.wal,), 0)
        self._add(names.STREAM_WAITED, (event.wal,), event.waited_s)

    @_count.register
    def _(self, event: events.Released) -> None:
        backlog = self._backlog(event)
        backlog.note(event.batch, event.staged_at)
        backlog.newest = max(backlog.newest, event.complete_through)

    @_count.register
    def _(self, event: events.Sent) -> None:
        labels = event.wal, event.sink
        self._add(names.SENT_ROWS, labels, event.rows)
        self._add(names.SENT_CHUNKS, labels, event.chunks)
        for times in event.chunk_times:
            self._histogram(names.CHUNK_SECONDS, labels).merge(times)
        self._merge_requests(event.wal, event.requests)

    @_count.register
    def _(self, event: events.Rejected) -> None:
        self._add(names.REJECTED_ROWS, (event.wal, event.sink), event.rows)

    @_count.register
    def _(self, event: events.AttemptFailed) -> None:
        kind = _kind(event.kind)
        if event.next_in_s is not None:
            self._add(names.RETRIES, (event.wal, event.sink, kind), 1)
        self._note_error(event.wal, event.sink, kind)

    @_count.register
    def _(self, event: events.GaveUp) -> None:
        self._set(names.GAVE_UP, (event.wal, event.sink), 1)
        self._note_error(event.wal, event.sink, _kind(event.kind))

    @_count.register
    def _(self, event: events.Delivered) -> None:
        self._histogram(names.DELIVERY_SECONDS, (event.wal, event.sink)).add(event.took_s)

    @_count.register
    def _(self, event: events.Marked) -> None:
        labels = event.wal, event.sink
        self._add(names.DELIVERED_BATCHES, labels, event.batches)
        self._add(names.DELIVERED_ROWS, labels, event.rows)
        self._add(names.DEAD_LETTER_ROWS, (*labels, "rejected"), event.rejected)
        self._add(names.DEAD_LETTER_ROWS, (*labels, "unknown"), event.unknown)
        for delay_s in event.delays_s:
            self._histogram(names.DELAY_SECONDS, labels).add(delay_s)
        backlog = self._backlog(event)
        backlog.deliver(event.batch)
        backlog.last_delivery = self._now()

    @_count.register
    def _(self, event: events.FoundDelivered) -> None:
        self._backlog(event).deliver(event.batch)

    @_count.register
    def _(self, event: events.Collected) -> None:
        self._set(names.LOW_WATER, (event.wal,), event.low_water)

    @_count.register
    def _(self, event: events.SlowStore) -> None:
        self._set(names.SLOW_STORE, (event.wal,), 1)

    def _backlog(self, event: events.Released | events.Marked | events.FoundDelivered) -> _Backlog:
        new = _Backlog(None, -1, self._now())
        return self._backlogs.setdefault((event.wal, event.sink), new)

    def _note_error(self, wal: str, sink: str, kind: str) -> None:
        errors_of_sink = self._values[names.LAST_ERROR]
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

"""Times of requests and chunks, as counts in fixed buckets. They are plain data: tasks send them with their results."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds. One more bucket holds what took longer."""

Operation = Literal["create", "read", "list", "delete", "segment"]
Answer = Literal["ok", "missing", "exists", "error"]
"""How a request ended. `missing` and `exists` are ordinary answers: the protocol asks for what may not be there."""


class Times(msgspec.Struct, frozen=True):
    """Number of calls in each bucket of `BOUNDS_S`, and the seconds of all together."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0

    @property
    def count(self) -> int:
        """Number of all calls."""
        return sum(self.counts)


class OperationTimes(msgspec.Struct, frozen=True):
    """Requests of one operation that had one kind of answer."""

    operation: Operation
    answer: Answer
    times: Times


class Histogram:
    """Times that are still being counted. One thread at a time."""

    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def add(self, took_s: float) -> None:
        """Count one call."""
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._total_s += took_s

    def merge(self, times: Times) -> None:
        """Count the calls of another count."""
        self._counts = [own + other for own, other in zip(self._counts, times.counts, strict=True)]
        self._total_s += times.total_s

    def times(self) -> Times:
        """The count so far."""
        return Times(tuple(self._counts), self._total_s)


class Meter(Protocol):
    """Counts requests. Called by the thread that made the request, which may hold locks: it only counts."""

    def note(self, operation: Operation, answer: Answer, took_s: float) -> None:
        """Count one request."""
        ...


class RequestCounts:
    """The requests of one task or run. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Operation, Answer], Histogram] = {}

    def note(self, operation: Operation, answer: Answer, took_s: float) -> None:
        """Count one request."""
        with self._lock:
            self._of(operation, answer).add(took_s)

    def merge(self, requests: Iterable[OperationTimes]) -> None:
        """Count the requests of a task."""
        with self._lock:
            for each in requests:
                self._of(each.operation, each.answer).merge(each.times)

    def counted(self) -> tuple[OperationTimes, ...]:
        """The requests so far, by operation and answer."""
        with self._lock:
            return tuple(OperationTimes(*key, self._counts[key].times()) for key in sorted(self._counts))

    def _of(self, operation: Operation, answer: Answer) -> Histogram:
        return self._counts.setdefault((operation, answer), Histogram())

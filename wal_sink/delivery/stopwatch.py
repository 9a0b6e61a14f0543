"""Measures the delivery of one batch: its attempts, and which segment was the slowest."""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.messages import NO_SEGMENT, SegmentResult
from wal_sink.runtime.clock import Runtime
from wal_sink.wal.records import DeliveryTiming, SegmentTiming, rounded


class Stopwatch:
    """Runs from its making on, over all attempts at one batch."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._began = runtime.timestamp()
        self._began_s = runtime.monotonic_s()
        self._fetch_s = self._send_s = 0.0
        self._slowest: SegmentResult | None = None
        self.attempts = 0

    def take(self, results: Iterable[SegmentResult]) -> None:
        """Add the times of an attempt's segments."""
        for result in results:
            if result.ordinal == NO_SEGMENT:
                continue
            self._fetch_s += result.fetch_s
            self._send_s += result.send_s
            if self._slowest is None or result.took_s > self._slowest.took_s:
                self._slowest = result

    def timing(self, batch_id: int, due: str) -> DeliveryTiming:
        """The timing of a batch whose rows the sink has. `due`: when it was the sink's next one."""
        return DeliveryTiming(
            batch_id=batch_id,
            due=due,
            began=self._began,
            seconds=rounded(self._runtime.monotonic_s() - self._began_s),
            attempts=max(1, self.attempts),
            fetch_seconds=rounded(self._fetch_s),
            send_seconds=rounded(self._send_s),
            slowest=None if self._slowest is None else _segment(self._slowest),
        )


def _segment(result: SegmentResult) -> SegmentTiming:
    return SegmentTiming(
        ordinal=result.ordinal,
        fetch_seconds=rounded(result.fetch_s),
        send_seconds=rounded(result.send_s),
        host=result.host,
    )

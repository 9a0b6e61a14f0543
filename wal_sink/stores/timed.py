"""`TimedStore`: the driver's way to its store, which tells once that the store is slow."""

from __future__ import annotations

import threading
from collections import deque

from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import SYSTEM, Runtime
from wal_sink.stores.base import Store
from wal_sink.stores.passing import PassingStore
from wal_sink.telemetry.events import SlowStore
from wal_sink.telemetry.hooks import OFF, Events

SLOW_S = 1.0
"""A request that takes longer is slow. A large object may take longer, at this rate."""
SLOW_BYTES_PER_S = 8 << 20
SLOW_REQUESTS = 3
"""So many slow requests among the last `LAST_REQUESTS` make a slow store."""
LAST_REQUESTS = 100

_logger = logger_of(__name__)


class TimedStore(PassingStore):
    """Passes every call to another store, and logs one warning if that store is slow. Adds no request.

    Creates and reads are timed. Listings and deletions are not: one call may be many requests. Nor are writes of
    segments, whose time is mostly that of the rows.
    """

    def __init__(self, inner: Store, runtime: Runtime = SYSTEM, events: Events = OFF) -> None:
        super().__init__(inner)
        self._runtime = runtime
        self._events = events
        self._lock = threading.Lock()
        self._last: deque[bool] = deque(maxlen=LAST_REQUESTS)
        """For each of the last requests, whether it was slow."""
        self._longest_s, self._longest = 0.0, ""
        self._was_told = False

    def create(self, path: str, data: bytes) -> None:
        began_s = self._runtime.monotonic_s()
        try:
            super().create(path, data)
        finally:
            self._note(f"creating {path}", began_s, len(data))

    def read(self, path: str) -> bytes:
        began_s, data = self._runtime.monotonic_s(), b""
        try:
            data = super().read(path)
        finally:
            self._note(f"reading {path}", began_s, len(data))
        return data

    def _note(self, what: str, began_s: float, size: int) -> None:
        took_s = self._runtime.monotonic_s() - began_s
        with self._lock:
            if self._was_told:
                return
            self._last.append(took_s > SLOW_S + size / SLOW_BYTES_PER_S)
            if took_s > self._longest_s:
                self._longest_s, self._longest = took_s, what
            slow = sum(self._last)
            if slow < SLOW_REQUESTS:
                return
            self._was_told = True
        _logger.warning(
            "%s is slow: %d of the last %d requests took longer than %g s. The longest took %.1f s (%s). Batches are "
            "staged and delivered later, and no rows are lost. Check the load and the request limits of the store, "
            "and the network. This run does not log this again",
            self.root,
            slow,
            len(self._last),
            SLOW_S,
            self._longest_s,
            self._longest,
        )
        last, longest_s = len(self._last), self._longest_s  # queued, since the caller may hold a lock
        self._events.tell_later(SlowStore, slow_requests=slow, last_requests=last, longest_s=longest_s)

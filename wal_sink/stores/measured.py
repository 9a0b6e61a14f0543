"""`MeasuredStore`: times every request to another store. It counts them, or tells once that the store is slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from wal_sink.stores.base import ObjectExists, ObjectMissing, SegmentStream, Store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.clock import SYSTEM, Runtime
from wal_sink.support.events import OFF, Events, SlowStore
from wal_sink.support.logs import logger_of
from wal_sink.support.measures import Answer, Meter, Operation

T = TypeVar("T")

SLOW_S = 1.0
"""A request that takes longer is slow. A large object may take longer, at this rate."""
SLOW_BYTES_PER_S = 8 << 20
SLOW_REQUESTS = 3
"""So many slow requests among the last `LAST_REQUESTS` make a slow store."""
LAST_REQUESTS = 100

_logger = logger_of(__name__)


class SlowRequests:
    """Logs one warning if a store is slow.

    Creates and reads are judged. Listings and deletions are not: one call may be many requests. Nor are segments,
    whose time is mostly that of the rows.
    """

    def __init__(self, root: str, events: Events = OFF) -> None:
        self._root = root
        self._events = events
        self._lock = threading.Lock()
        self._last: deque[bool] = deque(maxlen=LAST_REQUESTS)
        """For each of the last requests, whether it was slow."""
        self._longest_s, self._longest = 0.0, ""
        self._was_told = False

    def note(self, what: str, took_s: float, size: int) -> None:
        """Judge one request, which moved `size` bytes."""
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
            self._root,
            slow,
            len(self._last),
            SLOW_S,
            self._longest_s,
            self._longest,
        )
        last, longest_s = len(self._last), self._longest_s  # queued, since the caller may hold a lock
        self._events.tell_later(SlowStore, slow_requests=slow, last_requests=last, longest_s=longest_s)


class MeasuredStore(Store):
    """Passes every call to another store, unchanged, and its answers and errors back. Adds no request.

    One call counts as one request: a listing may be several pages, a deletion several batches. A segment is counted
    when it is committed, with the time of the commit: the time before it is mostly that of the rows.
    """

    def __init__(
        self, inner: Store, meter: Meter | None = None, slow: SlowRequests | None = None, runtime: Runtime = SYSTEM
    ) -> None:
        self._inner = inner
        self._meter = meter
        self._slow = slow
        self._runtime = runtime

    @property
    def root(self) -> str:
        return self._inner.root

    @property
    def spec(self) -> StoreSpec | None:
        return self._inner.spec

    @property
    def create_doubt(self) -> str:
        return self._inner.create_doubt

    def begin(self, *, is_there: bool = False) -> None:
        self._inner.begin(is_there=is_there)

    def create(self, path: str, data: bytes) -> None:
        self.timed("create", lambda: self._inner.create(path, data), f"creating {path}", len(data))

    def read(self, path: str) -> bytes:
        return self.timed("read", lambda: self._inner.read(path), f"reading {path}")

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return self.timed("list", lambda: self._inner.list(prefix, after=after, recursive=recursive))

    def delete(self, paths: Iterable[str]) -> None:
        doomed = [*paths]
        if doomed:  # a store sends no request for nothing
            self.timed("delete", lambda: self._inner.delete(doomed))

    def segment(self, path: str) -> SegmentStream:
        return _MeasuredStream(self._inner.segment(path), self)

    def url_of(self, path: str) -> str:
        return self._inner.url_of(path)

    def timed(self, operation: Operation, request: Callable[[], T], what: str = "", sent_bytes: int = 0) -> T:
        """Make a request and note how it ended. With `what`, a slow one counts for the warning."""
        began_s = self._runtime.monotonic_s()
        answer: Answer = "error"
        size = sent_bytes
        try:
            returned = request()
            answer = "ok"
            size += len(returned) if isinstance(returned, bytes) else 0
        except ObjectMissing:
            answer = "missing"
            raise
        except ObjectExists:
            answer = "exists"
            raise
        finally:
            took_s = self._runtime.monotonic_s() - began_s
            if self._meter is not None:
                self._meter.note(operation, answer, took_s)
            if self._slow is not None and what:
                self._slow.note(what, took_s, size)
        return returned


class _MeasuredStream(SegmentStream):
    def __init__(self, inner: SegmentStream, store: MeasuredStore) -> None:
        self._inner = inner
        self._store = store

    def write(self, data: bytes | memoryview) -> None:
        self._inner.write(data)

    def commit(self) -> None:
        self._store.timed("segment", self._inner.commit)

    def abort(self) -> None:
        self._inner.abort()


def measured(store: Store, meter: Meter | None, runtime: Runtime = SYSTEM) -> Store:
    """The store, measured for a meter if there is one."""
    return store if meter is None else MeasuredStore(store, meter, runtime=runtime)

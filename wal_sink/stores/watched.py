"""`WatchedStore`: counts and times every request to another store. Used only where metrics are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from wal_sink.runtime.clock import SYSTEM, Runtime
from wal_sink.stores.base import ObjectExists, ObjectMissing, SegmentStream, Store
from wal_sink.stores.passing import PassingStore
from wal_sink.telemetry.measures import Answer, Meter, Operation

T = TypeVar("T")


class WatchedStore(PassingStore):
    """Passes every call to another store and tells a meter of it. Adds no request.

    One call counts as one request: a listing may be several pages, a deletion several batches. A segment is counted
    when it is committed, with the time of the commit: the time before it is mostly that of the rows.
    """

    def __init__(self, inner: Store, meter: Meter, runtime: Runtime = SYSTEM) -> None:
        super().__init__(inner)
        self._meter = meter
        self._runtime = runtime

    def create(self, path: str, data: bytes) -> None:
        self.timed("create", lambda: super(WatchedStore, self).create(path, data))

    def read(self, path: str) -> bytes:
        return self.timed("read", lambda: super(WatchedStore, self).read(path))

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return self.timed("list", lambda: super(WatchedStore, self).list(prefix, after=after, recursive=recursive))

    def delete(self, paths: Iterable[str]) -> None:
        doomed = [*paths]
        if doomed:  # a store sends no request for nothing
            self.timed("delete", lambda: super(WatchedStore, self).delete(doomed))

    def segment(self, path: str) -> SegmentStream:
        return _WatchedStream(super().segment(path), self)

    def timed(self, operation: Operation, request: Callable[[], T]) -> T:
        """Make a request and tell the meter how it ended."""
        began_s = self._runtime.monotonic_s()
        answer: Answer = "error"
        try:
            returned = request()
            answer = "ok"
        except ObjectMissing:
            answer = "missing"
            raise
        except ObjectExists:
            answer = "exists"
            raise
        finally:
            self._meter.note(operation, answer, self._runtime.monotonic_s() - began_s)
        return returned


class _WatchedStream(SegmentStream):
    def __init__(self, inner: SegmentStream, store: WatchedStore) -> None:
        self._inner = inner
        self._store = store

    def write(self, data: bytes | memoryview) -> int:
        return self._inner.write(data)

    def commit(self) -> None:
        self._store.timed("segment", self._inner.commit)

    def abort(self) -> None:
        self._inner.abort()


def watched(store: Store, meter: Meter | None, runtime: Runtime = SYSTEM) -> Store:
    """The store, watched by a meter if there is one."""
    return store if meter is None else WatchedStore(store, meter, runtime)

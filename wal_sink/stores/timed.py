"""`TimedStore`: the driver's way to its store, which tells once that the store is slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import SYSTEM, Runtime
from wal_sink.stores.base import SegmentStream, Store

SLOW_S = 1.0
"""A request that takes longer is slow. One that moves many bytes or names may take longer, at these rates."""
SLOW_BYTES_PER_S = 8 << 20
SLOW_NAMES_PER_S = 200
SLOW_REQUESTS = 3
"""So many slow requests among the last `LAST_REQUESTS` make a slow store."""
LAST_REQUESTS = 100

_logger = logger_of(__name__)


@dataclass(slots=True)
class _Moved:
    """Amount that a request moves: the bytes of an object, or the names of a listing or a deletion."""

    size: int = 0
    names: int = 0

    @property
    def allowed_s(self) -> float:
        return SLOW_S + self.size / SLOW_BYTES_PER_S + self.names / SLOW_NAMES_PER_S


class TimedStore(Store):
    """Passes every call to another store, and logs one warning if that store is slow. Adds no request.

    Writes of segments are not timed: their time is mostly that of the rows.
    """

    def __init__(self, inner: Store, runtime: Runtime = SYSTEM) -> None:
        self._inner = inner
        self._runtime = runtime
        self._lock = threading.Lock()
        self._last: deque[bool] = deque(maxlen=LAST_REQUESTS)
        """For each of the last requests, whether it was slow."""
        self._longest_s, self._longest = 0.0, ""
        self._was_told = False

    @property
    def root(self) -> str:
        return self._inner.root

    @property
    def create_doubt(self) -> str:
        return self._inner.create_doubt

    def begin(self, *, is_there: bool = False) -> None:
        self._inner.begin(is_there=is_there)

    def create(self, path: str, data: bytes) -> None:
        with self._timed(f"creating {path}") as moved:
            moved.size = len(data)
            self._inner.create(path, data)

    def read(self, path: str) -> bytes:
        with self._timed(f"reading {path}") as moved:
            data = self._inner.read(path)
            moved.size = len(data)
        return data

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        with self._timed(f"listing {prefix or 'the root'}") as moved:
            names = self._inner.list(prefix, after=after, recursive=recursive)
            moved.names = len(names)
        return names

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        with self._timed(f"deleting {len(doomed)} objects") as moved:
            moved.names = len(doomed)
            self._inner.delete(doomed)

    def segment(self, path: str) -> SegmentStream:
        return self._inner.segment(path)

    def url_of(self, path: str) -> str:
        return self._inner.url_of(path)

    @contextmanager
    def _timed(self, what: str) -> Iterator[_Moved]:
        moved, began_s = _Moved(), self._runtime.monotonic_s()
        try:
            yield moved
        finally:
            self._note(what, self._runtime.monotonic_s() - began_s, moved.allowed_s)

    def _note(self, what: str, took_s: float, allowed_s: float) -> None:
        with self._lock:
            if self._was_told:
                return
            self._last.append(took_s > allowed_s)
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

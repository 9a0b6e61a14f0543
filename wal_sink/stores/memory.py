"""Objects in the memory of this process, for tests and simulations. Stores with the same URL share them until the
process ends.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from wal_sink.errors import StoreError
from wal_sink.stores.base import ObjectExists, ObjectMissing, SegmentStream, StoreAt, check_path, names_in
from wal_sink.stores.spec import StoreSpec


@dataclass(slots=True)
class _Space:
    """Objects that all stores of one URL share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    objects: dict[str, bytes] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    """Keys of `objects`, sorted."""


_spaces: dict[str, _Space] = {}
_spaces_lock = threading.Lock()


def _renew_locks() -> None:
    global _spaces_lock  # noqa: PLW0603 - a lock that another thread held at the fork is never released
    _spaces_lock = threading.Lock()
    for space in _spaces.values():
        space.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class MemoryStore(StoreAt):
    """A `Store` whose objects live as long as the process. A forked child starts with a copy."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        with _spaces_lock:
            self._space = _spaces.setdefault(spec.url, _Space())

    def create(self, path: str, data: bytes) -> None:
        check_path(path)
        with self._space.lock:
            if path in self._space.objects:
                raise ObjectExists(f"{self.url_of(path)} exists already")
            self._space.objects[path] = bytes(data)
            insort(self._space.keys, path)

    def read(self, path: str) -> bytes:
        with self._space.lock:
            try:
                return self._space.objects[path]
            except KeyError:
                raise ObjectMissing(f"{self.url_of(path)} does not exist") from None

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        with self._space.lock:
            return [*names_in(self._space.keys, prefix, after=after, recursive=recursive)]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._space.lock:
                if self._space.objects.pop(path, None) is not None:
                    del self._space.keys[bisect_left(self._space.keys, path)]

    def segment(self, path: str) -> SegmentStream:
        return MemorySegment(self, check_path(path))


class MemorySegment(SegmentStream):
    """A segment in memory; `commit` makes it an object."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        if self._data is None:
            raise StoreError(f"{self._store.url_of(self._path)} was committed or dropped already; start a new segment")
        self._data += data

    def commit(self) -> None:
        if self._data is None:
            raise StoreError(f"{self._store.url_of(self._path)} was committed or dropped already; start a new segment")
        self._store.create(self._path, bytes(self._data))
        self._data = None

    def abort(self) -> None:
        self._data = None

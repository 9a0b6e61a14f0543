"""`FaultyStore`: a store that calls a hook before and after each of its operations, which may crash or fail there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wal_sink.stores.base import SegmentStream, Store
from wal_sink.stores.measured import MeasuredStore


class Crash(BaseException):
    """The death of the process. It is a `BaseException`, so that no handler of errors survives it."""


Hook = Callable[[str, str], None]
"""A function that gets `"before create"`, `"after create"`, … and the path. It may raise `Crash` or a store's error."""


class FaultyStore(MeasuredStore):
    """A store that passes each call to another store, and calls a hook around each operation that reaches it."""

    def __init__(self, inner: Store, hook: Hook) -> None:
        super().__init__(inner)
        self._hook = hook

    def create(self, path: str, data: bytes) -> None:
        self._hook("before create", path)
        self._inner.create(path, data)
        self._hook("after create", path)

    def read(self, path: str) -> bytes:
        self._hook("before read", path)
        return self._inner.read(path)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        self._hook("before list", prefix)
        return self._inner.list(prefix, after=after, recursive=recursive)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete path by path, so that a crash may leave some of them."""
        for path in paths:
            self._hook("before delete", path)
            self._inner.delete([path])
            self._hook("after delete", path)

    def segment(self, path: str) -> SegmentStream:
        return _FaultyStream(self._inner.segment(path), path, self._hook)


class _FaultyStream(SegmentStream):
    def __init__(self, inner: SegmentStream, path: str, hook: Hook) -> None:
        self._inner = inner
        self._path = path
        self._hook = hook

    def write(self, data: bytes | memoryview) -> None:
        self._inner.write(data)

    def commit(self) -> None:
        self._hook("before segment", self._path)
        self._inner.commit()
        self._hook("after segment", self._path)

    def abort(self) -> None:
        self._inner.abort()

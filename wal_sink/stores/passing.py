"""`PassingStore`: the base of a store that stands before another one."""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.stores.base import SegmentStream, Store
from wal_sink.stores.spec import StoreSpec


class PassingStore(Store):
    """Passes every call to another store, unchanged. Its answers and errors come back unchanged, too."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

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
        self._inner.create(path, data)

    def read(self, path: str) -> bytes:
        return self._inner.read(path)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return self._inner.list(prefix, after=after, recursive=recursive)

    def delete(self, paths: Iterable[str]) -> None:
        self._inner.delete(paths)

    def segment(self, path: str) -> SegmentStream:
        return self._inner.segment(path)

    def url_of(self, path: str) -> str:
        return self._inner.url_of(path)

"""A store that counts its requests as S3 charges for them.

They are counted by top folder (each shard separately) and by kind. Listings and deletes are counted by the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from wal_sink.estimation.plan import StoreModel
from wal_sink.estimation.requests import Requests, Traffic, joined
from wal_sink.stores.base import SegmentStream, Store
from wal_sink.wal import paths


class CountedStore(Store):
    """Passes everything on. `traffic` holds the requests since the last call of `taken`."""

    def __init__(self, inner: Store, model: StoreModel) -> None:
        self._inner = inner
        self._model = model
        self._traffic: Traffic = {}

    def taken(self) -> Traffic:
        """Return the counts, and begin a new count."""
        taken, self._traffic = self._traffic, {}
        return taken

    @property
    def root(self) -> str:
        return self._inner.root

    def begin(self, *, is_there: bool = False) -> None:
        self._inner.begin(is_there=is_there)

    def create(self, path: str, data: bytes) -> None:
        self._count(path, Requests(puts=1))
        self._inner.create(path, data)

    def read(self, path: str) -> bytes:
        self._count(path, Requests(gets=1))
        return self._inner.read(path)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = self._inner.list(prefix, after=after, recursive=recursive)
        self._count(prefix, Requests(lists=self._model.listings(len(names))))
        return names

    def delete(self, paths: Iterable[str]) -> None:  # the name hides the module only here
        doomed = list(paths)
        for path in doomed:
            self._count(path, Requests(keys_deleted=1))
        if doomed:
            self._count(doomed[0], Requests(deletes=self._model.deletes(len(doomed))))
        self._inner.delete(doomed)

    def segment(self, path: str) -> SegmentStream:
        return _CountedStream(self._inner.segment(path), partial(self._count, path, Requests(puts=1)))

    def _count(self, path: str, requests: Requests) -> None:
        parts = f"{path}/".split("/")
        shard = "/<shard>" if any(paths.is_shard(f"{part}/") for part in parts) else ""
        self._traffic = joined(self._traffic, {parts[0] + shard: requests})


class _CountedStream(SegmentStream):
    def __init__(self, inner: SegmentStream, count: partial[None]) -> None:
        self._inner = inner
        self._count = count

    def write(self, data: bytes | memoryview) -> int:
        return self._inner.write(data)

    def commit(self) -> None:
        self._count()
        self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()

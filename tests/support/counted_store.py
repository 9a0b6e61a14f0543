"""A store that counts its requests as S3 charges for them.

They are counted by top folder (each shard separately) and by kind. Listings and deletes are counted by the page.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.estimation.plan import StoreModel
from wal_sink.estimation.requests import Requests, Traffic, joined
from wal_sink.stores.base import Store
from wal_sink.testing import FaultyStore
from wal_sink.wal import paths

_PER_OBJECT = {
    "before create": Requests(puts=1),
    "before segment": Requests(puts=1),
    "before read": Requests(gets=1),
}


class CountedStore(FaultyStore):
    """Passes everything on. `taken` returns the requests since its last call."""

    def __init__(self, inner: Store, model: StoreModel) -> None:
        super().__init__(inner, lambda what, path: self._count(path, _PER_OBJECT.get(what)))
        self._model = model
        self._traffic: Traffic = {}

    def taken(self) -> Traffic:
        """Return the counts, and begin a new count."""
        taken, self._traffic = self._traffic, {}
        return taken

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = super().list(prefix, after=after, recursive=recursive)
        self._count(prefix, Requests(lists=self._model.listings(len(names))))
        return names

    def delete(self, paths: Iterable[str]) -> None:  # the name hides the module only here
        doomed = list(paths)
        for path in doomed:
            self._count(path, Requests(keys_deleted=1))
        if doomed:
            self._count(doomed[0], Requests(deletes=self._model.deletes(len(doomed))))
        self._inner.delete(doomed)

    def _count(self, path: str, requests: Requests | None) -> None:
        if requests is None:
            return
        parts = f"{path}/".split("/")
        shard = "/<shard>" if any(paths.is_shard(f"{part}/") for part in parts) else ""
        self._traffic = joined(self._traffic, {parts[0] + shard: requests})

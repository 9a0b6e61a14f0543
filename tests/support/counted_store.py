"""A store that counts its requests as S3 charges for them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.house.operate import Requests
from tests.house.stores import Store
from wal_sink.testing import FaultyStore

_OF = {
    "before create": Requests(puts=1),
    "before segment": Requests(puts=1),
    "before read": Requests(gets=1),
    "before list": Requests(lists=1),
}


class CountedStore(FaultyStore):
    """Passes everything on. `taken` returns the requests since its last call."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, lambda what, _: self._count(_OF.get(what, Requests())))
        self._taken = Requests()

    def taken(self) -> Requests:
        """Return the counts, and begin a new count."""
        taken, self._taken = self._taken, Requests()
        return taken

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        self._count(Requests(deletes=int(bool(doomed))))
        self._inner.delete(doomed)

    def _count(self, requests: Requests) -> None:
        self._taken += requests

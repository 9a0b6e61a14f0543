"""The small world of the simulation with its WAL on a real server, and an oracle that asks the server itself.

The oracle goes past the proxy and its faults, by another client than wal-sink's. It looks after each create, segment
and delete of a run, whatever these answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.chaos.followed_world import FollowedWorld
from tests.house.stores import MeasuredStore, SegmentStream, Store
from tests.simulation.histories.lives import Hook
from tests.simulation.histories.plans import Fault, Shape
from tests.simulation.histories.process import Process
from tests.simulation.world import Life
from wal_sink.testing import FaultyStore


@dataclass(frozen=True, slots=True)
class Sight:
    """The objects of one folder as the server has them. Both functions may raise any error if it is down."""

    names: Callable[[], Iterable[str]]
    read: Callable[[str], bytes]


class StoreWorld(FollowedWorld):
    """A world on a store, whose folder `sight` shows."""

    def __init__(self, store: Store, sight: Sight, kind: str, batches: Shape, *, mortal: bool) -> None:
        """With `mortal`, the server may be down. The world is then looked at later."""
        super().__init__(kind, batches=batches)
        self._store = store
        self._sight = sight
        self._mortal = mortal
        self._unseen: set[str] | None = None
        """Paths that a look missed since the server was down; `None` if the last look had success."""

    def wal_of(self, process: Process) -> Store:
        return FaultyStore(_Watched(self._store, self), process.point)

    def life(self, *faults: Fault, hook: Hook | None = None) -> Life:
        self.look("the end of a life")
        return super().life(*faults, hook=hook)

    def check_end(self, *, crashes: int) -> None:
        """Compare every byte on the server, then check the laws."""
        self._mortal = False
        self.look("the end", every=True)
        super().check_end(crashes=crashes)

    def look(self, after: str, *paths: str, every: bool = False) -> None:
        """Read new objects, and those at `paths`, from the server; with `every`, all."""
        wanted = {*paths, *(self._unseen or ())}
        try:
            names = list(self._sight.names())
            known = {} if every else {path: data for path, data in self.wal.objects.items() if path not in wanted}
            there = {name: known[name] if name in known else self._sight.read(name) for name in names}
        except Exception:
            if not self._mortal:
                raise
            self._unseen = wanted
        else:
            self._unseen = None
            self.follow(there, after)

    def catch_up(self, after: str) -> None:
        """Look again if the last look failed. A run reads before it sends, and may send what was released meanwhile."""
        if self._unseen is not None:
            self.look(after)


class _Watched(MeasuredStore):
    """The store of a run. The world is looked at after each of its effects."""

    def __init__(self, inner: Store, world: StoreWorld) -> None:
        super().__init__(inner)
        self._world = world

    def create(self, path: str, data: bytes) -> None:
        try:
            super().create(path, data)
        finally:
            self._world.look(f"create {path}", path)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self._world.catch_up(f"read {path}")
        return data

    def delete(self, paths: Iterable[str]) -> None:
        try:
            super().delete(paths)
        finally:
            self._world.look("delete")

    def segment(self, path: str) -> SegmentStream:
        return _WatchedStream(super().segment(path), path, self._world)


class _WatchedStream(SegmentStream):
    def __init__(self, inner: SegmentStream, path: str, world: StoreWorld) -> None:
        self._inner = inner
        self._path = path
        self._world = world

    def write(self, data: bytes | memoryview) -> None:
        self._inner.write(data)

    def commit(self) -> None:
        try:
            self._inner.commit()
        finally:
            self._world.look(f"segment {self._path}", self._path)

    def abort(self) -> None:
        self._inner.abort()

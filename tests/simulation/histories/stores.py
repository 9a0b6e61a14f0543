"""The simulated store: a dictionary that outlives processes. Each process sees it through points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tests.house.stores import MemoryStore, ObjectMissing, SegmentStream, Store
from tests.simulation.histories.process import Process
from wal_sink.errors import StoreError
from wal_sink.stores.memory import _Space


class Watcher(Protocol):
    """An observer that sees every effect at the moment of the effect."""

    def created(self, process: int, path: str, data: bytes) -> None: ...
    def deleting(self, path: str) -> None: ...
    def listed(self, process: int, prefix: str) -> None: ...


class Space(MemoryStore):
    """The objects under one root. It shares them with no other store, and is freed with its world."""

    def __init__(self, root: str, watcher: Watcher, *, disorder: int = 0, two_looks: bool = False) -> None:
        self._root = root
        self._space = _Space()
        self.watcher = watcher
        self.disorder = disorder
        """If it is not 0, listings and deletions come in any order."""
        self.two_looks = two_looks
        self.shuffles = 0
        """Number of listings that came in another order."""
        self.pages = 0
        """Number of listings that took two looks."""

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects by path, in the order in which they were made."""
        return self._space.objects

    def copy(self, watcher: Watcher) -> Space:
        """A space with the same objects. A change of one space does not show in the other."""
        other = Space(self.root, watcher, disorder=self.disorder, two_looks=self.two_looks)
        other._space = _Space(objects=self.objects.copy(), keys=self._space.keys.copy())
        other.shuffles, other.pages = self.shuffles, self.pages
        return other

    def looked_again(self, names: list[str], prefix: str, *, recursive: bool) -> list[str]:
        """The names of a listing in two pages. Changes between the pages show in the later page alone."""
        page = names[: (len(names) + 1) // 2]
        self.pages += 1
        return page + self.list(prefix, after=page[-1], recursive=recursive)

    def any_order(self, names: Sequence[str]) -> list[str]:
        """The names in an order that a store without order may give."""
        self.shuffles += 1
        turn = self.disorder * self.shuffles
        begin = turn % len(names)
        turned = [*names[begin:], *names[:begin]]
        return turned[::-1] if turn // len(names) % 2 else turned


class SimulatedStore(Store):
    """A space as one process sees it."""

    def __init__(self, space: Space, process: Process) -> None:
        self._space = space
        self._objects = space.objects
        self._process = process
        self._point = process.point
        self._watcher = space.watcher

    @property
    def root(self) -> str:
        return self._space.root

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data, "before create", "after create")

    def put(self, path: str, data: bytes, before: str, after: str, *, allow: Callable[[], None] | None = None) -> None:
        """Create an object. `allow` may refuse at the moment of the effect."""
        self._point(before, path)
        if allow is not None:
            allow()
        if self._process.full_for:
            self._process.refuse_create(path)
        self._space.create(path, data)
        self._watcher.created(self._process.number, path, data)
        self._point(after, path)

    def read(self, path: str) -> bytes:
        self._point("before read", path)
        data = self._objects.get(path)
        if data is None:
            raise ObjectMissing(path)
        return data

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        self._point("before list", prefix)
        names = self._space.list(prefix, after=after, recursive=recursive)
        self._watcher.listed(self._process.number, prefix)
        if len(names) > 1:
            if self._space.two_looks:
                self._point("within list", prefix)
                names = self._space.looked_again(names, prefix, recursive=recursive)
            if self._space.disorder:
                names = self._space.any_order(names)
        return names

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        if self._space.disorder and doomed:
            doomed = self._space.any_order(doomed)
        for path in doomed:
            self._point("before delete", path)
            if path in self._objects:
                self._watcher.deleting(path)
                self._space.delete([path])
            self._point("after delete", path)

    def segment(self, path: str) -> SegmentStream:
        return _Stream(self, path)


class _Stream(SegmentStream):
    def __init__(self, store: SimulatedStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = b""

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def commit(self) -> None:
        self._store.put(self._path, self._data, "before segment", "after segment")

    def abort(self) -> None:
        """Do nothing, since nothing was visible."""


def failure_of(what: str, where: str) -> Exception:
    """The error at a point: the store's or the target's."""
    text = f"simulated failure {what} {where}"
    at_target = what.endswith(("sink", "lookup", "last", "begin", "hold", "prepare", "abort"))
    return ConnectionError(text) if at_target else StoreError(text)

"""The simulated store: a dictionary that outlives processes. Each process sees it through points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from wal_sink.errors import StoreError
from wal_sink.stores.base import ObjectExists, ObjectMissing, SegmentStream, Store


class Process(Protocol):
    """The process that uses the store."""

    number: int
    """Its number among the processes of the history."""
    full_for: int
    """Number of creates that still find the disk full."""

    def point(self, what: str, where: str) -> None: ...
    def refuse_create(self, path: str) -> None: ...


class Watcher(Protocol):
    """An observer that sees every effect at the moment of the effect."""

    def created(self, process: int, path: str, data: bytes) -> None: ...
    def deleting(self, path: str) -> None: ...
    def listed(self, process: int, prefix: str) -> None: ...


class Space:
    """The objects under one root."""

    def __init__(self, root: str, watcher: Watcher, *, disorder: int = 0, two_looks: bool = False) -> None:
        self.root = root
        self.watcher = watcher
        self.disorder = disorder
        """If it is not 0, listings and deletions come in any order."""
        self.two_looks = two_looks
        self.objects: dict[str, bytes] = {}
        self.shuffles = 0
        """Number of listings that came in another order."""
        self.pages = 0
        """Number of listings that took two looks."""
        self._folders: dict[str, set[str]] = {}
        """Names by folder. Subfolders end in `/`. An empty folder does not exist."""

    def copy(self, watcher: Watcher) -> Space:
        """A space with the same objects. A change of one space does not show in the other."""
        other = Space(self.root, watcher, disorder=self.disorder, two_looks=self.two_looks)
        other.objects = self.objects.copy()
        other.shuffles, other.pages = self.shuffles, self.pages
        other._folders = {folder: names.copy() for folder, names in self._folders.items()}
        return other

    def looked_again(self, names: list[str], prefix: str, *, recursive: bool) -> list[str]:
        """The names of a listing in two pages. Changes between the pages show in the later page alone."""
        page = names[: (len(names) + 1) // 2]
        self.pages += 1
        return page + self.names(prefix, page[-1], recursive=recursive)

    def any_order(self, names: list[str]) -> list[str]:
        """The names in an order that a store without order may give."""
        self.shuffles += 1
        turn = self.disorder * self.shuffles
        begin = turn % len(names)
        turned = names[begin:] + names[:begin]
        if turn // len(names) % 2:
            turned.reverse()
        return turned

    def add(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        folder, _, name = path.rpartition("/")
        while (names := self._folders.get(folder)) is None:
            self._folders[folder] = {name}
            if not folder:
                return
            folder, _, name = folder.rpartition("/")
            name += "/"
        names.add(name)

    def remove(self, path: str) -> None:
        del self.objects[path]
        folder, _, name = path.rpartition("/")
        while True:
            names = self._folders[folder]
            names.remove(name)
            if names or not folder:
                return
            del self._folders[folder]
            folder, _, name = folder.rpartition("/")
            name += "/"

    def names(self, prefix: str, after: str = "", *, recursive: bool = False) -> list[str]:
        if recursive:
            below = [path[len(prefix) + 1 :] for path in self.objects if path.startswith(f"{prefix}/")]
            return sorted(name for name in below if name > after)
        found = self._folders.get(prefix)
        if found is None:
            return []
        return sorted(name for name in found if name > after) if after else sorted(found)


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
        if path in self._objects:
            raise ObjectExists(f"{path} exists already")
        self._space.add(path, data)
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
        names = self._space.names(prefix, after, recursive=recursive)
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
                self._space.remove(path)
            self._point("after delete", path)

    def segment(self, path: str) -> SegmentStream:
        return _Stream(self, path)


class _Stream(SegmentStream):
    def __init__(self, store: SimulatedStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = b""

    def write(self, data: bytes | memoryview) -> int:
        self._data += data
        return len(data)

    def commit(self) -> None:
        self._store.put(self._path, self._data, "before segment", "after segment")

    def abort(self) -> None:
        """Do nothing, since nothing was visible."""


def failure_of(what: str, where: str) -> Exception:
    """The error at a point: the store's or the target's."""
    text = f"simulated failure {what} {where}"
    at_target = what.endswith(("sink", "lookup", "last", "begin", "hold", "prepare", "abort"))
    return ConnectionError(text) if at_target else StoreError(text)

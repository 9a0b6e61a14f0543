"""The interface of a durable store, and nothing more.

A store holds whole, immutable objects under `/`-separated paths relative to its root. All methods may be called from
several threads of one process, on the driver and on executors. A store is never pickled: each executor opens its own
from a `StoreSpec`.

The rules about paths stand here too, which all stores share, and the segment of stores that take only whole objects.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol, Self, runtime_checkable

from wal_sink.errors import StoreError
from wal_sink.stores.spec import StoreSpec

HIDDEN = "."
"""Prefix of a store's temporary objects. No listing shows them, and no object may have such a name."""
_FOLDER_END = chr(ord("/") + 1)


def check_path(path: str) -> str:
    """Return `path` if every store can hold an object under it; otherwise raise `StoreError` before any request."""
    parts = path.split("/")
    if "" in parts or any(part.startswith(HIDDEN) for part in parts) or "\0" in path or "?" in path:
        raise StoreError(
            f"{path!r} is not a path of an object: expected names joined by '/', none empty or beginning with '.', and "
            "no '?'"
        )
    return path


def folder_of(prefix: str) -> str:
    """The prefix of every key in the folder: empty for the root, otherwise ending in one `/`."""
    bare = prefix.strip("/")
    return f"{bare}/" if bare else ""


def is_hidden(name: str) -> bool:
    """Return whether any part of a relative path is a temporary name."""
    return name.startswith(HIDDEN) or f"/{HIDDEN}" in name


def shown(name: str, *, recursive: bool) -> str:
    """The name under which a listing shows the object with this relative path."""
    head, slash, _ = name.partition("/")
    return name if recursive else head + slash


def names_in(keys: Sequence[str], prefix: str, *, after: str, recursive: bool) -> Iterator[str]:
    """The names that `Store.list` shows of `keys`, which must be sorted. A folder costs one step, whatever its size."""
    folder = folder_of(prefix)
    at = bisect_left(keys, folder)
    while at < len(keys) and keys[at].startswith(folder):
        name = shown(keys[at].removeprefix(folder), recursive=recursive)
        if name > after:
            yield name
        end = name.removesuffix("/") + _FOLDER_END
        at = bisect_left(keys, folder + end, lo=at) if name.endswith("/") else at + 1


Entries = Callable[[str], Iterable[tuple[str, bool]]]
"""A function that tells the names in a folder, and whether each is that of a folder."""


def names_below(entries: Entries, folder: str, after: str, *, recursive: bool, head: str = "") -> Iterator[str]:
    """The names that `Store.list` shows of a folder, in any order. A folder without objects is not shown."""
    for name, is_folder in entries(folder):
        below, path = f"{folder}/{name}", head + name
        if not is_folder:
            yield from [path] if path > after else []
        elif recursive:
            yield from names_below(entries, below, after, recursive=True, head=f"{path}/")
        elif f"{path}/" > after and holds_object(entries, below):
            yield f"{path}/"


def holds_object(entries: Entries, folder: str) -> bool:
    """Whether anything but folders lies in or below a folder."""
    found = sorted(entries(folder), key=lambda entry: entry[1])
    return any(not is_folder or holds_object(entries, f"{folder}/{name}") for name, is_folder in found)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bucket about its life-cycle rules."""

    found: Mapping[str, Any]
    """The rules as S3 writes them; empty if there was a refusal."""
    refused: str = ""
    """S3's code for the refusal, such as `AccessDenied`; empty if there was none."""
    text: str = ""
    """The refusal in words, without secrets."""


@runtime_checkable
class InBucket(Protocol):
    """A store in a bucket of S3, which has rules for all its objects."""

    @property
    def prefix(self) -> str:
        """The beginning of the key of each object; empty or ending in `/`."""
        ...

    def life_cycle(self) -> Answer:
        """The life-cycle rules of the bucket. One request; never raises `StoreError`."""
        ...


class ObjectExists(StoreError):
    """`create` found an object under that path. If an earlier answer was lost, the object may be the caller's own."""


class ObjectMissing(StoreError):
    """No object exists under that path."""


class SegmentStream(ABC):
    """A new object, written piece by piece. It becomes visible as a whole or not at all.

    It is not visible before `commit` returned. After the `with` block ends without `commit`, by an exception or not,
    neither `Store.read` nor `Store.list` shows anything of it.
    """

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Append all of the bytes. Raises `StoreError` if a part is not taken; then nothing can be committed."""

    @abstractmethod
    def commit(self) -> None:
        """Make the object durable and visible under its path. Raises `StoreError`."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the written bytes. Harmless after `commit` and when repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Store(ABC):
    """Durable objects under one root. Every failure is a `StoreError`. A lost answer may show as any of them."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The root as a URL without credentials, for messages."""

    @property
    def spec(self) -> StoreSpec | None:
        """The address and the options with which it was opened, secrets included; None if it has none."""
        return None

    @property
    def create_doubt(self) -> str:
        """Reason why several processes cannot share the store; empty if they can. A test with requests shows neither a
        race nor a cache.

        Either create-if-absent is not atomic, or an object that another machine creates may become visible too late.
        """
        return ""

    def begin(self, *, is_there: bool = False) -> None:  # noqa: ARG002 - most stores cannot be replaced
        """Mark that a run or a task begins to use the store: from now on, no other store may take its place under this
        address.

        A lost mount leaves an empty folder, in which a newer process cannot be seen. `is_there`: True if the run has
        already used the store, so it must exist. Raises `StoreError`.
        """
        return

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Create a small object, atomically and durably, if the path is free; otherwise raise `ObjectExists`.

        After it returns, the object survives a crash of the machine. If several processes race for the path, exactly
        one call returns. Missing parent folders are created.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole object, as its creator wrote it and never from a cache. Raises `ObjectMissing` if it does not
        exist.
        """

    @abstractmethod
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        """Names in the folder `prefix` (`""` is the root), sorted, only those greater than `after`; never from a cache.

        Each name is relative to `prefix`. Without `recursive`, a folder appears as one name that ends in `/`. With
        `recursive`, every object below appears with its path. A folder that does not exist is empty. `after` is
        compared with the name as it appears. A folder may appear for some minutes after its last object was deleted
        (measured with SeaweedFS: 150 s), so a folder alone proves nothing.
        """

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. A path without an object is no error. Folders left empty may be removed too."""

    @abstractmethod
    def segment(self, path: str) -> SegmentStream:
        """Start a new object under a path that is never used again."""

    def url_of(self, path: str) -> str:
        """The full address of an object, without credentials, for messages."""
        return f"{self.root.rstrip('/')}/{path}"


class StoreAt(Store):
    """A store that was opened at an address."""

    def __init__(self, spec: StoreSpec) -> None:
        self._spec = spec
        self._root = spec.safe_url

    @property
    def spec(self) -> StoreSpec:
        return self._spec

    @property
    def root(self) -> str:
        return self._root


class SpooledSegment(SegmentStream):
    """A segment on local disk. `commit` sends it with `put`, which creates the object; nothing is sent earlier."""

    def __init__(self, url: str, put: Callable[[bytes], None]) -> None:
        self._url = url
        self._put = put
        self._spool: IO[bytes] | None = _new_spool(url)

    def write(self, data: bytes | memoryview) -> None:
        spool, rest = self._opened(), memoryview(data).cast("B")
        try:
            while rest:  # a disk that is nearly full takes a part of the bytes, and the error comes with the next
                rest = rest[spool.write(rest) :]
        except OSError as error:
            self.abort()
            raise _failure(self._url, error) from error

    def commit(self) -> None:
        spool = self._opened()
        try:
            spool.seek(0)
            data = spool.read()
        except OSError as error:
            raise _failure(self._url, error) from error
        try:
            self._put(data)
        finally:
            self.abort()

    def abort(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def _opened(self) -> IO[bytes]:
        if self._spool is None:
            raise StoreError(f"{self._url} was committed or dropped already; start a new segment")
        return self._spool


def _new_spool(url: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(prefix="wal-sink-", buffering=0)
    except OSError as error:
        raise _failure(url, error) from error


def _failure(url: str, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {url} to a local temporary file: {error.strerror or error}; free space, or set TMPDIR to "
        "another disk"
    )

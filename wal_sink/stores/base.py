"""The interface of a durable store, and nothing more.

A store holds whole, immutable objects under `/`-separated paths relative to its root. All methods may be called from
several threads of one process, on the driver and on executors. A store is never pickled: each executor opens its own
from a `StoreSpec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from wal_sink.errors import StoreError
from wal_sink.stores.spec import StoreSpec


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

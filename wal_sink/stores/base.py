"""What a durable store must offer, and nothing more.

A store holds whole, immutable objects under `/`-separated paths relative to its root. All methods may be called from
several threads of one process, on the driver and on executors. A store is never pickled: executors open their own from
a `StoreSpec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from wal_sink.errors import StoreError


class ObjectExists(StoreError):
    """`create` found an object under that path. After a lost answer it may be the caller's own."""


class ObjectMissing(StoreError):
    """No object lies under that path."""


class SegmentStream(ABC):
    """A new object, written piece by piece, visible whole or not at all.

    Not visible before `commit` returned. Leaving the `with` block without `commit`, by an exception or not, leaves
    nothing behind that `Store.read` or `Store.list` would show.
    """

    @abstractmethod
    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; returns how many."""

    @abstractmethod
    def commit(self) -> None:
        """Make the object durable and visible under its path. Raises `StoreError`."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written. Harmless after `commit` and when repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Store(ABC):
    """Durable objects under one root. Any failure is a `StoreError`; a lost answer may look like any of them."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The root as a URL without credentials, for messages."""

    @property
    def create_doubt(self) -> str:
        """Why several processes cannot share it; empty if they can. Tries show neither a race nor a cache.

        Either create-if-absent is not atomic, or an object that another machine creates may be seen too late.
        """
        return ""

    def begin(self, *, is_there: bool = False) -> None:  # noqa: ARG002 - where nothing can be swapped
        """A run or a task begins to use it: from now on it may not be swapped for another one under the same address.

        A mount that is lost leaves an empty folder, in which a newer process could not be seen. `is_there`: whether the
        run has used it already, so that it must be there. Raises `StoreError`.
        """
        return

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Create a small object, atomically and durably, if the path is free; else `ObjectExists`.

        When it returns, the object survives a crash of the machine, and of all who raced for the path exactly one
        returned. Missing parent folders are made.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole object, as written by its creator and never from a cache; `ObjectMissing` if there is none."""

    @abstractmethod
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        """Names in the folder `prefix` (`""` is the root), sorted, those greater than `after` only; never from a cache.

        Each name is relative to `prefix`. Without `recursive`, a folder shows as one name that ends in `/`; with it,
        every object below shows by its path. A folder that does not exist is empty. `after` is compared with the name
        as shown.
        """

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; a path that is already free is no error. Folders left empty may go too."""

    @abstractmethod
    def segment(self, path: str) -> SegmentStream:
        """Start a new object under a path that nobody else will ever use."""

    def url_of(self, path: str) -> str:
        """The full address of an object, without credentials, for messages."""
        return f"{self.root.rstrip('/')}/{path}"

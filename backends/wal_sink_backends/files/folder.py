"""The folder that files are written to: its address, the options to reach it, and its store while a sink is open.

`FileHolder` is the interface between `TwoPhaseFilesSink` and a store: held files, which get their names at once or
never.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from wal_sink.errors import ConfigError, HandleGoneError, PermanentError
from wal_sink.stores.local import LocalStore
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.options import from_environment, refuse_braces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal_sink.sinks.base import SinkContext
    from wal_sink.stores.base import Store

_NOBODY_WRITES = "wal-sink-examination"
"""A folder without objects: its listing shows whether listing is possible, and is short."""
_in_use: dict[tuple[StoreSpec, str, int], LocalStore] = {}
"""Local folders by WAL and term. Each attempt opens its sink anew, and has to know the disk with which the run began:
else the disk below a lost mount would be taken for the target. A new start has a new term, and takes the folder as it
is.
"""


class Folder:
    """Plain data that travels with a sink. Closing it forgets the values from the environment."""

    def __init__(
        self, url: str, storage_options: Mapping[str, object] | None, options_from_env: Mapping[str, str] | None
    ) -> None:
        refuse_braces("url", url)
        self.spec = StoreSpec(url, dict(storage_options or {}))
        self._options_from_env = dict(options_from_env or {})
        self._opened: tuple[StoreSpec, str, int] | None = None

    def open(self, sink: str, context: SinkContext) -> Store:
        """Read the environment and open the store; `sink` is for messages.

        `PermanentError` if either lacks something.
        """
        options = from_environment(self._options_from_env, sink)
        spec = StoreSpec(self.spec.url, {**self.spec.options, **options})
        self._opened = (spec, context.wal_id, context.term)
        return self.store(sink)

    def store(self, sink: str) -> Store:
        """The store, once this is open. Raises `StoreError` for a local folder that was lost since."""
        if self._opened is None:
            raise RuntimeError(f"{sink} is not open: call open() first")
        try:
            store = open_store(self._opened[0])
        except ConfigError as error:
            raise PermanentError(str(error)) from error
        return _local(self._opened) if isinstance(store, LocalStore) else store

    def examine(self, sink: str) -> Finding:
        """Whether the folder can be reached; one listing. Raises what `open` raises."""
        options = from_environment(self._options_from_env, sink)
        try:
            store = open_store(StoreSpec(self.spec.url, {**self.spec.options, **options}))
        except ConfigError as error:
            raise PermanentError(str(error)) from error
        store.list(_NOBODY_WRITES)
        if isinstance(store, LocalStore):
            _refuse_unwritable(Path(self.spec.location), sink)
        return fine("target", f"{store.root} can be reached")

    def close(self) -> None:
        self._opened = None


def _refuse_unwritable(folder: Path, sink: str) -> None:
    """Refuse a local folder in which this user cannot write, or which cannot be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PermanentError(
            f"{sink}: this user cannot write in {there}. Give this user the right, or use another folder"
        )


def _local(key: tuple[StoreSpec, str, int]) -> LocalStore:
    """The run's own store of a folder: it remembers the disk that the folder lay on when the run first opened it."""
    store = _in_use.get(key)
    if store is None:
        begun = LocalStore(key[0])
        begun.begin()
        store = _in_use.setdefault(key, begun)  # another thread may have been faster: all use the disk that it saw
    return store


_Handle = TypeVar("_Handle", bound=msgspec.Struct)


class HeldFile(Protocol):
    """An invisible file that this process is writing. Every method raises `StoreError`."""

    @property
    def token(self) -> str:
        """Finds the file after a crash, together with the transaction's id: an argument of `FileHolder.drop`."""
        ...

    def write(self, data: bytes) -> object:
        """Append bytes."""
        ...

    def prepare(self) -> str:
        """End the writing: durable, and still invisible. Returns the handle for `FileHolder.commit`."""
        ...

    def close(self) -> None:
        """Free what this process holds of it; the file stays as it is. Harmless when repeated."""
        ...


class FileHolder(Protocol):
    """Holds files until they are committed or dropped. Any number of processes may use one at the same time."""

    def hold(self, transaction_id: str, name: str) -> HeldFile:
        """Begin a file that is to be called `name`, a path in the folder. Raises `StoreError`."""
        ...

    def commit(self, transaction_id: str, handle: str) -> None:
        """Give a prepared file its name, at once; nothing happens if this transaction's file has it already.

        Raises `PermanentError` if another file has the name, `HandleGoneError` if the file is neither held nor there,
        `StoreError` for anything that may pass.
        """
        ...

    def drop(self, transaction_id: str, token: str) -> None:
        """Free what is held; nothing happens if nothing is held. A committed file stays. Raises `StoreError`."""
        ...


def handle_text(handle: msgspec.Struct) -> str:
    """A handle as text for the WAL."""
    return msgspec.json.encode(handle).decode()


def handle_of(kind: type[_Handle], text: str) -> _Handle:
    """The handle behind a text. Raises `HandleGoneError` for the handle of another kind of store."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise HandleGoneError(
            f"the handle {text[:80]!r} does not belong to this store ({error}). The folder of the sink may have been "
            "moved to another kind of store after the rows were prepared. If so, move it back"
        ) from error

"""The interface between `TwoPhaseFilesSink` and a store: held files, which get their names at once or never."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from wal_sink.errors import HandleGoneError

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

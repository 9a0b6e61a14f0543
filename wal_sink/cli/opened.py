"""Opening a WAL that must exist."""

from __future__ import annotations

from wal_sink.errors import WalSinkError
from wal_sink.inspection import Status, read_status
from wal_sink.stores.base import Store


class NoWal(WalSinkError):
    """There is no WAL at this address. Remedy: correct the address, or wait for the first batch."""


def require_wal(store: Store) -> Status:
    """The status of a WAL that has its `wal.json`. Raises `NoWal` if it has none."""
    status = read_status(store)
    if status.wal_id is None:
        raise NoWal(no_wal(status))
    return status


def no_wal(status: Status) -> str:
    """The message about a missing `wal.json`, with its possible reasons."""
    if status.sinks:
        return f"{status.wal} holds no wal.json yet: the sinks are registered, but no batch was staged so far"
    return f"{status.wal} holds no wal.json: this folder is not a WAL, or no batch was staged so far. Check the address"

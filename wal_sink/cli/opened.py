"""Opening a WAL that must exist."""

from __future__ import annotations

from wal_sink.cli.working import working
from wal_sink.errors import WalSinkError
from wal_sink.inspection import Status, read_status
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec


class NoWal(WalSinkError):
    """There is no WAL at this address. Remedy: correct the address, or wait for the first batch."""


def opened(spec: StoreSpec) -> Store:
    """The store of a WAL. Raises `ConfigError` and `StoreError`."""
    with working(f"opening {spec.safe_url}"):
        return open_store(spec)


def status_of(store: Store) -> Status:
    """The status of a WAL, which may not exist. A few requests for each sink."""
    with working(f"reading the state of {store.root}"):
        return read_status(store)


def require_wal(store: Store) -> Status:
    """The status of a WAL that has its `wal.json`. Raises `NoWal` if it has none."""
    status = status_of(store)
    if status.wal_id is None:
        raise NoWal(no_wal(status))
    return status


def no_wal(status: Status) -> str:
    """The message about a missing `wal.json`, with its possible reasons."""
    if status.sinks:
        return f"{status.wal} holds no wal.json yet: the sinks are registered, but no batch was staged so far"
    return f"{status.wal} holds no wal.json: this folder is not a WAL, or no batch was staged so far. Check the address"

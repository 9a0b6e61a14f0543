"""Opening a WAL that must exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.operate.look import WalFacts
from wal_sink.operate.status import SparkCommit, Status, read_commit, read_status, status_of
from wal_sink.recovery.location import is_plain
from wal_sink.redaction import mask_url, redacted
from wal_sink.spark.session.checkpoint_files import checkpoint_files
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.records import WalRecord


class NoWal(WalSinkError):
    """There is no WAL at this address. Remedy: correct the address, or wait for the first batch."""


def opened(spec: StoreSpec) -> Store:
    """The store of a WAL. Raises `ConfigError` and `StoreError`."""
    with working(f"opening {spec.safe_url}"):
        return open_store(spec)


def read_state(store: Store) -> Status:
    """The status of a WAL, which may not exist. A few requests for each sink."""
    with working(f"reading the state of {store.root}"):
        return read_status(store)


def require_wal(store: Store) -> Status:
    """The status of a WAL that has its `wal.json`. Raises `NoWal` if it has none."""
    return status_of(require_facts(store))


def require_facts(store: Store) -> WalFacts:
    """The facts of a WAL that has its `wal.json`, with its status. Raises `NoWal` if it has none."""
    facts = WalFacts(store)
    with working(f"reading the state of {store.root}"):
        status = status_of(facts)
    if facts.wal is None:
        raise NoWal(no_wal(status))
    return facts


def commit_of(wal: WalRecord, spec: StoreSpec, more: dict[str, Any]) -> SparkCommit:
    """Spark's newest commit, by the checkpoint that was given, else by the one that the WAL records. Never fails."""
    try:
        return read_commit(checkpoint_of(wal.checkpoint, spec, more), wal.query_id)
    except WalSinkError as error:
        return SparkCommit(None, redacted(error))


def checkpoint_of(recorded: str | None, spec: StoreSpec, more: dict[str, Any]) -> CheckpointFiles:
    """The files of the checkpoint at the address that `checkpoint_url` finds. Raises `ConfigError`."""
    url = checkpoint_url(recorded, more)
    with working(f"opening the checkpoint {mask_url(url)}"):
        return checkpoint_files(url, more["checkpoint_options"], spec, None)


def checkpoint_url(recorded: str | None, more: Mapping[str, Any]) -> str:
    """The checkpoint that was given, else the one that the WAL records. Raises `ConfigError` if there is none to open.

    The record of a WAL must not choose which code runs: fsspec has schemes that fetch other addresses and fill in
    templates. So only a plain kind of address is opened if nobody passed it.
    """
    url = more["checkpoint"] or recorded
    if url is None:
        raise ConfigError("the WAL records no checkpoint. Give --checkpoint")
    if more["checkpoint"] is None and not is_plain(url):
        raise ConfigError(
            f"the WAL records the checkpoint {mask_url(url)}. Pass this kind of address yourself with --checkpoint"
        )
    return str(url)


def no_wal(status: Status) -> str:
    """The message about a missing `wal.json`, with its possible reasons."""
    if status.sinks:
        return f"{status.wal} holds no wal.json yet: the sinks are registered, but no batch was staged so far"
    return f"{status.wal} holds no wal.json: this folder is not a WAL, or no batch was staged so far. Check the address"

"""Opening what the options of a command name: a WAL, its checkpoint, and a target."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from wal_sink.cli.sources import checkpoint_options
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.log.log import Log
from wal_sink.log.records import WalRecord
from wal_sink.operate.look import WalFacts
from wal_sink.operate.status import SparkCommit, Status, read_commit, status_of
from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.protocol.inventory import find_wal
from wal_sink.protocol.location import is_plain
from wal_sink.sinks.base import BatchSink, Sink, as_sink
from wal_sink.sinks.urls import sink_from_url
from wal_sink.spark.checkpoint_files import checkpoint_files
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import mask_url, redacted
from wal_sink.support.texts import told


class NoWal(WalSinkError):
    """There is no WAL at this address. Remedy: correct the address, or wait for the first batch."""


class Wal:
    """The WAL that a command names. Its store is opened when it is first needed."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.spec = StoreSpec(url, storage_options or {})

    @cached_property
    def store(self) -> Store:
        """The store of the WAL. Raises `ConfigError` and `StoreError`."""
        with working(f"opening {self.spec.safe_url}"):
            return open_store(self.spec)

    @cached_property
    def facts(self) -> WalFacts:
        """The facts of the WAL, which may not exist. Each is read when it is first needed."""
        return WalFacts(self.store)

    def record(self) -> WalRecord | None:
        """Its `wal.json`; None if it has none. This is the first look at a WAL."""
        with working(f"reading the state of {self.store.root}"):
            return self.facts.wal

    def status(self) -> Status:
        """The status of the WAL, which may not exist. A few requests for each sink."""
        with working(f"reading the state of {self.store.root}"):
            return status_of(self.facts)

    def require(self) -> Status:
        """The status of a WAL that has its `wal.json`. Raises `NoWal` if it has none."""
        status = self.status()
        if self.facts.wal is None:
            raise NoWal(no_wal(status))
        return status

    def require_record(self) -> WalRecord:
        """Its `wal.json`. Raises `NoWal` if it has none."""
        record = self.record()
        if record is None:
            raise NoWal(no_wal(self.status()))
        return record

    @cached_property
    def log(self) -> Log:
        """The log of the WAL, which may not exist."""
        return Log(self.store, SYSTEM, SYSTEM.new_id())

    def require_log(self) -> Log:
        """The log of a WAL that has its `wal.json`. Unlike `require`, opens one that has lost batches: it is repaired.

        One read.
        """
        with working(f"reading {self.store.root}"):
            if find_wal(self.log) is None:
                root = self.store.root
                raise NoWal(f"{root} holds no wal.json: this folder is not a WAL, or no batch was staged so far")
        return self.log

    def commit(self, record: WalRecord, checkpoint: str | None) -> SparkCommit:
        """Spark's newest commit, by the checkpoint that was given, else by the one that the WAL records.

        This comes before the read of batches: what Spark completed must be in the WAL that is read after it. Raises
        `ConfigError` for options of the checkpoint's store that cannot be read; nothing else fails.
        """
        checkpoint_options()  # before the `try`: a mistake of the caller is no "unknown" commit
        try:
            return read_commit(self.checkpoint(record.checkpoint, checkpoint), record.query_id)
        except WalSinkError as error:
            return SparkCommit(None, redacted(error))

    def checkpoint(self, recorded: str | None, given: str | None) -> CheckpointFiles:
        """The files of the checkpoint at the address that `checkpoint_url` finds. Raises `ConfigError`."""
        url = checkpoint_url(recorded, given)
        with working(f"opening the checkpoint {mask_url(url)}"):
            return checkpoint_files(url, checkpoint_options(), self.spec, None)


def no_wal(status: Status) -> str:
    """The message about a missing `wal.json`, with its possible reasons."""
    if status.sinks:
        return f"{status.wal} holds no wal.json yet: the sinks are registered, but no batch was staged so far"
    return f"{status.wal} holds no wal.json: this folder is not a WAL, or no batch was staged so far. Check the address"


def checkpoint_url(recorded: str | None, given: str | None) -> str:
    """The checkpoint that was given, else the one that the WAL records. Raises `ConfigError` if there is none to open.

    The record of a WAL must not choose which code runs: fsspec has schemes that fetch other addresses and fill in
    templates. So only a plain kind of address is opened if nobody passed it.
    """
    url = given or recorded
    if url is None:
        raise ConfigError("the WAL records no checkpoint. Give --checkpoint")
    if given is None and not is_plain(url):
        raise ConfigError(
            f"the WAL records the checkpoint {mask_url(url)}. Pass this kind of address yourself with --checkpoint"
        )
    return url


def target(named: str) -> Sink | BatchSink:
    """The sink that `--to` names: the URL of a backend, or an object in a module of the user.

    Raises `ConfigError` with what was found instead.
    """
    if "://" in named or named.startswith("sqlite:"):
        return sink_from_url(named)
    module, colon, path = named.partition(":")
    if not colon or not module or not path:
        raise ConfigError(
            f"--to {mask_url(named)}: expected the URL of a backend, such as sqlite:///orders.db?table=orders, or "
            "package.module:object"
        )
    found = _module(module)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"--to {named}: {found!r} has no attribute {name!r}")
        found = getattr(found, name)
    return as_sink(found)


def _module(name: str) -> Any:
    """Import the module; the current directory is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except WalSinkError:
        raise
    except Exception as error:  # a user's module may raise any error while it is imported
        raise ConfigError(f"--to: module {name!r} cannot be imported: {told(error)}") from error

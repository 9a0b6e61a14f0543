"""The registrations of sinks, and the log through which everything here is read."""

from __future__ import annotations

from wal_sink.recovery.inventory import Lost, find_again
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord


def reading_log(store: Store) -> Log:
    """A log for reading only: it claims nothing, and its run id stands in no record."""
    return Log(store, SYSTEM, run_id="")


def find_registration(log: Log, name: str, younger: str | None) -> SinkRecord | None:
    """A sink's registration; None if there is none. Raises `ObjectLost` if `younger` exists, which is made after it."""
    record = log.find(SinkRecord, paths.sink(name))
    if record is None and younger is not None:
        return find_again(log, SinkRecord, paths.sink(name), Lost.SINK, younger)
    return record

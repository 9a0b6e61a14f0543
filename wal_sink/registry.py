"""Which sinks a WAL serves, and from which batch on."""

from __future__ import annotations

from wal_sink import paths
from wal_sink.checkpoint import Gate
from wal_sink.errors import ConfigError
from wal_sink.history import History
from wal_sink.log import Log
from wal_sink.records import SinkRecord
from wal_sink.settings import Delivery


def registered(log: Log) -> list[str]:
    """Names of the sinks the WAL knows. One listing."""
    return [name.removesuffix("/") for name in log.store.list(paths.SINKS) if name.endswith("/")]


def register(
    log: Log, history: History, gate: Gate, *, name: str, delivery: Delivery, sink_kind: str, identity: str
) -> SinkRecord:
    """The sink's registration, made now if the name is new. Raises `ConfigError` if it is not clear where it begins."""
    path = paths.sink(paths.check_sink_name(name))
    known = log.find(SinkRecord, path)
    if known is not None:
        return known
    record = SinkRecord(
        name=name,
        sink_kind=sink_kind,
        first_batch=_first_batch(log, history, gate, name, delivery),
        identity=identity,
        **log.stamp(),
    )
    if log.create(path, record):
        return record
    found = log.find(SinkRecord, path)
    if found is None:
        raise ConfigError(f"{log.store.url_of(path)} vanished while it was created; is somebody deleting the WAL?")
    return found


def _first_batch(log: Log, history: History, gate: Gate, name: str, delivery: Delivery) -> int:
    if not history.has_batches:
        return 0
    if delivery.start_from == "earliest":
        return log.low_water() + 1
    if delivery.start_from == "next":
        return gate.search() + 1
    known = ", ".join(repr(other) for other in registered(log)) or "none"
    raise ConfigError(
        f"sink {name!r} is new to {log.store.root}, which already holds batches up to {history.newest_known} "
        f"(sinks it knows: {known}). Say where it begins: Delivery(…, start_from='earliest') delivers everything "
        "the WAL still holds, start_from='next' only batches completed from now on. If the sink was renamed, use "
        "its old name"
    )

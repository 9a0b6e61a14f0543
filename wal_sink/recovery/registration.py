"""Which sinks a WAL serves, and from which batch on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.checkpoint.reader import Gate
from wal_sink.errors import ConfigError
from wal_sink.recovery.history import History
from wal_sink.recovery.inventory import Inventory, find_new_sink
from wal_sink.recovery.sink_names import read_names
from wal_sink.settings import Delivery
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord

_RECORDING = frozenset({Ability.ACCEPT.value, Ability.LOOK_UP.value})
"""Kinds that record what they were sent alike, so that one may follow the other under the same name."""
_MAY_FOLLOW_RECORDING = _RECORDING | {Ability.IGNORE_KNOWN_KEYS.value}
"""An idempotent sink may take a name over, and then keeps its records like them. None takes over from a name that began
idempotent: of several batches that have reached the target it may have recorded nothing.
"""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a run says of one of its sinks."""

    name: str
    delivery: Delivery
    ability: Ability
    at_most_once: bool
    identity: str
    """What the sink is, for people; never a secret."""


def registered(log: Log) -> list[str]:
    """Names of the sinks the WAL knows. One listing."""
    return [name.removesuffix("/") for name in log.store.list(paths.SINKS) if name.endswith("/")]


@dataclass(frozen=True, slots=True)
class Registered:
    """A sink's registration, as a run found or made it."""

    record: SinkRecord
    is_old: bool
    """Whether it was there already: then a committer may have claimed terms."""


def register(
    log: Log, history: History, gate: Gate, inventory: Inventory, sinks: Sequence[Registration]
) -> list[Registered]:
    """The sinks' registrations, made now where the name is new.

    Raises `ConfigError`, before any is made, if a sink is not what it was under its name or if it is not clear where it
    begins, and `ObjectLost` if the registration of one must have been there.
    """
    known = [_known(log, history, inventory, sink) for sink in sinks]
    planned = [record or _plan(log, history, gate, sink) for record, sink in zip(known, sinks, strict=True)]
    return [
        Registered(record or log.create_or_find(paths.sink(plan.name), plan)[0], is_old=record is not None)
        for record, plan in zip(known, planned, strict=True)
    ]


def _known(log: Log, history: History, inventory: Inventory, sink: Registration) -> SinkRecord | None:
    record = log.find(SinkRecord, paths.sink(paths.check_sink_name(sink.name)))
    if record is None:
        record = find_new_sink(log, inventory, sink.name, history.oldest_held)
    if record is not None:
        _refuse_other_kind(log, record, sink)
    return record


def _refuse_other_kind(log: Log, record: SinkRecord, sink: Registration) -> None:
    """Kinds keep their progress in different ways; what one wrote the other would misread."""
    kept, given = record.sink_kind, sink.ability.value
    may_follow = kept == given or (kept in _RECORDING and given in _MAY_FOLLOW_RECORDING)
    if record.at_most_once == sink.at_most_once and may_follow:
        return
    before = _kind_in_words(record.sink_kind, at_most_once=record.at_most_once)
    now = _kind_in_words(sink.ability.value, at_most_once=sink.at_most_once)
    raise ConfigError(
        f"sink {sink.name!r} of {log.store.root} is known as {before} ({record.identity}), but was given as {now} "
        f"({sink.identity}); the two keep their progress differently. Go on with the old one until it has everything, "
        f"then give the other a new name and Delivery(…, start_from='next'), and retire the old one, or nothing is "
        f"deleted any more: wal-sink sinks retire WAL {sink.name}"
    )


def _kind_in_words(kind: str, *, at_most_once: bool) -> str:
    return f"“{kind}{', at most once' if at_most_once else ''}”"


def _plan(log: Log, history: History, gate: Gate, sink: Registration) -> SinkRecord:
    return SinkRecord(
        name=sink.name,
        sink_kind=sink.ability.value,
        at_most_once=sink.at_most_once,
        first_batch=_first_batch(log, history, gate, sink.name, sink.delivery),
        identity=sink.identity,
        **log.stamp(),
    )


def _first_batch(log: Log, history: History, gate: Gate, name: str, delivery: Delivery) -> int:
    if not history.has_batches:
        return 0
    if delivery.start_from == "earliest":
        return log.low_water() + 1
    if delivery.start_from == "next":
        return gate.search() + 1
    known = read_names(log).present
    raise ConfigError(
        f"sink {name!r} is new to {log.store.root}, which already holds batches up to {history.newest_known} "
        f"(sinks it knows: {known}). Say where it begins: Delivery(…, start_from='earliest') delivers everything "
        "the WAL still holds, start_from='next' only batches completed from now on. If a sink was given this name "
        f"instead of another: wal-sink sinks rename WAL OLD {name}. If it replaces one that nobody serves any more, "
        "retire that one, or nothing it lacks is ever deleted: wal-sink sinks retire WAL OLD"
    )

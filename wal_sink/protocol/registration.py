"""Registering the sinks of a run: whether each is known to the WAL, and with which batch it begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import ConfigError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import SinkRecord
from wal_sink.protocol.checkpoint import Gate
from wal_sink.protocol.history import History
from wal_sink.protocol.inventory import Inventory, find_new_sink
from wal_sink.protocol.sinks import read_names
from wal_sink.settings import Delivery
from wal_sink.sinks.guarantees import Ability
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import redacted

_logger = logger_of(__name__)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
"""The texts that a description quotes."""
_RECORDING = frozenset({Ability.ACCEPT.value, Ability.LOOK_UP.value})
"""Kinds that keep progress in the same way, so that one may follow the other under the same name."""
_MAY_FOLLOW_RECORDING = _RECORDING | {Ability.IGNORE_KNOWN_KEYS.value}
"""Kinds that may follow these. An idempotent sink then keeps progress as they do. No other kind may follow an
idempotent sink, since several of its batches may have reached the target without any record.
"""


@dataclass(frozen=True, slots=True)
class Registration:
    """One sink of a run, as the run gives it."""

    name: str
    delivery: Delivery
    ability: Ability
    at_most_once: bool
    identity: str
    """A description of the sink for people, without secrets."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A sink's registration, as a run found or made it."""

    record: SinkRecord
    is_old: bool
    """Whether the run found the registration: then a committer may have claimed terms."""


def register(
    log: Log, history: History, gate: Gate, inventory: Inventory, sinks: Sequence[Registration]
) -> list[Registered]:
    """The sinks' registrations. Those of new names are made now.

    Before any is made, raises `ConfigError` if a name had another kind of sink, or if it is open where a new sink
    begins, and `CorruptError` if a registration was lost.
    """
    known = [(sink, _known(log, history, inventory, sink)) for sink in sinks]
    planned = [(sink, found, found or _plan(log, history, gate, sink, sinks)) for sink, found in known]
    return [
        Registered(found, is_old=True) if found is not None else _registered(log, sink, plan)
        for sink, found, plan in planned
    ]


def _registered(log: Log, sink: Registration, plan: SinkRecord) -> Registered:
    """Register a new sink. If another process was faster, its registration counts, and this sink must fit it."""
    record, is_own = log.create_or_find(paths.sink(plan.name), plan)
    if not is_own:
        _refuse_unfit(log, record, sink)
    return Registered(record, is_old=not is_own)


def _known(log: Log, history: History, inventory: Inventory, sink: Registration) -> SinkRecord | None:
    record = log.find(SinkRecord, paths.sink(paths.check_sink_name(sink.name)))
    if record is None:
        record = find_new_sink(log, inventory, sink.name, history.oldest_held)
    if record is not None:
        _refuse_unfit(log, record, sink)
    return record


def _refuse_unfit(log: Log, record: SinkRecord, sink: Registration) -> None:
    _refuse_holder(log, record)
    _refuse_other_kind(log, record, sink)
    _refuse_other_range(log, record, sink)
    _refuse_other_rolls(log, record, sink)
    if said := described_elsewhere(record, sink.identity, sink.delivery.to):
        said = f"sink {sink.name!r} of {log.store.root} {said}. For another table or topic, give the sink a new name"
        if getattr(sink.delivery.to, "target_name", None) and not sink.delivery.same_target:
            raise ConfigError(f"{said}. If the table or topic was renamed, pass same_target=True (--yes)")
        _logger.warning("%s", said)


def described_elsewhere(record: SinkRecord, identity: str, to: object) -> str:
    """A text if a transactional sink may have been registered for another table or topic. Two of them may share a
    ledger, which knows the sink's positions and no tables. Empty if the description or the name in it is the same.
    """
    known, now, name = record.identity, redacted(identity), repr(getattr(to, "target_name", None) or None)
    if record.sink_kind != Ability.TRANSACTIONAL.value or known == now:
        return ""
    before, after = _QUOTED.findall(known), _QUOTED.findall(now)
    place = after.index(name) if name in after else len(after)  # a key may have the name of another table
    if before[place : place + 1] == [name]:
        return ""
    return f"was registered for {known}, which has its earlier rows, but its target is now {now}"


def _refuse_holder(log: Log, record: SinkRecord) -> None:
    """Refuse the sink of a catch-up: it only keeps batches from being deleted."""
    if record.is_holder:
        raise ConfigError(
            f"sink {record.name!r} of {log.store.root} belongs to a catch-up ({record.identity}), and no query or "
            "drain can serve it. For a sink of this run choose another name"
        )


def _refuse_other_kind(log: Log, record: SinkRecord, sink: Registration) -> None:
    """Refuse another kind of sink: kinds keep progress in different ways, and would misread each other's records."""
    kept, given = record.sink_kind, sink.ability.value
    may_follow = kept == given or (kept in _RECORDING and given in _MAY_FOLLOW_RECORDING)
    if record.at_most_once == sink.at_most_once and may_follow:
        return
    before = _kind_in_words(kept, at_most_once=record.at_most_once)
    now = _kind_in_words(given, at_most_once=sink.at_most_once)
    raise ConfigError(
        f"sink {sink.name!r} of {log.store.root} is known as {before} ({record.identity}), but was given as {now} "
        f"({sink.identity}). The two kinds of sink keep their progress differently. Run the old sink until it has "
        "every batch. Then give the new sink another name and Delivery(…, start_from='next'). Retire the old sink; "
        f"otherwise the WAL deletes no batch any more: wal-sink sinks retire WAL {sink.name}"
    )


def _kind_in_words(kind: str, *, at_most_once: bool) -> str:
    return f"“{kind}{', at most once' if at_most_once else ''}”"


def _refuse_other_range(log: Log, record: SinkRecord, sink: Registration) -> None:
    """Refuse the number of another first or last batch than that of the registration."""
    start_from = sink.delivery.start_from
    if isinstance(start_from, int) and start_from != record.first_batch:
        raise ConfigError(
            f"start_from={start_from}: sink {sink.name!r} of {log.store.root} was registered to begin with batch "
            f"{record.first_batch}. Leave out start_from, or give the sink a new name"
        )
    if sink.delivery.through not in {None, record.through}:
        found = (
            "was registered without a last batch"
            if record.through is None
            else f"was registered to end with batch {record.through}"
        )
        raise ConfigError(
            f"through={sink.delivery.through}: sink {sink.name!r} of {log.store.root} {found}. Leave out through, "
            "or give the sink a new name"
        )


def _refuse_other_rolls(log: Log, record: SinkRecord, sink: Registration) -> None:
    """Refuse rolls for a sink without, and none for a sink with them: a process would ignore what another decided."""
    if record.is_rolled != (sink.delivery.roll_s is not None):
        was, now = (
            ("with", "Pass roll_s (--roll-s)") if record.is_rolled else ("without", "Leave out roll_s (--roll-s)")
        )
        raise ConfigError(
            f"sink {sink.name!r} of {log.store.root} was registered {was} rolls of batches. {now}. To change it, "
            "retire the sink once it has every batch, and give it a new name with start_from='next'"
        )


def _plan(log: Log, history: History, gate: Gate, sink: Registration, sinks: Sequence[Registration]) -> SinkRecord:
    if sink.delivery.through is not None and sink.ability is Ability.TWO_PHASE:
        raise ConfigError(
            f"through={sink.delivery.through}: sink {sink.name!r} is a two-phase sink: its transactions may still "
            "be open after its last batch. Leave out through. Once the sink has that batch, retire it: wal-sink "
            f"sinks retire WAL {sink.name}"
        )
    first = _first_batch(log, history, gate, sink, sinks)
    if sink.delivery.through is not None and not history.has_batches:
        raise ConfigError(
            f"through={sink.delivery.through}: {log.store.root} holds no batch yet, so its first batch is not "
            f"known. Start sink {sink.name!r} after the first batch was staged"
        )
    if sink.delivery.through is not None and sink.delivery.through < first:
        raise ConfigError(
            f"through={sink.delivery.through}: sink {sink.name!r} of {log.store.root} would begin with batch {first}, "
            "and get none. Pass a later batch, or an earlier start_from"
        )
    return SinkRecord(
        name=sink.name,
        sink_kind=sink.ability.value,
        at_most_once=sink.at_most_once,
        first_batch=first,
        identity=redacted(sink.identity),
        is_exact=isinstance(sink.delivery.start_from, int),
        through=sink.delivery.through,
        is_rolled=sink.delivery.roll_s is not None,
        **log.stamp(),
    )


def _first_batch(log: Log, history: History, gate: Gate, sink: Registration, sinks: Sequence[Registration]) -> int:
    start_from, name = sink.delivery.start_from, sink.name
    if isinstance(start_from, int):
        _refuse_gone(log, history, name, start_from)
        if said := _same_target(log, sink, sinks):
            raise ConfigError(f"{said}. If that is right, pass same_target=True (--yes)")
        return start_from
    if not history.has_batches:
        return 0
    if start_from == "earliest":
        if said := _same_target(log, sink, sinks):  # no error: two objects of one class may look alike
            _logger.warning("%s", said)
        oldest, first = log.low_water() + 1, history.first_batch
        if oldest > first:
            text = "sink %s of %s begins with batch %d: batches %d to %d were delivered to other sinks and deleted here"
            _logger.warning(text, name, log.store.root, oldest, first, oldest - 1)
        return oldest
    if start_from == "next":
        return gate.search() + 1
    known = read_names(log).present
    raise ConfigError(
        f"sink {name!r} is new to {log.store.root}, but this WAL already holds batches up to {history.newest_known} "
        f"(known sinks: {known}). Set where the sink begins: Delivery(…, start_from='earliest') delivers all batches "
        "that the WAL still holds; start_from='next' delivers only batches that Spark completes from now on. If this "
        f"is a known sink under a new name, rename it: wal-sink sinks rename WAL OLD {name}. If this sink replaces a "
        "sink that no process serves any more, retire the old sink; otherwise the WAL never deletes the batches that "
        "the old sink does not have: wal-sink sinks retire WAL OLD"
    )


def _refuse_gone(log: Log, history: History, name: str, first: int) -> None:
    """Refuse a first batch that the WAL may have deleted, or that it does not hold yet. One listing."""
    oldest = max(log.low_water() + 1, history.first_batch)
    if not oldest <= first <= history.newest_known + 1:
        held = f"holds batches {oldest} to {history.newest_known}" if history.has_batches else "holds no batch yet"
        raise ConfigError(
            f"start_from={first}: sink {name!r} of {log.store.root} cannot begin with batch {first}. The WAL "
            f"{held}; earlier batches may be deleted. Begin with one of these batches or with the next one. Rows of "
            "a deleted batch are only in the targets that have it"
        )


def _same_target(log: Log, sink: Registration, sinks: Sequence[Registration]) -> str:
    """A text that names another sink with this target: retired, known or new in this run. Empty if there is none, or
    if the user accepts it. A read for each known sink, which tells its target at its registration.
    """
    if sink.delivery.same_target:
        return ""
    identity = redacted(sink.identity)
    others = [(other.name, redacted(other.identity)) for other in sinks if other is not sink]
    for known in read_names(log).sinks:
        record = log.find(SinkRecord, paths.sink(known.folder))
        others += [(known.name, record.identity)] if record is not None else []
    for name, target in others:
        if target == identity:
            return (
                f"start_from={sink.delivery.start_from}: sink {name!r} of {log.store.root} has the same target, "
                f"{identity}. A batch that both deliver is there twice, unless the target ignores keys that it knows"
            )
    return ""

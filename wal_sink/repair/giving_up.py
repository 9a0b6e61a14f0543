"""Giving up a repair: it will not be completed, and nothing of it holds the WAL or a target back.

The changes that the repair made so far stay. Only a replay and a catch-up leave something that must end: the sink that
keeps batches from being deleted, and the transactions that a two-phase target holds for it. The sink is retired first,
and the end is written down last. So the same command completes a give-up that was interrupted.

A live query and a drain beside it: only a sink that the repair registered is retired, and only under the term of its
committer, which fences a process that still sends.
"""

from __future__ import annotations

from wal_sink.errors import ConfigError
from wal_sink.recovery.inventory import newest_marked
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.catch_up import holder_name
from wal_sink.repair.catch_up_plan import VERB
from wal_sink.repair.journal import Entry, command_of, ended_already, find_repair, note_given_up
from wal_sink.repair.there import replay_identity
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import BatchSink, Sink, TwoPhaseSink
from wal_sink.sinks.guarantees import Ability
from wal_sink.two_phase.abort import abort_open, find_open
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import note_end
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord
from wal_sink.wal.sink_records import RetiredRecord

ABORT_S = 120.0
"""Time limit of one call of the target."""
_REPLAY = "replay"
_SHOWN = 5


def give_up(log: Log, number: int, *, why: str, to: Sink | BatchSink | None = None) -> Entry:
    """End an unfinished repair that will not be completed. `to`: the two-phase target of a replay, which drops the
    transactions that the replay left open.

    Raises `ConfigError` if there is no such repair, if it ended, or if transactions are open and `to` is not their
    target. Raises `HeldError` if its process runs on this machine, and `DeliveryError` if the target does not abort a
    transaction: then repeat the command.
    """
    entry = find_repair(log, number)
    sink = _sink_of(log, entry)
    if entry.ended is not None and (sink is None or log.find(RetiredRecord, paths.retired(sink.name)) is not None):
        raise ended_already(log, entry)
    if sink is None:
        if to is not None:
            raise ConfigError(
                f"--to: repair {number} of {log.store.root} has no sink that could have left transactions in "
                f"{name_of(to)}. Leave out --to"
            )
        return note_given_up(log, entry, {}, why=why)
    result = {"retired": sink.name, "aborted": _end_sink(log, entry, sink, _checked(entry, sink, to))}
    # Of one that was given up before, only its sink was left: it was registered at the same time.
    return entry if entry.ended is not None else note_given_up(log, entry, result, why=why)


def _sink_of(log: Log, entry: Entry) -> SinkRecord | None:
    """The sink that a replay or catch-up registered. Another sink may have its name."""
    if entry.damage:
        names = [sink.folder for sink in read_names(log).sinks]
    elif entry.begun.verb == VERB:
        names = [holder_name(entry.number)]
    elif entry.begun.verb == _REPLAY:
        names = [entry.plan.get("name") or f"replay-{entry.number}"]
    else:
        return None
    found = (log.find(SinkRecord, paths.sink(name)) for name in names)
    return next((sink for sink in found if sink is not None and _is_of(entry, sink)), None)


def _is_of(entry: Entry, sink: SinkRecord) -> bool:
    if sink.repair and not entry.damage:
        return sink.repair == entry.begun.id
    return sink.is_replay and sink.identity.endswith(f"(repair {entry.number}: a replay)")


def _checked(entry: Entry, sink: SinkRecord, to: Sink | BatchSink | None) -> TwoPhaseSink | None:
    """The target whose transactions are aborted, if there is one."""
    if to is None:
        return None
    if not isinstance(to, TwoPhaseSink) or sink.sink_kind != Ability.TWO_PHASE.value:
        raise ConfigError(
            f"--to: {name_of(to)} is not a two-phase sink, or the replay was not to one ({sink.sink_kind}), so there "
            "is nothing to abort. Leave out --to"
        )
    if sink.identity != replay_identity(to, entry.number):
        raise ConfigError(f"--to: expected the target of the replay, {sink.identity}; got {name_of(to)}")
    return to


def _end_sink(log: Log, entry: Entry, sink: SinkRecord, to: TwoPhaseSink | None) -> int:
    """Retire the sink of a replay. Returns the number of transactions that were aborted before."""
    if to is None:
        _refuse_open(log, entry, sink)  # before anything is changed
    role = paths.committer_role(sink.name)
    term = claim(log, role, was_held=True)  # a process that still sends is ended
    try:
        aborted = 0
        if to is not None:
            aborted = abort_open(log, sink.name, to, term.number, limit_s=ABORT_S)
        else:
            _refuse_open(log, entry, sink)
        through = newest_marked(log, sink.name)
        log.create(paths.retired(sink.name), RetiredRecord(through=through, run_id=log.run_id, **log.stamp()))
    finally:
        note_end(log, role, term.number)
    return aborted


def _refuse_open(log: Log, entry: Entry, sink: SinkRecord) -> None:
    """Refuse to leave transactions open for ever: a database with prepared transactions cannot clean up."""
    if sink.sink_kind != Ability.TWO_PHASE.value:
        return
    opened = [f"batch {name.batch_id}: {name.transaction_id}" for name in find_open(log, sink.name)]
    if not opened:
        return
    more = f" and {len(opened) - _SHOWN} more" if len(opened) > _SHOWN else ""
    raise ConfigError(
        f"repair {entry.number} of {log.store.root}: the target of sink {sink.name!r} may hold open transactions that "
        f"only the replay commits or aborts ({'; '.join(opened[:_SHOWN])}{more}). Complete the replay with the same "
        f"command: {command_of(entry.begun)}. Or pass --to with the target: then the transactions are aborted. Nothing "
        "was changed"
    )

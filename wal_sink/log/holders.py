"""Tells whether the holder of a term still lives, as far as this is possible without a message to it.

A term names the process that claimed it: host, boot, namespace of process ids, process id and start time. A process
that ends in order leaves a record beside its term. There is no heartbeat, since an idle run sends no requests to the
store.

The protocol does not need any of this: a claim fences every earlier holder, alive or not. It only keeps a command from
ending a live query.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from wal_sink.errors import ConfigError, CorruptError, HeldError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import TermRecord
from wal_sink.log.sink_records import EndedRecord
from wal_sink.support.clock import ProcessIdentity, find_process, process_identity
from wal_sink.support.logs import logger_of

_logger = logger_of(__name__)


class TakeOver(StrEnum):
    """Holders that a claim may fence."""

    ALWAYS = "always"
    """Every holder. A query that starts takes over, since Spark restarts a lost driver on another host."""
    IF_GONE = "if_gone"
    """Only a holder that is certainly gone."""
    UNLESS_RUNNING = "unless_running"
    """Also a holder whose state is unknown; not one that runs on this machine."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(repr(str(each)) for each in cls)
        raise ConfigError(f"take_over={value!r}: expected one of {known}")


class Holding(StrEnum):
    """State of the process that holds a term, as far as this machine knows."""

    ENDED = "ended"
    GONE = "gone"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a term."""

    process: str
    """Host and process id."""
    since: str
    state: Holding
    identity: ProcessIdentity | None = None


def holder_of(log: Log, role: str, number: int) -> Holder:
    """The holder of a claimed term. Two reads; sends nothing to the holder.

    The name of a term alone counts. If its record cannot be read, the role is still held, and the holder's state is
    unknown.
    """
    try:
        record = log.require(TermRecord, paths.term(role, number))
        ended = log.find(EndedRecord, paths.ended(role, number))
    except CorruptError as error:
        what = paths.described_role(role)
        _logger.warning("%s of %s: the record of its holder cannot be read: %s", what, log.store.root, error)
        return Holder("a process", "an unknown time", Holding.UNKNOWN)
    state = Holding.ENDED if ended is not None else state_of(record.holder)
    return Holder(record.process, record.created, state, record.holder)


def state_of(holder: ProcessIdentity | None) -> Holding:
    """The state of a process, as far as this machine knows. No request. A process id is valid only in the namespace
    that assigned it.

    The name of the host may have changed since. A running process is found anyway. A process that is not found may run
    in a copy of this machine.
    """
    here = process_identity()
    if holder is None or not (holder.is_known and here.is_known) or not holder.shares_ids_with(here):
        return Holding.UNKNOWN
    found = find_process(holder.pid)
    if found == holder.started:
        return Holding.RUNNING
    return Holding.GONE if found is not None and holder.host == here.host else Holding.UNKNOWN


def refuse_held(log: Log, role: str, *, take_over: TakeOver) -> None:
    """Raise `HeldError` if the holder of a role's newest term must not be fenced. One listing, and two reads."""
    refuse_holder(log, role, max(log.numbers(paths.terms(role)), default=0), take_over)


def refuse_served(log: Log, take_over: TakeOver) -> list[str]:
    """`refuse_held` for every role of a WAL. Returns the roles. One listing, and three requests a role."""
    roles = [name.removesuffix("/") for name in log.store.list(paths.TERMS)]
    for role in roles:
        refuse_held(log, role, take_over=take_over)
    return roles


def refuse_holder(log: Log, role: str, number: int, take_over: TakeOver) -> None:
    """Raise `HeldError` as `refuse_held` does, for a known newest term; 0: the role has no term. Sends no request if
    `take_over` permits any holder.
    """
    if take_over is TakeOver.ALWAYS or number == 0:
        return
    holder = holder_of(log, role, number)
    is_unknown = holder.state is Holding.UNKNOWN and take_over is not TakeOver.UNLESS_RUNNING
    if not (is_unknown or holder.state is Holding.RUNNING):
        return
    what = f"{paths.described_role(role)} of {log.store.root}: {holder.process} has served it since {holder.since}"
    if holder.state is Holding.RUNNING:
        raise HeldError(
            f"{what} (term {number}) and is running on this machine. Stop that process first, then repeat the command"
        )
    raise HeldError(
        f"{what} (term {number}), and it is not known whether that process ended. That process ran on another host, "
        "in another container, before this machine was restarted, or on a system where this cannot be found out. If "
        "the process is still running, stop it. If the process ended, repeat the command once with --take-over. "
        "This option ends a process that is still running"
    )


def note_end(log: Log, role: str, number: int) -> None:
    """Record that the holder of a term ended in order. One create. A failure is only a warning: then the next command
    needs --take-over.
    """
    record = EndedRecord(role=role, term=number, run_id=log.run_id, **log.stamp())
    try:
        log.create(paths.ended(role, number), record)
    except (WalSinkError, RuntimeError) as error:  # a client may refuse to connect while the interpreter shuts down
        _logger.warning("%s of %s: the end was not recorded: %s", paths.described_role(role), log.store.root, error)

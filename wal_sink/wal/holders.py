"""Whether the process that holds a term still lives, as far as anybody can tell without asking it.

A term says which process claimed it: host, boot, process ids' namespace, process id and start time. A clean end leaves
a record beside the term. Nobody sends a heartbeat, since an idle run asks the store for nothing. The protocol does not
need any of this: a claim fences every earlier holder, alive or not. It keeps a command from ending a live query.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from wal_sink.errors import ConfigError, CorruptError, HeldError, WalSinkError
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import ProcessIdentity, find_process, process_identity
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import TermRecord
from wal_sink.wal.sink_records import EndedRecord

_logger = logger_of(__name__)


class TakeOver(StrEnum):
    """Whom a claim may fence."""

    ALWAYS = "always"
    """Everybody: a query that starts takes over, since Spark starts a lost driver again on another host."""
    IF_GONE = "if_gone"
    """Only a holder that is gone for sure."""
    UNLESS_RUNNING = "unless_running"
    """Also one of which nobody knows whether it lives; not one that runs on this machine."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(repr(str(each)) for each in cls)
        raise ConfigError(f"take_over={value!r}: expected one of {known}")


class Holding(StrEnum):
    """What is known of the process that holds a term."""

    ENDED = "ended"
    GONE = "gone"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a term."""

    process: str
    """Host and process id."""
    since: str
    state: Holding


def holder_of(log: Log, role: str, number: int) -> Holder:
    """Who holds a term that was claimed. Two reads, and nothing of the holder.

    Terms count by their names: of one that cannot be read nothing is known, and its role is held all the same.
    """
    try:
        record = log.require(TermRecord, paths.term(role, number))
        ended = log.find(EndedRecord, paths.ended(role, number))
    except CorruptError as error:
        _logger.warning("%s of %s: who holds it cannot be read: %s", paths.described_role(role), log.store.root, error)
        return Holder("a process", "an unknown time", Holding.UNKNOWN)
    state = Holding.ENDED if ended is not None else _state(record.holder)
    return Holder(record.process, record.created, state)


def _state(holder: ProcessIdentity | None) -> Holding:
    """What this machine knows of a process. Process ids mean something only where they were given.

    The name of the host may have changed since: then a process that runs is found all the same, and one that is not
    found may run in a copy of this machine.
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


def refuse_holder(log: Log, role: str, number: int, take_over: TakeOver) -> None:
    """The same, where the role's newest term is known; 0: nobody claimed one. Asks nothing where it fences anybody."""
    if take_over is TakeOver.ALWAYS or number == 0:
        return
    holder = holder_of(log, role, number)
    is_unknown = holder.state is Holding.UNKNOWN and take_over is not TakeOver.UNLESS_RUNNING
    if not (is_unknown or holder.state is Holding.RUNNING):
        return
    what = f"{paths.described_role(role)} of {log.store.root}: {holder.process} serves it since {holder.since}"
    if holder.state is Holding.RUNNING:
        raise HeldError(f"{what} (term {number}) and runs on this machine: stop it first, then repeat this")
    raise HeldError(
        f"{what} (term {number}), and nothing tells that it ended. It ran on another host, in another container, "
        "before this machine was started again, or on a system that does not tell. If it still runs, stop it. If it is "
        "gone, repeat this with --take-over, which would end a process that still runs"
    )


def note_end(log: Log, role: str, number: int) -> None:
    """Leave a record that the holder of a term ended in order. One create. A failure is a warning: it only means that
    the next command asks for --take-over.
    """
    record = EndedRecord(role=role, term=number, run_id=log.run_id, **log.stamp())
    try:
        log.create(paths.ended(role, number), record)
    except (WalSinkError, RuntimeError) as error:  # a client may refuse to connect while the interpreter ends
        _logger.warning("%s of %s: the end was not recorded: %s", paths.described_role(role), log.store.root, error)

"""Retiring and renaming a sink as a person orders it, and every change that was ordered. Both only add records.

Each has a record of who ordered it and why (`operate/changes.py`). The other records are those of the protocol: a
`retired.json`, a name (`protocol/sinks.py`). A live query beside such a command finds its term taken, and stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import ConfigError, HeldError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end, refuse_held
from wal_sink.log.log import Log
from wal_sink.log.records import Marker
from wal_sink.log.sink_records import ChangeRecord, NameRecord, RenamedRecord, RetiredRecord
from wal_sink.log.terms import Term, claim
from wal_sink.operate.catch_up_plan import VERB, holder_name, unfinished_holder
from wal_sink.operate.changes import Order, command_of, read_changes, write_down
from wal_sink.operate.skip import keep_in_flight
from wal_sink.protocol.inventory import marked_through, newest_marked
from wal_sink.protocol.location import refuse_copy
from wal_sink.protocol.sinks import SinkNames, pending_batches, read_names, refuse_retired, settle
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import counted

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class RetirePlan:
    """The state of a sink that is to be retired."""

    name: str
    folder: str
    through: int
    """The newest batch it has; -1 if none."""
    pending: tuple[int, ...]
    """Batches that the WAL holds and the sink lacks."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """The result of retiring a sink."""

    name: str
    through: int
    """The newest batch it has; -1 if none."""
    dropped: tuple[int, ...]
    """Batches that it will not get."""


def retire(log: Log, name: str, *, drop_pending: int, take_over: TakeOver, why: str = "") -> Retirement:
    """Retire a sink: it no longer keeps batches from being deleted, and no process may serve it. Repeat a retirement
    that was interrupted.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink, or if the WAL holds more than `drop_pending`
    batches that the sink lacks. Raises `HeldError` if a process serves it, or may serve it, that `take_over` does not
    allow to fence.
    """
    folder = _folder_of_any_name(log, name)
    order = Order("sinks retire", folder, {"--drop-pending": drop_pending} if drop_pending else {}, why)
    is_begun = _is_begun(log, order)
    record = log.find(RetiredRecord, paths.retired(folder)) if is_begun else None
    if record is None:
        refuse_pending(log, name, plan_retire(log, name).pending, drop_pending)
    role = paths.committer_role(folder)
    refuse_held(log, role, take_over=take_over)
    if not is_begun:
        write_down(log, order, {})
    if record is None:  # else the earlier call came so far
        term = claim(log, role, was_held=True, take_over=take_over)
        refuse_copy(log)  # again: it may have been moved before the claim
        pending = pending_batches(log, folder)  # again: the earlier holder of the term may have delivered since
        refuse_pending(log, name, pending, drop_pending)
        through = marked_through(log, folder)
        record = RetiredRecord(through=through, dropped=tuple(pending), run_id=log.run_id, **log.stamp())
        log.create(paths.retired(folder), record)
        term.check(log.store)  # raises if a process began meanwhile: it did not see the record
        note_end(log, role, term.number)
    _leave_in_order(log, name, folder, record)
    return Retirement(name, record.through, record.dropped)


def _leave_in_order(log: Log, name: str, folder: str, record: RetiredRecord) -> None:
    """Keep what the sink may lack of the batch that it had begun, and tell of transactions that stay open."""
    role = paths.committer_role(folder)
    for batch_id in record.dropped[:1]:  # a sink gets batches in order
        newest = max(log.numbers(paths.terms(role)), default=0)  # lost terms do no harm: nobody serves the sink again
        keep_in_flight(log, folder, batch_id, Term(role, newest))
    begun = paths.begun_folder(folder)
    if count := len([file for file in log.store.list(begun) if paths.parse_begun(begun, file)]):
        text = "sink %s: up to %d transactions may be open in its target, and wal-sink no longer aborts them: see %s"
        _logger.warning(text, name, count, log.store.url_of(begun))


def plan_retire(log: Log, name: str) -> RetirePlan:
    """The state of a sink that is to be retired. Creates nothing. Raises `ConfigError` as `retire` does, except for
    pending batches.
    """
    _refuse_elsewhere(log)
    folder = read_names(log).require(name, log.store.root)
    refuse_retired(log, folder, name)
    return RetirePlan(name, folder, marked_through(log, folder), tuple(pending_batches(log, folder)))


def refuse_pending(log: Log, name: str, pending: Sequence[int], drop_pending: int) -> None:
    """Raise `ConfigError` if the sink lacks more batches than a user gives up."""
    if len(pending) > drop_pending:
        which = f"batch {pending[0]}" if len(pending) == 1 else f"batches {pending[0]} to {pending[-1]}"
        raise ConfigError(
            f"sink {name!r} of {log.store.root} has not delivered {counted(len(pending), 'batch')} that the WAL "
            f"holds ({which}). Deliver them first (wal-sink drain --name {name}). Or skip them for this sink "
            f"with --drop-pending {len(pending)}; then their rows are never delivered to this sink"
        )


def rename(log: Log, old: str, new: str, *, take_over: TakeOver, why: str = "") -> None:
    """Give a sink another name. Its progress stays. Repeat a rename that was interrupted.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink or if the name is taken, and `HeldError` as
    `retire` does.
    """
    folder = _folder_of_any_name(log, old)
    order = Order("sinks rename", folder, {"(old)": old, "new": new}, why)
    is_begun = _is_begun(log, order)
    if is_begun and any(sink.folder == folder and sink.name == new for sink in read_names(log).sinks):
        return  # the earlier call came so far
    _refuse_rename(log, old, new)
    refuse_held(log, paths.committer_role(folder), take_over=take_over)
    if not is_begun:
        write_down(log, order, {})
    if new != folder:
        _take_name(log, folder, new)
    number = max(log.numbers(paths.sink_names(folder)), default=0) + 1
    if not log.create(paths.sink_name(folder, number), NameRecord(number=number, name=new, **log.stamp())):
        raise HeldError(
            f"sink {old!r} of {log.store.root} was renamed by another process at the same time. List the sinks, then "
            "repeat the command if it is still needed"
        )


def _refuse_rename(log: Log, old: str, new: str) -> None:
    _refuse_elsewhere(log)
    names = read_names(log)
    folder = names.require(old, log.store.root)
    refuse_retired(log, folder, old)
    _refuse_taken(log, names, folder, new)


def _refuse_elsewhere(log: Log) -> None:
    """Refuse a copy, and a WAL without its own record: after a change, that record would count as lost."""
    if refuse_copy(log) is None:
        raise ConfigError(
            f"{log.store.root} holds no wal.json yet: the sinks are registered, but no batch was staged. Repeat the "
            "command after the first batch was staged"
        )


def _refuse_taken(log: Log, names: SinkNames, folder: str, new: str) -> None:
    """Refuse a name that another sink has or had. A sink may have one of its earlier names again."""
    paths.check_sink_name(new)
    is_used = new in names.leads_to or any(sink.folder == new for sink in names.sinks)
    if is_used and names.leads_to.get(new, new) != folder:
        raise _taken(log, new)


def _take_name(log: Log, folder: str, new: str) -> None:
    """Give a name to a sink. Raises `ConfigError` if another sink took it first, or was registered under it meanwhile.

    A registration creates `sink.json`, then looks for `renamed.json`. A rename does it the other way round. So at least
    one of the two sees the other. If both do, `settle` decides: the first to create the record has the name.
    """
    record, _ = log.create_or_find(paths.renamed(new), RenamedRecord(name=new, folder=folder, **log.stamp()))
    if record.folder != folder:
        raise _taken(log, new)
    is_registered = paths.SINK_RECORD in log.store.list(f"{paths.SINKS}/{new}")
    if settle(log, new, new if is_registered else folder) != folder:
        raise _taken(log, new)


def _taken(log: Log, name: str) -> ConfigError:
    return ConfigError(f"{log.store.root}: another sink has, or had, the name {name!r}; choose another name")


def _folder_of_any_name(log: Log, name: str) -> str:
    """The folder that a name leads to, also an old name."""
    return read_names(log).leads_to.get(name, name)


def _is_begun(log: Log, order: Order) -> bool:
    """Whether the newest change of the sink is this one, completed or not."""
    changes = read_changes(log, order.folder)
    return bool(changes) and order.is_same(changes[-1])


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a sink that a person ordered."""

    command: str
    """The command, without secrets. The same command completes a change that is unfinished."""
    outcome: str
    """`done` or `unfinished`. `ended`: a catch-up whose sink was retired before its end. `delivered`: a skip of a batch
    that another process delivered meanwhile. `unknown`: a skip whose marker was deleted since.
    """
    when: str
    who: str
    why: str


def changes_of(log: Log, folder: str, name: str) -> list[Change]:
    """The changes of a sink, oldest first. A listing, and up to four requests for each. Raises `CorruptError`."""
    return [
        Change(command_of(each, name), _became(log, folder, each), each.created, each.who, each.why)
        for each in read_changes(log, folder)
    ]


def _became(log: Log, folder: str, record: ChangeRecord) -> str:
    if record.verb == "skip":
        return _of_skip(log, folder, record.arguments["batch"])
    if record.verb == VERB:
        return _of_catch_up(log, record)
    if record.verb == "sinks retire":
        return _done(is_done=log.find(RetiredRecord, paths.retired(folder)) is not None)
    names = (log.find(NameRecord, paths.sink_name(folder, each)) for each in log.numbers(paths.sink_names(folder)))
    return _done(is_done=any(each is not None and each.name == record.arguments["new"] for each in names))


def _of_skip(log: Log, folder: str, batch_id: int) -> str:
    marker = log.find(Marker, paths.marker(folder, batch_id))
    if marker is not None:
        return "done" if marker.skipped else "delivered"
    return "unfinished" if newest_marked(log, folder) < batch_id else "unknown"


def _of_catch_up(log: Log, record: ChangeRecord) -> str:
    if unfinished_holder(log, record) is not None:
        return "unfinished"
    holder = holder_name(record)
    retired = log.find(RetiredRecord, paths.retired(holder))
    was_ended = retired is None or retired.dropped or log.numbers(paths.changes(holder))  # a person retired it
    return "ended" if was_ended else "done"


def _done(*, is_done: bool) -> str:
    return "done" if is_done else "unfinished"

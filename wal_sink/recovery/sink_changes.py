"""Retiring and renaming a sink. Both add records: nothing is replaced or deleted. Needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import ConfigError, HeldError
from wal_sink.recovery.inventory import Lost, find_again, newest_marker
from wal_sink.recovery.location import refuse_copy
from wal_sink.recovery.sink_names import KnownSink, SinkNames, read_names, refuse_retired, settle
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import Holding, TakeOver, holder_of, note_end, refuse_held
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import SinkRecord
from wal_sink.wal.sink_records import NameRecord, RenamedRecord, RetiredRecord


@dataclass(frozen=True, slots=True)
class Retirement:
    """What became of a sink that was retired."""

    name: str
    through: int
    """The newest batch it has; -1 if none."""
    dropped: tuple[int, ...]
    """Batches that it will not get."""


def retire(log: Log, name: str, *, drop_pending: int, take_over: TakeOver) -> Retirement:
    """Retire a sink: it holds nothing back any more, and no process may serve it.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink, or if the WAL holds more than `drop_pending`
    batches that it lacks, and `HeldError` if a process serves it, or may do so, whom `take_over` does not let fence.
    """
    _refuse_elsewhere(log)
    folder = _present(log, read_names(log), name)
    refuse_retired(log, folder, name)
    _refuse_pending(log, name, pending_batches(log, folder), drop_pending)
    role = paths.committer_role(folder)
    term = claim(log, role, was_held=True, take_over=take_over)
    pending = pending_batches(log, folder)  # once more: whoever held the term may have delivered or staged since
    _refuse_pending(log, name, pending, drop_pending)
    marker = newest_marker(log, folder)
    through = marker.batch_id if marker else NOTHING
    record = RetiredRecord(through=through, dropped=tuple(pending), run_id=log.run_id, **log.stamp())
    log.create(paths.retired(folder), record)
    term.check(log.store)  # a process that began meanwhile did not see the record, and is fenced by nobody
    note_end(log, role, term.number)
    return Retirement(name, through, tuple(pending))


def pending_batches(log: Log, folder: str) -> list[int]:
    """Batches that the WAL holds and the sink lacks, complete or not."""
    path = paths.sink(folder)
    sink = log.find(SinkRecord, path) or find_again(log, SinkRecord, path, Lost.SINK, f"{paths.SINKS}/{folder}/")
    marker = newest_marker(log, folder)
    return log.numbers(paths.BATCHES, after=max(marker.batch_id if marker else NOTHING, sink.first_batch - 1))


def describe_unserved(log: Log, sink: KnownSink) -> str:
    """That a sink holds back whatever it lacks, and the ways out; empty if a process of this machine serves it, or if
    no sink is registered under the name. A listing of terms and one of markers, and up to four reads.
    """
    record = log.find(SinkRecord, paths.sink(sink.folder))
    newest = max(log.numbers(paths.terms(role := paths.committer_role(sink.folder))), default=0)
    holder = holder_of(log, role, newest) if newest else None
    if record is None or (holder is not None and holder.state is Holding.RUNNING):
        return ""
    marker = newest_marker(log, sink.folder)
    through = marker.batch_id if marker else record.first_batch - 1
    last = f" ({holder.process} served it since {holder.since}: {holder.state})" if holder else ""
    return (
        f"sink {sink.name!r} of {log.store.root} is registered and not served by this run{last}; nothing is deleted "
        f"after batch {through} until it has more. Serve it again or drain it; if it is called otherwise now: wal-sink "
        f"sinks rename WAL {sink.name} NEW; if nobody needs it any more: wal-sink sinks retire WAL {sink.name}"
    )


def _refuse_pending(log: Log, name: str, pending: Sequence[int], drop_pending: int) -> None:
    if len(pending) > drop_pending:
        which = f"batch {pending[0]}" if len(pending) == 1 else f"batches {pending[0]} to {pending[-1]}"
        raise ConfigError(
            f"sink {name!r} of {log.store.root} lacks {len(pending)} batches that the WAL holds ({which}). "
            f"Deliver them first (wal-sink drain --name {name}), or give them up for this sink: --drop-pending "
            f"{len(pending)}"
        )


def rename(log: Log, old: str, new: str, *, take_over: TakeOver) -> None:
    """Give a sink another name, under which it goes on where it is. A rename that was interrupted is repeated.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink or if the name is taken, and `HeldError` as
    `retire` does.
    """
    _refuse_elsewhere(log)
    names = read_names(log)
    folder = _present(log, names, old)
    refuse_retired(log, folder, old)
    _refuse_taken(log, names, folder, new)
    refuse_held(log, paths.committer_role(folder), take_over=take_over)
    if new != folder:
        _take_name(log, folder, new)
    number = max(log.numbers(paths.sink_names(folder)), default=0) + 1
    if not log.create(paths.sink_name(folder, number), NameRecord(number=number, name=new, **log.stamp())):
        raise HeldError(f"sink {old!r} of {log.store.root} was renamed by another process meanwhile: look again")


def _refuse_elsewhere(log: Log) -> None:
    """Refuse a copy, and a WAL without its own record: what is changed there would look as if that record was lost."""
    if refuse_copy(log) is None:
        raise ConfigError(
            f"{log.store.root} holds no wal.json yet: its sinks are registered, but no batch was staged so far. Change "
            "them once the first batch is staged"
        )


def _present(log: Log, names: SinkNames, name: str) -> str:
    folder = names.folder_of(name)
    if folder is None:
        raise ConfigError(f"{log.store.root} has no sink {name!r}; it has {names.present}")
    return folder


def _refuse_taken(log: Log, names: SinkNames, folder: str, new: str) -> None:
    """A name belongs to one sink for ever, under which it may be called so again."""
    paths.check_sink_name(new)
    is_used = new in names.leads_to or any(sink.folder == new for sink in names.sinks)
    if is_used and names.leads_to.get(new, new) != folder:
        raise _taken(log, new)


def _take_name(log: Log, folder: str, new: str) -> None:
    """Make a name that of a sink. Raises `ConfigError` if another was first, or was registered under it meanwhile.

    Who registers a sink looks for `renamed.json` after it made `sink.json`, and here it is the other way round: one of
    the two sees the other. Both may; then the first to say whose the name is decides, and both go by that.
    """
    record, _ = log.create_or_find(paths.renamed(new), RenamedRecord(name=new, folder=folder, **log.stamp()))
    if record.folder != folder:
        raise _taken(log, new)
    is_registered = paths.SINK_RECORD in log.store.list(f"{paths.SINKS}/{new}")
    if settle(log, new, new if is_registered else folder) != folder:
        raise _taken(log, new)


def _taken(log: Log, name: str) -> ConfigError:
    return ConfigError(f"{log.store.root}: the name {name!r} is, or was, that of another sink: choose another one")

"""The sinks of a WAL: their names, present and earlier ones; retiring and renaming, which only add records.

A sink keeps the folder of its first name for ever, with its markers, progress and dead letters. Its terms and its slots
in a target keep the first name too. Renaming adds a record of the present name to that folder, and one under the new
name that points to the folder. So nothing is copied, and no process can deliver a batch under both names. If a rename
and the registration of a new sink want one name at the same time, a third record decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError, HeldError
from wal_sink.recovery.inventory import Lost, find_again, marked_through, require, sink_folders
from wal_sink.recovery.location import refuse_copy
from wal_sink.reporting.counts import counted
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import Holding, TakeOver, holder_of, note_end, refuse_held
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord
from wal_sink.wal.sink_records import NameRecord, OwnerRecord, RenamedRecord, RetiredRecord


@dataclass(frozen=True, slots=True)
class KnownSink:
    """A sink that a WAL has, or had."""

    folder: str
    """Its first name, under which all its objects lie. Its terms and its slots in a target have it too."""
    name: str
    """Its present name."""
    is_retired: bool


@dataclass(frozen=True, slots=True)
class SinkNames:
    """All names in a WAL, old ones included."""

    sinks: tuple[KnownSink, ...] = ()
    leads_to: Mapping[str, str] = field(default_factory=dict)
    """By each name that was given later: the folder of its sink."""
    settled: frozenset[str] = frozenset()
    """Folders of registered sinks whose name no rename can take any more."""

    def folder_of(self, name: str) -> str | None:
        """The folder of the sink that has this name now; None if no sink ever had it.

        Raises `ConfigError` if it is an old name.
        """
        folder = self.leads_to.get(name, name)
        sink = next((sink for sink in self.sinks if sink.folder == folder), None)
        if sink is None or sink.name == name:
            return None if sink is None else folder
        if name == folder:
            raise ConfigError(f"sink {name!r} was renamed to {sink.name!r}. Use that name, or rename the sink back")
        raise ConfigError(
            f"sink {sink.name!r} is not called {name!r} (any more). Use the present name of the sink, or rename the "
            f"sink: wal-sink sinks rename WAL {sink.name} {name}"
        )

    def require(self, name: str, wal: str) -> str:
        """The folder of the sink that has this name now. Raises `ConfigError` if there is none in the WAL at `wal`."""
        folder = self.folder_of(name)
        if folder is None:
            raise ConfigError(f"{wal} has no sink {name!r}; it has {self.present}")
        return folder

    @property
    def present(self) -> str:
        """The names of the sinks that are not retired, for messages."""
        return ", ".join(repr(sink.name) for sink in self.sinks if not sink.is_retired) or "none"


def read_names(log: Log) -> SinkNames:
    """All names in a WAL. One listing, one a name, and a read for each rename.

    Raises `CorruptError` if a record of a rename is gone.
    """
    found = {folder: log.store.list(f"{paths.SINKS}/{folder}") for folder in sink_folders(log)}
    owners = {name: _owner(log, name, names) for name, names in found.items()}
    leads_to = {name: owner for name, owner in owners.items() if owner is not None and owner != name}
    settled = frozenset(name for name in found if owners[name] == name and paths.SINK_RECORD in found[name])
    sinks = tuple(_known(log, folder, names) for folder, names in found.items() if folder not in leads_to)
    for sink in sinks:
        if sink.name != sink.folder and sink.name not in leads_to:
            # The record may have been made since the listing: then this read finds it.
            younger = f"{paths.sink_names(sink.folder)}/, where the name of the sink is recorded,"
            record = find_again(log, OwnerRecord, paths.owner(sink.name), Lost.OWNER, younger)
            leads_to[sink.name] = record.folder
    return SinkNames(sinks, leads_to, settled)


def _owner(log: Log, name: str, names: Sequence[str]) -> str | None:
    """The folder of the sink that has a name; None while a rename and a registration both want it."""
    if paths.OWNER in names:
        return log.require(OwnerRecord, paths.owner(name)).folder
    if paths.RENAMED not in names:
        return name
    return None if paths.SINK_RECORD in names else log.require(RenamedRecord, paths.renamed(name)).folder


def settle(log: Log, name: str, folder: str) -> str:
    """Give a name to the sink in `folder`, unless another one was first; the folder of the sink that has it.

    One create, and perhaps a read.
    """
    record, _ = log.create_or_find(paths.owner(name), OwnerRecord(name=name, folder=folder, **log.stamp()))
    return record.folder


def keep_name(log: Log, names: SinkNames, name: str) -> None:
    """Make sure that a sink which was just registered has its name, and that no rename takes it.

    Raises `ConfigError` if a rename took it. No request for a sink that was registered when `names` were read; one
    listing otherwise.
    """
    if name in names.settled or paths.RENAMED not in log.store.list(f"{paths.SINKS}/{name}"):
        return  # a rename that comes later finds `sink.json`, and gives the name up
    if settle(log, name, name) != name:
        raise ConfigError(
            f"sink {name!r} of {log.store.root}: another sink was just renamed to this name. Choose another name, then "
            "start the query or command again"
        )


def _known(log: Log, folder: str, names: Sequence[str]) -> KnownSink:
    numbers = log.numbers(paths.sink_names(folder)) if f"{paths.NAMES}/" in names else []
    name = log.require(NameRecord, paths.sink_name(folder, numbers[-1])).name if numbers else folder
    return KnownSink(folder, name, is_retired=paths.RETIRED in names)


def refuse_retired(log: Log, folder: str, name: str) -> None:
    """Raise `ConfigError` if the sink is retired. One read."""
    record = log.find(RetiredRecord, paths.retired(folder))
    if record is not None:
        raise ConfigError(
            f"sink {name!r} of {log.store.root} was retired at {record.created} after batch {record.through} (see "
            f"{log.store.url_of(paths.retired(folder))}). The WAL may no longer hold the later batches. Use another "
            "sink name, and set where the new sink begins. Delivery(…, start_from='next') begins with the next "
            "completed batch. Delivery(…, start_from='earliest') delivers all batches that the WAL still holds; some "
            "of their rows may already be in the target"
        )


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


def retire(log: Log, name: str, *, drop_pending: int, take_over: TakeOver) -> Retirement:
    """Retire a sink: it no longer keeps batches from being deleted, and no process may serve it.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink, or if the WAL holds more than `drop_pending`
    batches that the sink lacks. Raises `HeldError` if a process serves it, or may serve it, that `take_over` does not
    allow to fence.
    """
    plan = plan_retire(log, name)
    folder = plan.folder
    refuse_pending(log, name, plan.pending, drop_pending)
    role = paths.committer_role(folder)
    term = claim(log, role, was_held=True, take_over=take_over)
    refuse_copy(log)  # again: it may have been moved before the claim
    pending = pending_batches(log, folder)  # again: the earlier holder of the term may have delivered since
    refuse_pending(log, name, pending, drop_pending)
    through = marked_through(log, folder)
    record = RetiredRecord(through=through, dropped=tuple(pending), run_id=log.run_id, **log.stamp())
    log.create(paths.retired(folder), record)
    term.check(log.store)  # raises if a process began meanwhile: it did not see the record
    note_end(log, role, term.number)
    return Retirement(name, through, tuple(pending))


def plan_retire(log: Log, name: str) -> RetirePlan:
    """The state of a sink that is to be retired. Creates nothing. Raises `ConfigError` as `retire` does, except for
    pending batches.
    """
    _refuse_elsewhere(log)
    folder = read_names(log).require(name, log.store.root)
    refuse_retired(log, folder, name)
    return RetirePlan(name, folder, marked_through(log, folder), tuple(pending_batches(log, folder)))


def pending_batches(log: Log, folder: str) -> list[int]:
    """Batches that the WAL holds and the sink lacks, complete or not. None for the sink of a catch-up."""
    sink = require(log, SinkRecord, paths.sink(folder), Lost.SINK, f"{paths.SINKS}/{folder}/")
    if sink.is_holder:
        return []
    due = log.numbers(paths.BATCHES, after=max(marked_through(log, folder), sink.first_batch - 1))
    return [batch_id for batch_id in due if sink.through is None or batch_id <= sink.through]


def retire_complete(log: Log, folder: str, through: int) -> None:
    """Retire a sink that has the last batch that it gets. Any process may: the marker is there. One create."""
    log.create(paths.retired(folder), RetiredRecord(through=through, run_id=log.run_id, **log.stamp()))


def describe_unserved(log: Log, sink: KnownSink) -> str:
    """A warning that nothing is deleted which an unserved sink lacks, with the ways out.

    Empty if a process of this machine serves the sink, or if it is not registered. A listing of terms and one of
    markers, and up to four reads.
    """
    record = log.find(SinkRecord, paths.sink(sink.folder))
    terms = log.numbers(paths.terms(role := paths.committer_role(sink.folder)))
    holder = holder_of(log, role, terms[-1]) if terms else None
    if record is None or (holder is not None and holder.state is Holding.RUNNING):
        return ""
    through = max(marked_through(log, sink.folder), record.first_batch - 1)
    if record.through is not None and through >= record.through:  # the process that marked it did not come so far
        retire_complete(log, sink.folder, through)
        return ""
    if record.is_holder:
        return (
            f"sink {sink.name!r} of {log.store.root} belongs to an unfinished catch-up. Until that is completed by the "
            f"same command (wal-sink sinks list WAL), or ended (wal-sink sinks retire WAL {sink.name}), the WAL "
            f"deletes nothing after batch {through}"
        )
    last = f" ({holder.process} served it since {holder.since}: {holder.state})" if holder else ""
    return (
        f"sink {sink.name!r} of {log.store.root} is registered, but this run does not serve it{last}. Until this sink "
        f"has more batches, the WAL deletes nothing after batch {through}. Serve the sink again or drain it. If the "
        f"sink has a new name: wal-sink sinks rename WAL {sink.name} NEW. If the sink is not needed any more: wal-sink "
        f"sinks retire WAL {sink.name}"
    )


def refuse_pending(log: Log, name: str, pending: Sequence[int], drop_pending: int) -> None:
    """Raise `ConfigError` if the sink lacks more batches than a user gives up."""
    if len(pending) > drop_pending:
        which = f"batch {pending[0]}" if len(pending) == 1 else f"batches {pending[0]} to {pending[-1]}"
        raise ConfigError(
            f"sink {name!r} of {log.store.root} has not delivered {counted(len(pending), 'batch')} that the WAL "
            f"holds ({which}). Deliver them first (wal-sink drain --name {name}). Or skip them for this sink "
            f"with --drop-pending {len(pending)}; then their rows are never delivered to this sink"
        )


def rename(log: Log, old: str, new: str, *, take_over: TakeOver) -> None:
    """Give a sink another name. Its progress stays. Repeat a rename that was interrupted.

    Raises `ConfigError` if the WAL is a copy, if there is no such sink or if the name is taken, and `HeldError` as
    `retire` does.
    """
    folder = check_rename(log, old, new)
    refuse_held(log, paths.committer_role(folder), take_over=take_over)
    if new != folder:
        _take_name(log, folder, new)
    number = max(log.numbers(paths.sink_names(folder)), default=0) + 1
    if not log.create(paths.sink_name(folder, number), NameRecord(number=number, name=new, **log.stamp())):
        raise HeldError(
            f"sink {old!r} of {log.store.root} was renamed by another process at the same time. List the sinks, then "
            "repeat the command if it is still needed"
        )


def check_rename(log: Log, old: str, new: str) -> str:
    """The folder of a sink that is to be renamed. Creates nothing. Raises `ConfigError` as `rename` does."""
    _refuse_elsewhere(log)
    names = read_names(log)
    folder = names.require(old, log.store.root)
    refuse_retired(log, folder, old)
    _refuse_taken(log, names, folder, new)
    return folder


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

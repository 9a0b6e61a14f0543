"""The sinks of a WAL: their names, present and earlier ones; retiring and renaming, which only add records.

A sink keeps the folder of its first name for ever, with its markers, progress and dead letters. Its terms and its slots
in a target keep the first name too. Renaming adds a record of the present name to that folder, and one under the new
name that points to the folder. So nothing is copied, and no process can deliver a batch under both names. If a rename
and the registration of a new sink want one name at the same time, a third record decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.log import paths
from wal_sink.log.holders import Holding, holder_of
from wal_sink.log.log import Log
from wal_sink.log.records import SinkRecord
from wal_sink.log.sink_records import NameRecord, OwnerRecord, RenamedRecord, RetiredRecord
from wal_sink.protocol.inventory import Lost, find_again, marked_through, require, sink_folders


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
            f"sink {sink.name!r} of {log.store.root} belongs to an unfinished catch-up, so the WAL deletes nothing "
            f"after batch {through}. Complete it with the same command (wal-sink sinks list WAL), or end it: "
            f"wal-sink sinks retire WAL {sink.name}"
        )
    last = f" ({holder.process} served it since {holder.since}: {holder.state})" if holder else ""
    return (
        f"sink {sink.name!r} of {log.store.root} is registered, but this run does not serve it{last}. The WAL "
        f"deletes nothing after batch {through} until this sink has more batches. Serve the sink again or drain it. "
        f"If the sink has a new name: wal-sink sinks rename WAL {sink.name} NEW. If the sink is not needed any "
        f"more: wal-sink sinks retire WAL {sink.name}"
    )

"""Names of the sinks of a WAL: present and earlier ones, and which sinks are retired.

A sink keeps the folder of its first name for ever, with its markers, progress and dead letters. Its terms and its slots
in a target keep the first name too. Renaming adds a record of the present name to that folder, and one under the new
name that points to the folder. So nothing is copied, and no process can deliver a batch under both names. If a rename
and the registration of a new sink want one name at the same time, a third record decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wal_sink.errors import ConfigError
from wal_sink.recovery.inventory import Lost, find_again, sink_folders
from wal_sink.wal import paths
from wal_sink.wal.log import Log
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

    sinks: tuple[KnownSink, ...]
    leads_to: Mapping[str, str]
    """By each name that was given later: the folder of its sink."""
    settled: frozenset[str]
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

    @property
    def present(self) -> str:
        """The names of the sinks that are not retired, for messages."""
        return ", ".join(repr(sink.name) for sink in self.sinks if not sink.is_retired) or "none"


NO_NAMES = SinkNames((), {}, frozenset())


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

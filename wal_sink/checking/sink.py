"""Checks of a sink: registration, names, markers and all else in its folder that belongs to no single batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from wal_sink.checking.deliveries import check_progress
from wal_sink.checking.findings import Fault
from wal_sink.checking.kinds import OF_A_SINK, kind_of
from wal_sink.checking.look import Look, SinkFacts
from wal_sink.recovery.inventory import sink_folders
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING
from wal_sink.wal.records import BegunRecord, Marker, SinkRecord, TokenRecord
from wal_sink.wal.sink_records import NameRecord, OwnerRecord, RenamedRecord, RetiredRecord

_OF_A_NAME = frozenset({paths.RENAMED, paths.OWNER})
"""Objects of a name that leads to another folder."""
_READ_APART = frozenset({paths.SINK_RECORD, paths.RETIRED, paths.FORGOTTEN, f"{paths.NAMES}/", "progress/", "markers/",
                         "dead-letters/", "begun/"})  # fmt: skip
"""Names whose objects are compared with others. Any other object of a sink only has to be whole."""


def check_sinks(look: Look) -> None:
    """Check which sinks there are, and list what each has of which batch. About five listings and a read a sink."""
    look.known.sinks = {}
    found = {folder: frozenset(look.log.store.list(f"{paths.SINKS}/{folder}")) for folder in sink_folders(look.log)}
    for folder, names in found.items():
        if paths.FORGOTTEN in names or not names:
            continue
        for name in sorted(names - OF_A_SINK):
            look.unknown(f"{paths.SINKS}/{folder}/{name}")
        if names <= _OF_A_NAME:
            _check_name(look, folder, names, found)
        else:
            look.known.sinks[folder] = _facts(look, folder, names)
    _check_claimed(look, found)


def _facts(look: Look, folder: str, names: frozenset[str]) -> SinkFacts:
    sink = SinkFacts(folder, names)
    younger = sorted(names - {paths.SINK_RECORD})
    because = f"{paths.SINKS}/{folder}/{younger[0]} is made after it" if younger else "a listing showed it"
    sink.record = look.required(SinkRecord, paths.sink(folder), because)
    if "markers/" in names:
        sink.markers = frozenset(look.numbers(paths.markers(folder)))
        sink.marked_through = max(sink.markers, default=NOTHING)
    if "progress/" in names:
        sink.progress = frozenset(look.numbers(paths.progress_batches(folder), of_folders=True))
    return sink


def _check_claimed(look: Look, found: Mapping[str, frozenset[str]]) -> None:
    """Sinks that must have been registered: those of the WAL's own record, and those with a term."""
    wal = look.known.wal
    evidence = dict.fromkeys(wal.sinks if wal else (), f"{paths.WAL} names the sink")
    committer = paths.committer_role("")
    for role in look.known.terms:
        if role.startswith(committer):
            evidence.setdefault(role.removeprefix(committer), f"{paths.terms(role)}/ is made after it")
    for name in sorted(evidence.keys() - look.known.sinks.keys()):
        if paths.FORGOTTEN not in found.get(name, frozenset()):
            look.required(SinkRecord, paths.sink(name), evidence[name])


def _check_name(look: Look, name: str, names: frozenset[str], found: Mapping[str, frozenset[str]]) -> None:
    """Check a name that a sink got later: its records lead to the folder of a sink."""
    renamed = look.listed(RenamedRecord, paths.renamed(name)) if paths.RENAMED in names else None
    owner = look.listed(OwnerRecord, paths.owner(name)) if paths.OWNER in names else None
    for path, record in ((paths.renamed(name), renamed), (paths.owner(name), owner)):
        if record is not None and record.folder not in found:
            look.required(SinkRecord, paths.sink(record.folder), f"{path} names this sink")
    if paths.OWNER in names and paths.RENAMED not in names:
        look.required(RenamedRecord, paths.renamed(name), f"{paths.owner(name)} is made after it")
    if renamed is not None and owner is not None and renamed.folder != owner.folder != name:
        what = f"it gives the name to {owner.folder}, but {paths.renamed(name)} to {renamed.folder}"
        look.fault(Fault.CONTRADICTION, paths.owner(name), what)


def check_sink(look: Look, folder: str) -> None:
    """Check all of a sink but its progress and its markers above low water, which belong to batches."""
    sink = look.known.sinks[folder]
    if paths.FORGOTTEN in look.log.store.list(f"{paths.SINKS}/{folder}"):
        return
    _check_records(look, sink)
    _check_newest_marker(look, sink)
    if f"{paths.NAMES}/" in sink.names:
        _check_names(look, folder)
    if "begun/" in sink.names:
        _check_begun(look, folder)


def _check_records(look: Look, sink: SinkFacts) -> None:
    """Records that have nothing to do with batches."""
    for name in sorted(sink.names & OF_A_SINK - _READ_APART):
        path = f"{paths.SINKS}/{sink.folder}/{name}"
        if name.endswith("/"):
            look.folder(path.rstrip("/"))
        else:
            look.object(path)
    path = paths.retired(sink.folder)
    retired = look.listed(RetiredRecord, path) if paths.RETIRED in sink.names else None
    if retired is None:
        return
    if retired.through > NOTHING and not look.known.is_collected(retired.through):  # its markers are collected too
        _require_marked(look, sink, retired.through, path)
    if not look.may_be_holder(paths.committer_role(sink.folder), retired.run_id):
        look.fault(Fault.FOREIGN, path, f"run {retired.run_id} retired this sink, but it claimed none of its terms")


def _check_newest_marker(look: Look, sink: SinkFacts) -> None:
    """The newest marker is never deleted. Low water says how new it must be at least."""
    low = look.known.low_record
    if low is not None and (known := low.marked.get(sink.folder, NOTHING)) > NOTHING:
        _require_marked(look, sink, known, paths.low_water(low.batch_id))
    for number in sorted(sink.markers - look.known.held):  # the others were checked with their batches
        path = paths.marker(sink.folder, number)
        if (marker := look.listed(Marker, path)) is not None:
            look.check_term(paths.committer_role(sink.folder), marker, path)
    if sink.marked_through > max([look.known.low_water, *look.known.batches[-1:]]):
        _require_batch(look, sink.marked_through, paths.marker(sink.folder, sink.marked_through))
    for batch_id in sorted(sink.progress - look.known.held):
        if not look.known.is_collected(batch_id):
            check_progress(look, sink, batch_id, None)
            _require_batch(look, batch_id, f"{paths.progress_folder(sink.folder, batch_id)}/")


def _require_marked(look: Look, sink: SinkFacts, through: int, because: str) -> None:
    """Make sure that the sink has a marker of this batch or of a later one."""
    if sink.marked_through >= through or max(look.log.numbers(paths.markers(sink.folder)), default=NOTHING) >= through:
        return
    look.fault(Fault.LOST, paths.marker(sink.folder, through), f"{because} says that the sink has this batch")


def _require_batch(look: Look, batch_id: int, because: str) -> None:
    if look.log.store.list(paths.batch(batch_id)) or look.known.is_collected(batch_id):
        return
    look.fault(Fault.LOST, f"{paths.batch(batch_id)}/", f"the batch is gone, but {because} exists")


def _check_names(look: Look, folder: str) -> None:
    """The names of a sink. The newest must be its own."""
    record = None
    for record in look.series(NameRecord, paths.sink_names(folder), partial(paths.sink_name, folder)):  # noqa: B007
        pass
    if record is not None and record.name != folder:
        path = paths.owner(record.name)
        owner = look.required(OwnerRecord, path, f"{paths.sink_name(folder, record.number)} gives the sink this name")
        if owner is not None and owner.folder != folder:
            what = f"it gives the name to {owner.folder}, but {paths.sink_names(folder)}/ to {folder}"
            look.fault(Fault.CONTRADICTION, path, what)


def _check_begun(look: Look, folder: str) -> None:
    """Transactions that were begun. They belong to this WAL, and a token has its transaction."""
    root = paths.begun_folder(folder)
    found = [f"{root}/{name}" for name in look.log.store.list(root, recursive=True)]
    for path in found:
        if kind_of(path) is None:
            look.unknown(path)
        elif path.endswith(".token.json"):
            look.listed(TokenRecord, path)
            record = path.replace(".token.json", ".json")
            if record not in found and _is_there(look, path) and not _is_there(look, record):
                look.fault(Fault.DANGLING, path, f"{record} does not exist, so nothing finds this token")
        else:
            begun = look.listed(BegunRecord, path)
            wal = look.known.wal
            if begun is not None and wal is not None and begun.wal_id != wal.wal_id:
                look.fault(Fault.FOREIGN, path, f"the transaction is of the WAL {begun.wal_id}, not {wal.wal_id}")


def _is_there(look: Look, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in look.log.store.list(folder)

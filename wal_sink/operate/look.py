"""One reader of a log. `WalFacts` reads a WAL for people; `Look` reads the same and notes what is wrong.

`WalFacts` reads each fact when a view first needs it, and keeps it. So one command lists each prefix once, whichever of
the views it prints: `status`, `health`, `batches`, `report`, `doctor`. A record that is lost or damaged is an error.

Other processes write and delete meanwhile. `Look` judges each absence in one order: first the evidence that the object
must exist is read, then the object, then whatever may explain that it is gone: low water, which rises before a batch is
deleted, or the mark that a sink was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.log.holders import Holder, holder_of
from wal_sink.log.log import NOTHING, Log, belongs
from wal_sink.log.records import (
    LowWater,
    Manifest,
    Marker,
    PreparedRecord,
    Progress,
    Record,
    Release,
    Replayed,
    RollRecord,
    SinkRecord,
    TermRecord,
    WalRecord,
    decode,
)
from wal_sink.log.sink_records import RetiredRecord
from wal_sink.operate.findings import Fault, Finding, Seen
from wal_sink.operate.kinds import Lives, kind_of
from wal_sink.protocol.inventory import (
    Inventory,
    Lost,
    check_unserved_sinks,
    find_again,
    held_batches,
    newest_marker,
    take,
)
from wal_sink.protocol.location import current_location
from wal_sink.protocol.sinks import KnownSink, read_names
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.support.clock import SYSTEM

R = TypeVar("R", bound=Record)
OfATerm: TypeAlias = Manifest | Marker | PreparedRecord | Progress | Replayed | RollRecord
"""A record that names the term and the run under which it was written."""

T = TypeVar("T", Manifest, Marker, PreparedRecord, Progress, Replayed, RollRecord)
_BATCH = re.compile(rf"/(\d{{{paths.BATCH_DIGITS}}})(?=[/.-])")
_LISTED = "a listing showed it a moment ago, and no process of wal-sink deletes it"


class WalFacts:
    """The facts of a WAL. Each is read when it is first needed, and kept, so that each prefix is listed once.

    Reads only, and claims no term. Numbers of batches and markers are kept, records of batches are not: so a look at
    100,000 batches needs little memory. Raises `CorruptError` and `ConfigError` for lost and damaged records, and
    `StoreError`.
    """

    def __init__(self, store: Store) -> None:
        self.log = Log(store, SYSTEM, run_id="")

    @cached_property
    def inventory(self) -> Inventory:
        """The root, the numbers of all terms, and the WAL's own record."""
        return take(self.log)

    @property
    def wal(self) -> WalRecord | None:
        """The WAL's own record; None before its first batch."""
        return self.inventory.wal

    @cached_property
    def location(self) -> str | None:
        """The place that the WAL records; None before its first batch."""
        return current_location(self.log, self.wal, moved=self.inventory.has_moved) if self.wal else None

    @property
    def low_water(self) -> int:
        return self._held[0]

    @property
    def batches(self) -> list[int]:
        """The batches above low water that have any object, ascending."""
        return self._held[1]

    @cached_property
    def _held(self) -> tuple[int, list[int]]:
        return held_batches(self.log, self.wal) if self.wal else (NOTHING, [])

    @cached_property
    def sinks(self) -> list[SinkOfWal]:
        """The sinks that have any object, but for forgotten ones."""
        known = set(check_unserved_sinks(self.log, self.inventory, ()))
        forgotten = self.inventory.known_sinks.keys() - known
        return [sink for sink in self.every_sink if sink.folder not in forgotten]

    @cached_property
    def every_sink(self) -> list[SinkOfWal]:
        """The same with forgotten ones."""
        return [SinkOfWal(self, sink) for sink in read_names(self.log).sinks]

    def newest_term(self, role: str) -> int:
        """The newest term of a role; 0 if it has none."""
        return max(self.inventory.terms.get(role, ()), default=0)


class SinkOfWal:
    """The facts of one sink, as `WalFacts`."""

    def __init__(self, wal: WalFacts, known: KnownSink) -> None:
        self.folder = known.folder
        """Its first name."""
        self.name = known.name
        self.is_retired = known.is_retired
        self._wal = wal
        self._log = wal.log
        self._role = paths.committer_role(known.folder)

    @cached_property
    def markers(self) -> list[int]:
        """The batches that have a marker, ascending."""
        return self._log.numbers(paths.markers(self.folder))

    @cached_property
    def marker(self) -> Marker | None:
        """The newest marker; None if there is none. It is looked for again if a newer one has replaced it."""
        if not self.markers:
            return None
        path = paths.marker(self.folder, self.markers[-1])
        return self._log.find(Marker, path) or newest_marker(self._log, self.folder)

    @property
    def through(self) -> int:
        """The newest batch that it has; -1 if none. The markers of a retired sink are deleted: its record tells."""
        if self.marker is not None or not self.is_retired:
            return self.marker.batch_id if self.marker else NOTHING
        return self._log.require(RetiredRecord, paths.retired(self.folder)).through

    @property
    def term(self) -> int:
        """The newest term of its committer; 0 if there was none."""
        return self._wal.newest_term(self._role)

    @cached_property
    def holder(self) -> Holder | None:
        """The process that holds this term."""
        return holder_of(self._log, self._role, self.term) if self.term else None

    def registration(self, younger: str | None) -> SinkRecord | None:
        """Its registration; None if there is none. Raises `CorruptError` if `younger` exists, which comes after it."""
        if self._record is None and younger is not None:
            return find_again(self._log, SinkRecord, paths.sink(self.folder), Lost.SINK, younger)
        return self._record

    @cached_property
    def _record(self) -> SinkRecord | None:
        return self._log.find(SinkRecord, paths.sink(self.folder))

    @cached_property
    def letters(self) -> list[str]:
        """Everything below its folder of dead letters, as `<batch>/<file>`."""
        return self._log.store.list(paths.dead_letter_batches(self.folder), recursive=True)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch as its folder shows it, with the manifest that counts."""

    batch_id: int
    names: Sequence[str]
    """Names in its folder; those of folders end in `/`."""
    attempts: int
    """Those with a manifest."""
    manifest: Manifest | None = None
    """The released one, else the highest. None: the batch is being staged, it was collected meanwhile, its manifest was
    lost, or `error` tells why it cannot be read.
    """
    release: Release | None = None
    error: CorruptError | ConfigError | None = None
    """Its records are damaged, or a newer version wrote them."""

    def whole(self) -> StagedBatch:
        """The batch. Raises the error that it has."""
        if self.error is not None:
            raise self.error
        return self


def find_staged(log: Log, batch_id: int) -> StagedBatch:
    """A batch, while others write to the WAL and collect from it. One listing and one or two reads.

    Raises `StoreError`. Damaged records are an answer, so that the other batches can be shown.
    """
    names = log.store.list(paths.batch(batch_id))
    manifests = sorted(name for name in map(paths.parse_manifest, names) if name is not None)
    try:
        release = log.find(Release, paths.release(batch_id)) if "release.json" in names else None
        counts = (release.term, release.attempt) if release else max(manifests, default=None)
        manifest = log.find(Manifest, paths.manifest(batch_id, *counts)) if counts else None
    except (CorruptError, ConfigError) as error:
        return StagedBatch(batch_id, names, len(manifests), error=error)
    return StagedBatch(batch_id, names, len(manifests), manifest, release)


@dataclass(slots=True)
class SinkFacts:
    """A sink, as listings and its registration show it."""

    folder: str
    """Its first name."""
    names: frozenset[str]
    """Names in its folder."""
    record: SinkRecord | None = None
    markers: frozenset[int] = frozenset()
    """Batches that have a marker."""
    marked_through: int = NOTHING
    """The newest of them."""
    progress: frozenset[int] = frozenset()
    """Batches of which it has progress."""

    @property
    def first_batch(self) -> int:
        """The first batch that it gets, as far as that is known."""
        return self.record.first_batch if self.record else 0

    @property
    def has_gaps(self) -> bool:
        """Whether it may have some batches only: the sink of a catch-up, or a retired one."""
        return paths.RETIRED in self.names or (self.record is not None and self.record.is_holder)

    @property
    def groups(self) -> bool:
        """Whether several of its batches may share a marker."""
        record = self.record
        return record is None or record.is_rolled or (record.sink_kind == "idempotent" and not record.at_most_once)


@dataclass(slots=True)
class Terms:
    """The terms of a role, as far as they were read."""

    runs: dict[int, str] = field(default_factory=dict)
    """By term: the run that claimed it; empty if that cannot be read."""
    newest: dict[str, int] = field(default_factory=dict)
    """By run: the newest term that it claimed."""
    is_certain: bool = True
    """Whether each term was claimed by another run. A claim fills in lower terms that were lost, in its name."""

    def note(self, number: int, run_id: str) -> None:
        self.is_certain = self.is_certain and bool(run_id) and run_id not in self.newest
        self.runs[number] = run_id
        self.newest[run_id] = max(number, self.newest.get(run_id, 0))


@dataclass(slots=True)
class Known:
    """Knowledge of a WAL so far. Everything in it was read; an object that it lacks may exist by now."""

    log: Log
    wal: WalRecord | None = None
    low_water: int = NOTHING
    low_record: LowWater | None = None
    batches: list[int] = field(default_factory=list)
    """The batches above low water, ascending."""
    held: frozenset[int] = frozenset()
    """The same."""
    sinks: dict[str, SinkFacts] = field(default_factory=dict)
    """By folder, without forgotten ones and names that lead to other folders."""
    terms: dict[str, Terms] = field(default_factory=dict)
    """By role."""

    def is_collected(self, batch_id: int) -> bool:
        """Whether the objects of a batch may be gone. One listing, unless that is known."""
        if batch_id > self.low_water:
            self.low_water = max(self.low_water, self.log.low_water())
        return batch_id <= self.low_water


class Look:
    """One look. Its findings count only once a second look has them too."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.log = known.log
        self.found: list[Finding] = []
        self.seen = Seen()

    def fault(self, fault: Fault, path: str, what: str) -> None:
        """Note a fault of the object under a path."""
        batch = _BATCH.search(path)
        sink = paths.sink_of(path) or None
        self.found.append(Finding(fault, path, what, int(batch[1]) if batch else None, sink))

    def listed(self, kind: type[R], path: str) -> R | None:
        """The record under a path that a listing showed; None if it is damaged, or gone for a good reason."""
        return self.required(kind, path, _LISTED)

    def required(self, kind: type[R], path: str, because: str) -> R | None:
        """The record under a path, which must exist; None if it is damaged, or gone."""
        data = self.data(path, because)
        return None if data is None else self._decoded(kind, path, data)

    def find(self, kind: type[R], path: str) -> R | None:
        """The record under a path, if there is one and if it is not damaged."""
        data = self._read(path)
        return None if data is None else self._decoded(kind, path, data)

    def data(self, path: str, because: str = _LISTED) -> bytes | None:
        """The bytes of an object that must exist; None if it is gone. That is a fault unless it was deleted in order.

        It is read twice before that, since the first answer of a store may be stale.
        """
        data = self._read(path)
        if data is None:
            data = self._read(path)
        if data is None and not self.may_be_gone(path):
            self.fault(Fault.LOST, path, f"this object is gone, but it must exist: {because}")
        return data

    def may_be_gone(self, path: str) -> bool:
        """Whether an object may have been deleted in order. Up to two listings."""
        kind, batch = kind_of(path), _BATCH.search(path)
        lives = kind.lives if kind else Lives.FREELY
        if lives is Lives.FREELY:
            return True
        if lives is Lives.UNTIL_COLLECTED and batch and self.known.is_collected(int(batch[1])):
            return True
        sink = paths.sink_of(path)
        return bool(sink) and paths.FORGOTTEN in self.log.store.list(f"{paths.SINKS}/{sink}")

    def object(self, path: str) -> None:
        """Check an object that a listing showed, by its kind alone. One read, unless it is no record."""
        kind = kind_of(path)
        if kind is None:
            self.unknown(path)
        elif kind.record is not None:
            self.listed(kind.record, path)

    def folder(self, folder: str) -> None:
        """Check every object in a folder by its kind alone. One listing, and the reads of `object`."""
        for name in self.log.store.list(folder, recursive=True):
            self.object(f"{folder}/{name}")

    def numbers(self, folder: str, *, of_folders: bool = False) -> list[int]:
        """The numbers in the names of records (or folders) in a folder, ascending. One listing. Other names are noted
        as unknown.
        """
        found: list[int] = []
        for name in self.log.store.list(folder):
            path, number = f"{folder}/{name}", paths.parse_number(name)
            if number is None or not (_is_folder_of(name, number) if of_folders else kind_of(path)):
                self.unknown(path)
            else:
                found.append(number)
        return sorted(found)

    def series(self, kind: type[R], folder: str, path_of: Callable[[int], str]) -> Iterator[R | None]:
        """Each record of a series that is numbered from 1, as `listed` gives it. It ends at the first that is gone."""
        for expected, number in enumerate(self.numbers(folder), 1):
            if number != expected:
                self.fault(Fault.LOST, path_of(expected), f"{path_of(number)} is made after it")
                return
            yield self.listed(kind, path_of(number))

    def released(self, batch_id: int) -> Manifest | None:
        """The released manifest of a batch, if the WAL holds it. Faults of both records are told with their batch."""
        quiet = Look(self.known)
        release = quiet.find(Release, paths.release(batch_id))
        path = paths.manifest(batch_id, release.term, release.attempt) if release else None
        return quiet.find(Manifest, path) if path else None

    def unknown(self, path: str) -> None:
        """Note an object, or a folder that ends in `/`, that this version does not know."""
        self.fault(Fault.UNKNOWN, path, "wal-sink makes no object with such a name")

    def check_term(self, role: str, record: OfATerm, path: str) -> None:
        """Compare the term and the run of a record with the role's terms."""
        term, found = paths.term(role, record.term), self.run_of(role, record.term)
        if found is None:
            self.fault(Fault.LOST, term, f"{path} names this term")
        elif found not in {"", record.run_id}:
            what = f"run {record.run_id} wrote it under term {record.term}, but {term} says that run {found} held it"
            self.fault(Fault.FOREIGN, path, what)

    def of_term(self, kind: type[T], path: str, role: str) -> T | None:
        """The same as `listed`, of a record whose term and run are compared with the role's terms."""
        record = self.listed(kind, path)
        if record is not None:
            self.check_term(role, record, path)
        return record

    def run_of(self, role: str, term: int) -> str | None:
        """The run that claimed a term, empty if that is not certain; None if there is no such term.

        A term that is not known yet is looked for now. A term whose run claimed a later one too says nothing: a claim
        fills in lower terms that were lost.
        """
        terms = self.terms_of(role)
        if term not in terms.runs:
            self._read_new_terms(role)
        run_id = terms.runs.get(term)
        return "" if run_id is not None and terms.newest[run_id] > term else run_id

    def may_be_holder(self, role: str, run_id: str) -> bool:
        """Whether a run may have claimed a term of a role. If it is not known yet, new terms are read."""
        terms = self.terms_of(role)
        if run_id not in terms.newest:
            self._read_new_terms(role)
        return run_id in terms.newest or not terms.is_certain

    def terms_of(self, role: str) -> Terms:
        """The terms of a role that were read so far."""
        return self.known.terms.setdefault(role, Terms())

    def note_term(self, role: str, number: int) -> None:
        """Read a term that was listed."""
        record = self.listed(TermRecord, paths.term(role, number))
        self.terms_of(role).note(number, record.run_id if record else "")

    def _read_new_terms(self, role: str) -> None:
        known = self.terms_of(role).runs
        for number in self.log.numbers(paths.terms(role)):
            if number not in known:
                self.note_term(role, number)

    def _read(self, path: str) -> bytes | None:
        try:
            return self.log.store.read(path)
        except ObjectMissing:
            return None

    def _decoded(self, kind: type[R], path: str, data: bytes) -> R | None:
        self.seen.records += 1
        try:
            record = decode(kind, data, path)
        except CorruptError as error:
            self.fault(Fault.DAMAGED, path, str(error))
            return None
        except ConfigError as error:
            self.fault(Fault.NEWER, path, str(error))
            return None
        if not belongs(record, path):
            self.fault(Fault.MISPLACED, path, f"this {kind.kind} record (id {record.id}) was written for another path")
            return None
        return record


def _is_folder_of(name: str, batch_id: int) -> bool:
    return name == f"{batch_id:0{paths.BATCH_DIGITS}d}/"

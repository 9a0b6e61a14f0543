"""`Check`: all checks of a WAL, part by part. Memory and the number of requests are bounded by the largest batch.

The root first, then which sinks there are, each batch, and what is left of each sink.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

from wal_sink.errors import CorruptError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import BegunRecord, LowWater, Marker, Move, SinkRecord, TokenRecord, WalRecord
from wal_sink.log.sink_records import EndedRecord, NameRecord, OwnerRecord, RenamedRecord, RetiredRecord
from wal_sink.log.terms import MOST_FILLED
from wal_sink.operate.findings import Fault, Finding, Findings, in_both
from wal_sink.operate.kinds import OF_A_SINK, TOP, kind_of
from wal_sink.operate.look import Known, Look, SinkFacts
from wal_sink.operate.verify_batch import BatchFacts, check_batch, check_deliveries, check_letters, check_progress
from wal_sink.protocol.inventory import sink_folders, take
from wal_sink.protocol.location import canonical, current_location
from wal_sink.stores.base import Store
from wal_sink.support.clock import SYSTEM

_APART_IN_ROOT = frozenset(
    {paths.WAL, *(f"{each}/" for each in (paths.TERMS, paths.MOVES, paths.LOW_WATER, paths.BATCHES, paths.SINKS))}
)
"""Names in the root whose objects are compared with others. Any other object only has to be whole."""
_OF_A_NAME = frozenset({paths.RENAMED, paths.OWNER})
"""Objects of a name that leads to another folder."""
_APART_OF_SINK = frozenset(
    {paths.SINK_RECORD, paths.RETIRED, paths.FORGOTTEN}
    | {f"{name}/" for name in (paths.NAMES, "progress", "markers", "dead-letters", "begun")}
)
"""Names whose objects are compared with others. Any other object of a sink only has to be whole."""
OnBatch = Callable[[int, int], None]


def check_root(look: Look) -> None:
    """Check the root, and read what the other checks need. Raises `ConfigError` for the folder of a checkpoint."""
    look.known.terms.clear()
    look.known.low_record = None
    top = frozenset(look.log.store.list(""))
    look.known.wal = _wal(look, top)
    for name in sorted(top - TOP - {""}):
        look.unknown(name)
    for name in sorted(top & TOP - _APART_IN_ROOT):
        look.folder(name.rstrip("/"))
    if f"{paths.TERMS}/" in top:
        _check_terms(look)
    if f"{paths.MOVES}/" in top:
        _check_moves(look)
    _check_low_water(look)
    check_batches(look)


def _wal(look: Look, top: frozenset[str]) -> WalRecord | None:
    if paths.WAL in top:
        return look.listed(WalRecord, paths.WAL)
    try:
        return take(look.log).wal
    except CorruptError as error:
        look.fault(Fault.LOST, paths.WAL, str(error))
        return None


def _check_terms(look: Look) -> None:
    """Every term of every role, and the records that one ended. One listing, one read a record."""
    numbers: dict[str, list[int]] = {}
    ended: list[tuple[str, int]] = []
    for name in look.log.store.list(paths.TERMS, recursive=True):
        kind, (role, _, file) = kind_of(f"{paths.TERMS}/{name}"), name.partition("/")
        number = paths.parse_number(file.removesuffix(".ended.json"))
        if kind is None or number is None:
            look.unknown(f"{paths.TERMS}/{name}")
        elif kind.record is EndedRecord:
            ended.append((role, number))
        else:
            numbers.setdefault(role, []).append(number)
    for role, found in numbers.items():
        for number in found:
            look.note_term(role, number)
        _check_gaps(look, role, sorted(found))
    for role, number in ended:
        _check_ended(look, role, number)


def _check_gaps(look: Look, role: str, found: Sequence[int]) -> None:
    """A holder looks at the next number only, so a missing one is a fault: unless it is so far below the highest that
    a claim above lost terms did not fill it in.
    """
    known = set(found)
    lost = [number for number in range(max(1, found[-1] - MOST_FILLED), found[-1]) if number not in known]
    if lost:
        path = paths.term(role, lost[0])
        higher = paths.term(role, found[-1])
        look.fault(Fault.LOST, path, f"{len(lost)} terms of this role are gone, from this one on, but {higher} exists")


def _check_ended(look: Look, role: str, number: int) -> None:
    path = paths.ended(role, number)
    record = look.listed(EndedRecord, path)
    if record is None:
        return
    run_id = look.run_of(role, number)
    if run_id is None:
        look.fault(Fault.DANGLING, path, f"this term ended, but {paths.term(role, number)} does not exist")
    elif run_id not in {"", record.run_id}:
        look.fault(
            Fault.FOREIGN, path, f"run {record.run_id} ended this term, but {paths.term(role, number)} says {run_id}"
        )


def _check_moves(look: Look) -> None:
    """The records of moves: each from where the one before led to."""
    at = look.known.wal.location if look.known.wal else ""
    for record in look.series(Move, paths.MOVES, paths.move):
        if record is None:
            return
        if at and record.moved_from != at:
            what = f"the WAL was moved from {record.moved_from}, but according to the record before, it lay at {at}"
            look.fault(Fault.CONTRADICTION, paths.move(record.number), what)
        at = record.location


def _check_low_water(look: Look) -> None:
    """Every low-water record. The newest says which batches each sink had."""
    known = look.known
    for number in look.numbers(paths.LOW_WATER):
        known.low_record = look.listed(LowWater, paths.low_water(number)) or known.low_record
        known.low_water = max(known.low_water, number)


def check_batches(look: Look) -> None:
    """Which batches there are: from the one after low water on, without a gap. Up to 2 listings."""
    known, low_water = look.known, look.known.low_water
    found = look.numbers(paths.BATCHES, of_folders=True)
    known.batches = [number for number in found if number > low_water]
    known.held = frozenset(known.batches)
    look.seen.leftovers = len(found) - len(known.batches)
    if known.wal is None or not known.batches:
        return
    before = max(low_water, known.wal.first_batch - 1)
    for earlier, later in pairwise([before, *known.batches]):
        if later > earlier + 1 and not known.is_collected(later - 1):
            _tell_gap(look, earlier + 1, later)


def _tell_gap(look: Look, first: int, later: int) -> None:
    if first in look.log.numbers(paths.BATCHES, after=first - 1):
        return  # the listing of the batches was older than this one
    which = f"batch {first}" if first == later - 1 else f"batches {first} to {later - 1}"
    look.fault(
        Fault.LOST,
        f"{paths.batch(first)}/",
        f"{which} must exist, since {paths.batch(later)}/ is younger and low water is at {look.known.low_water}, or "
        f"the newest record of {paths.LOW_WATER}/ is gone",
    )


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
    for name in sorted(sink.names & OF_A_SINK - _APART_OF_SINK):
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
        look.of_term(Marker, paths.marker(sink.folder, number), paths.committer_role(sink.folder))
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


class Comparison(Protocol):
    """A comparison of a WAL with something outside of it."""

    def whole(self, look: Look) -> None:
        """Compare what is told of the whole WAL. Called once the WAL's own records were read."""
        ...

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Compare one batch."""
        ...

    def left_out(self) -> list[str]:
        """Parts that could not be compared, each with the reason."""
        ...


class Check:
    """A check of one WAL. It reads only, and claims nothing.

    `batches`: those to check, as far as the WAL holds them. `left_out`: what the caller does not compare.
    """

    def __init__(
        self,
        store: Store | Log,
        batches: range = range(sys.maxsize),
        *,
        reads_segments: bool = True,
        comparisons: Sequence[Comparison] = (),
        left_out: Sequence[str] = (),
        on_batch: OnBatch = lambda _done, _total: None,
    ) -> None:
        self.log = store if isinstance(store, Log) else Log(store, SYSTEM, run_id="")
        self.known = Known(self.log)
        self.found = Findings(self.log.store.root)
        self._range = batches
        self._reads_segments = reads_segments
        self._comparisons = comparisons
        self._left_out = left_out
        self._on_batch = on_batch

    def run(self) -> list[Finding]:
        """Check part by part, and return `found.faults`. If it ends early, `found` holds what it found before.

        Raises `StoreError`, and `ConfigError` for the folder of a checkpoint.
        """
        try:
            self._run()
        finally:
            told = (line for comparison in self._comparisons for line in comparison.left_out())
            self.found.not_compared = [*self._left_out, *told]
        return self.found.faults

    def _run(self) -> None:
        self._look(check_root)
        self._locate()
        self._look(check_sinks)
        for comparison in self._comparisons:
            self._look(comparison.whole)
        wanted = [batch_id for batch_id in self.known.batches if batch_id in self._range]
        self._on_batch(0, len(wanted))
        for done, batch_id in enumerate(wanted, 1):
            self._look(partial(self._batch, batch_id=batch_id))
            self.found.through = batch_id
            self._on_batch(done, len(wanted))
        for folder in list(self.known.sinks):
            self._look(partial(check_sink, folder=folder))
            self._letters(folder)
        self.found.complete = True

    def _locate(self) -> None:
        """Compare the place that the WAL records with its own. One listing, and a read if there are moves."""
        if self.known.wal is None:
            return
        self.found.exists = True
        with contextlib.suppress(WalSinkError):  # the check itself tells of damaged records
            said = current_location(self.log, self.known.wal, moved=True)
            self.found.recorded_location = None if said == canonical(self.log.store.root) else said

    def _batch(self, look: Look, batch_id: int) -> None:
        facts = check_batch(look, batch_id, reads_segments=self._reads_segments)
        check_deliveries(look, facts)
        for comparison in self._comparisons:
            comparison.batch(look, facts)

    def _letters(self, folder: str) -> None:
        batches: list[int] = []

        def listed(look: Look) -> None:
            batches[:] = look.numbers(paths.dead_letter_batches(folder), of_folders=True)

        if "dead-letters/" in self.known.sinks[folder].names:
            self._look(listed)
        for batch_id in [number for number in batches if number in self._range]:
            self._look(partial(check_letters, folder=folder, batch_id=batch_id))

    def _look(self, check: Callable[[Look], None]) -> None:
        """Look at a part. Its findings are those that two looks agree on."""
        look = Look(self.known)
        check(look)
        first = look.found
        if first:
            look = Look(self.known)
            check(look)
        self.found.seen.add(look.seen)
        self.found.add(in_both(first, look.found))


def holds_wal(store: Store) -> bool:
    """Whether a folder holds anything that wal-sink makes. One listing. Raises `ConfigError` for a checkpoint."""
    if TOP.isdisjoint(store.list("")):
        take(Log(store, SYSTEM, run_id=""))
        return False
    return True

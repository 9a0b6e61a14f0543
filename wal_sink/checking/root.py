"""Checks of what belongs to no batch and no sink: the WAL's own record, terms, moves, low water, unknown objects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from wal_sink.checking.findings import Fault
from wal_sink.checking.kinds import TOP, kind_of
from wal_sink.checking.look import Look
from wal_sink.errors import CorruptError
from wal_sink.recovery.inventory import take
from wal_sink.wal import paths
from wal_sink.wal.fencing import MOST_FILLED
from wal_sink.wal.records import LowWater, Move, WalRecord
from wal_sink.wal.sink_records import EndedRecord

_READ_APART = frozenset({paths.WAL, *(f"{each}/" for each in (
    paths.TERMS, paths.MOVES, paths.LOW_WATER, paths.BATCHES, paths.SINKS))})  # fmt: skip
"""Names in the root whose objects are compared with others. Any other object only has to be whole."""


def check_root(look: Look) -> None:
    """Check the root, and read what the other checks need. Raises `ConfigError` for the folder of a checkpoint."""
    look.known.terms.clear()
    look.known.low_record = None
    top = frozenset(look.log.store.list(""))
    look.known.wal = _wal(look, top)
    for name in sorted(top - TOP - {""}):
        look.unknown(name)
    for name in sorted(top & TOP - _READ_APART):
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
            what = f"the WAL was moved from {record.moved_from}, but it lay at {at} by the record before this one"
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

"""Examining the batches that matter next: a part of what `verify` and `audit` find, by a bounded number of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wal_sink.checking.against_checkpoint import AgainstCheckpoint
from wal_sink.checking.batch import check_batch
from wal_sink.checking.findings import Fault, in_both
from wal_sink.checking.findings import Finding as Wrong
from wal_sink.checking.look import Known, Look
from wal_sink.checking.root import check_batches
from wal_sink.checking.sink import check_sinks
from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.inspection import Status
from wal_sink.reporting.counts import counted, in_ranges
from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.reporting.texts import told
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import WalRecord

NEXT = 12
"""So many batches are examined, beginning with the one that the slowest sink gets next."""
NEWEST = 2
"""So many of the newest batches are examined, too."""
_CHECKPOINT = frozenset({Fault.OTHER_QUERY, Fault.ROLLED_BACK, Fault.DIVERGED, Fault.CHECKPOINT})
"""Faults of the checkpoint. All others are of the WAL."""


@dataclass(slots=True)
class Contents:
    """Findings about the batches of a WAL."""

    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Parts that were not looked at, each with the command that does."""


def examine_contents(store: Store, status: Status, files: CheckpointFiles | None, runtime: Runtime) -> Contents:
    """Look for lost, damaged and contradicting objects of the batches that matter next. Writes nothing.

    `files`: the WAL's checkpoint; None if it cannot be compared. Up to 18 listings, a few requests for each sink, and
    for each of up to 16 batches a listing and a read for each record; all of it again if something is wrong.
    """
    log = Log(store, runtime, run_id="")
    examined = Contents()
    try:
        examination = _Examination(log, log.require(WalRecord, paths.WAL), status, files)
        first = examination.look()
        found = in_both(first, examination.look()) if first else []
    except WalSinkError as failure:
        examined.findings.append(fault("wal.batches", told(failure), "see the message and docs/troubleshooting.md"))
        examined.left_out.append("the other batches of the WAL (wal-sink audit)")
        return examined
    examined.findings += _lines(found)
    told_of = {one.check for one in examined.findings}
    examined.findings += [one for one in examination.healthy() if one.check not in told_of]
    examined.left_out += examination.left_out()
    return examined


class _Examination:
    """The batches that are examined, and the looks at them."""

    def __init__(self, log: Log, wal: WalRecord, status: Status, files: CheckpointFiles | None) -> None:
        self._known = Known(log, wal, low_water=status.low_water)
        self._files = files
        self._chosen: list[int] = []
        self._comparison: AgainstCheckpoint | None = None

    def look(self) -> list[Wrong]:
        """All findings of one look. The WAL is read before the checkpoint, which is ahead of it."""
        look = Look(self._known)
        check_batches(look)
        check_sinks(look)
        self._chosen = self._choose()
        self._comparison = AgainstCheckpoint(self._files) if self._files is not None else None
        if self._comparison is not None:
            self._comparison.whole(look)
        for batch_id in self._chosen:
            facts = check_batch(look, batch_id, reads_segments=False, reads_terms=False)
            if self._comparison is not None:
                self._comparison.batch(look, facts)
        return look.found

    def healthy(self) -> Iterator[Finding]:
        """The lines of an examination that found nothing."""
        which = _ranges(self._chosen)
        whole = f"nothing is missing of {which}" if which else "the WAL holds no batch now"
        yield fine("wal.batches", whole)
        if self._comparison is not None:
            same = f", and has the input of {which} as it was staged" if which else ""
            yield fine("checkpoint.batches", f"the checkpoint is not older than the WAL{same}")

    def left_out(self) -> list[str]:
        """Parts that were not looked at."""
        others = [batch_id for batch_id in self._known.batches if batch_id not in self._chosen]
        more = self._comparison.left_out() if self._comparison is not None else []
        parts = [f"{_ranges(others)} of the WAL"] if others else []
        return [*more, *(f"{part} (wal-sink audit)" for part in [*parts, "the bytes of segments"])]

    def _choose(self) -> list[int]:
        held = self._known.batches
        active = [sink for sink in self._known.sinks.values() if not sink.has_gaps]
        through = min((max(sink.marked_through, sink.first_batch - 1) for sink in active), default=NOTHING)
        following = [batch_id for batch_id in held if batch_id > through][:NEXT]
        wanted = {*following, *held[-NEWEST:], *self._of_the_checkpoint()}
        return sorted(wanted & self._known.held)

    def _of_the_checkpoint(self) -> Iterator[int]:
        """The batch that Spark runs next if the query starts, and the one before it."""
        if self._files is not None:
            checkpoint = Checkpoint(self._files)
            yield checkpoint.newest_planned()
            yield checkpoint.newest_commit()


def _lines(wrong: Iterable[Wrong]) -> Iterator[Finding]:
    """A line for each sort of fault: its first finding, and how many more there are."""
    by_fault: dict[Fault, list[Wrong]] = {}
    told_of: set[str] = set()
    for one in wrong:
        if one.fault is not Fault.MISSING_BATCH or one.where not in told_of:  # the checkpoint shows the same loss
            by_fault.setdefault(one.fault, []).append(one)
        told_of.add(one.where)
    for sort, (first, *others) in by_fault.items():
        check = "checkpoint.batches" if sort in _CHECKPOINT else "wal.batches"
        more = f" ({counted(len(others), 'more fault')} of this sort: wal-sink audit)" if others else ""
        line = risk if sort is Fault.UNKNOWN else fault
        yield line(check, f"{sort}: {first.where}: {first.what}{more}", _uncapitalised(first.next_step))


def _uncapitalised(step: str) -> str:
    return f"{step[:1].lower()}{step[1:]}"


def _ranges(batches: list[int]) -> str:
    """Batches in words: `batches 3-5, 9`; empty if there is none."""
    if not batches:
        return ""
    return f"{'batch' if len(batches) == 1 else 'batches'} {', '.join(in_ranges(batches))}"

"""Findings: what a check found wrong, and the next step for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum


class Fault(StrEnum):
    """The sorts of faults."""

    DAMAGED = "damaged"
    """The bytes of an object are not the ones that were written."""
    LOST = "lost"
    """An object that must exist is gone."""
    MISPLACED = "misplaced"
    """An object was written for another path."""
    CONTRADICTION = "contradiction"
    """Two objects do not agree."""
    FOREIGN = "foreign"
    """An object belongs to another WAL."""
    DANGLING = "dangling"
    """An object names another one that does not exist."""
    UNKNOWN = "unknown"
    """No version of wal-sink that this one knows makes such an object."""
    NEWER = "newer"
    """A newer version of wal-sink wrote the object."""
    OTHER_QUERY = "other-query"
    """The checkpoint belongs to another query."""
    ROLLED_BACK = "rolled-back"
    """The checkpoint is older than the WAL."""
    MISSING_BATCH = "missing-batch"
    """Spark completed a batch that the WAL does not hold."""
    DIVERGED = "diverged"
    """The checkpoint has other source offsets under a batch id that the WAL knows."""
    CHECKPOINT = "checkpoint"
    """The checkpoint cannot be read as it must be."""
    TARGET_BEHIND = "target-behind"
    """The target lacks rows that a marker stands for."""
    TARGET_AHEAD = "target-ahead"
    """The target has rows that the WAL did not deliver, or does not know any more."""
    TARGET_OTHER = "target-other"
    """The target has rows of another history, or gave an answer that cannot be right."""


_FROM = "from a copy, a snapshot or an earlier version in the bucket"
_RESTORE = f"Restore the object {_FROM}"
_STOP = "Find out what deletes objects here (most often a life-cycle rule of the bucket) and stop it first"
NEXT = {
    Fault.DAMAGED: f"{_RESTORE}. Do not delete it. Check the disk or bucket, since other objects may be damaged too",
    Fault.LOST: f"{_STOP}. {_RESTORE}. If there is none, and a sink waits for this batch: wal-sink skip WAL "
    "BATCH --name SINK gives up its rows for that sink",
    Fault.MISPLACED: f"Find out who copied or renamed objects here. Restore the right object {_FROM}",
    Fault.CONTRADICTION: "Find out which of the two objects is the right one, and restore the other from a copy",
    Fault.FOREIGN: f"Find out who copied objects of another WAL here. Restore the object of this WAL {_FROM}",
    Fault.DANGLING: "Nothing reads this object any more. Restore the object that it names if it is needed; otherwise "
    "ignore this",
    Fault.UNKNOWN: "If a newer version of wal-sink wrote it, check with that version. Otherwise move it out of the WAL",
    Fault.NEWER: "Check this WAL with the version of wal-sink that wrote the object",
    Fault.OTHER_QUERY: "Pass the checkpoint of the query that owns this WAL, or restore it. If it is lost: wal-sink "
    "settle WAL FOLDER",
    Fault.ROLLED_BACK: "Restore a newer checkpoint before you start the query. If the input is the same as before, "
    "Spark may also run the batches again: wal-sink recognises them, and refuses any that differ",
    Fault.MISSING_BATCH: "Restore the objects of the batch. Without them, later batches wait (HistoryError)",
    Fault.DIVERGED: "Do not start the query now. Restore the checkpoint that belongs to this WAL, or deliver what this "
    "WAL holds (wal-sink settle WAL FOLDER, then a drain) and start a new WAL",
    Fault.CHECKPOINT: "Restore the checkpoint",
    Fault.TARGET_BEHIND: "Stop the delivery to this sink. Restore the newer target, or deliver the lost batches again "
    "while the WAL still holds them: wal-sink catch-up WAL --name SINK --to TARGET",
    Fault.TARGET_AHEAD: "Stop the delivery to this sink. Find out whether a copy of this WAL delivers too, or whether "
    "the WAL was restored to an older state. Restore the newer WAL",
    Fault.TARGET_OTHER: "Stop the delivery to this sink. Find out which program or WAL wrote to these slots",
}
"""The next step for each sort of fault."""


MOST_KEPT = 1000
"""Findings that are kept. More are counted, so that a WAL with a fault in every object needs no more memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    fault: Fault
    where: str
    """Path in the WAL, or the address of another place."""
    what: str
    """A sentence: what was found, and why it is wrong."""
    batch_id: int | None = None
    sink: str | None = None
    """Folder of the sink: its first name."""
    next_step: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "next_step", NEXT[self.fault])

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same fault, when it is looked at again."""
        return self.fault, self.where, self.batch_id, self.sink


@dataclass(slots=True)
class Seen:
    """Counts of what was looked at. Nothing here is a fault."""

    records: int = 0
    """Records whose checksum was compared."""
    batches: int = 0
    rows: int = 0
    """Rows in the segments that were read."""
    segments: int = 0
    """Segments that were read as a whole."""
    bytes: int = 0
    """Their bytes."""
    dead_letters: int = 0
    unreleased_batches: int = 0
    """Batches that are staged, or are being staged, and not released."""
    superseded_attempts: int = 0
    """Complete attempts that will never be delivered, since another one counts."""
    unfinished_attempts: int = 0
    """Attempts without a manifest: they are under way, or the process ended."""
    debris_objects: int = 0
    """Objects of these attempts, and files of tasks that failed. They go with their batch."""
    skipped_batches: int = 0
    """Batches that a sink passed over, as a person ordered."""
    leftovers: int = 0
    """Batches that are delivered everywhere, and whose objects are being deleted."""

    def add(self, other: Seen) -> None:
        """Add the counts of another part."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Findings:
    """The result of a check, or of a part of it. `--json` prints these fields."""

    wal: str
    exists: bool = False
    """Whether the WAL has a `wal.json` that can be read."""
    recorded_location: str | None = None
    """The place that the WAL records, if it is another one: then this is a copy, or the WAL was moved."""
    faults: list[Finding] = field(default_factory=list)
    """The first `MOST_KEPT`."""
    faults_left_off: int = 0
    seen: Seen = field(default_factory=Seen)
    through: int | None = None
    """The newest batch that was checked. To go on: pass the batches after it."""
    complete: bool = False
    """Whether every part was looked at."""
    not_compared: list[str] = field(default_factory=list)
    """Parts that were not compared, each with the reason."""

    def add(self, found: Iterable[Finding]) -> None:
        """Add the findings of another part."""
        self.faults += found
        self.faults_left_off += len(self.faults[MOST_KEPT:])
        del self.faults[MOST_KEPT:]


def in_both(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of the second look that the first one had too, each once."""
    known = {finding.key for finding in first}
    found = {finding.key: finding for finding in second if finding.key in known}
    return list(found.values())

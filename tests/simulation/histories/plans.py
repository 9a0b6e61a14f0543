"""The parts of a history. They are plain values, so a seed is enough to keep a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

Shape = tuple[tuple[int, ...], ...]
"""Numbers of rows, by batch and partition."""

THREE_BATCHES: Shape = ((5, 3), (2,), (1, 0, 4))
"""Batches with several segments and chunks, with one segment of one chunk, and with an empty partition."""

SENDING: tuple[str, ...] = ("plain", "at_most_once", "idempotent", "lookup", "transactional", "segment", "batch")
"""The kinds of sinks that get their rows after the batch is complete."""
HOLDING = "two_phase"
"""The kind that gets its rows while they are staged, and commits them after the batch is complete."""
COMMITTING = "commit"
"""The kind that shows all rows of a batch in one commit."""
ROLLED = "rolled_"
"""Begins the name of a kind that gets consecutive batches as one roll."""
ROLLING: tuple[str, ...] = (ROLLED + COMMITTING, ROLLED + HOLDING)
"""The kinds of sinks that get rolls of batches."""
KINDS: tuple[str, ...] = (*SENDING, HOLDING, COMMITTING, *ROLLING)
"""Every kind of sink."""

MOST_ATTEMPTS = 3
"""Number of attempts without progress after which a delivery gives up."""

NAMES: tuple[str, ...] = ("default", "other")
"""Names of a history's sinks, in order."""


@dataclass(frozen=True, slots=True)
class At:
    """The n-th point of a life, counted from 1, among those that match `what` and `where`."""

    number: int
    what: str = ""
    """Part of the name of the action, such as "before create", "after" or "sink"."""
    where: str = ""
    """Part of the path or of the key."""

    @property
    def any_point(self) -> bool:
        return not (self.what or self.where)


class Deed(StrEnum):
    """Events that can happen at a point."""

    CRASH = "crash"
    FAIL = "fail"
    """An error. At a point after the effect it is a lost answer."""
    FULL = "full disk"
    """The next `size` creates fail."""
    DELAY = "delay"
    """`size` seconds pass."""
    PAUSE = "pause"
    """The process stands still while others live."""
    LOSE = "lost job"
    """The delivery job under way is given up."""
    LEAVE = "task left behind"
    """The delivery job is given up, but its task only stands still."""
    WAKE = "task woke up"
    """Every task that was left behind goes on."""
    FORGET = "target forgot"
    """Targets that store positions lose the `size` newest commits of all slots together, as a restored backup does."""
    FORGET_SLOT = "slot forgot"
    """They lose the `size` newest commits of one slot."""
    REPLACE = "connection replaced"
    """As `FORGET`, on another copy. This process reaches it from now on, others after they connect again."""
    RESTORE = "restored"
    """Commit targets no longer show their `size` newest commits, and keep the position, as Delta's RESTORE does."""


FORGETTING = frozenset({Deed.FORGET, Deed.FORGET_SLOT, Deed.REPLACE, Deed.RESTORE})
"""Events that happen to targets, not to the process at whose point they happen."""


@dataclass(frozen=True, slots=True)
class Fault:
    deed: Deed
    at: At
    size: int = 0


class Tampering(StrEnum):
    """Changes of the checkpoint between two looks of the process at it."""

    FORGET = "forgotten commit"
    SAME = "rolled back, same offsets"
    OTHER = "rolled back, other offsets"


@dataclass(frozen=True, slots=True)
class Tamper:
    what: Tampering
    through: int = -1
    """The newest batch that a restored checkpoint still has."""


class Losing(StrEnum):
    """The ways in which objects are lost."""

    EXPIRED = "expired, the oldest first"
    PART = "not copied"


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of objects, before a process starts."""

    how: Losing
    share: float = 0.0
    """The share of the objects that has expired, the oldest first."""
    part: str = ""

    def doomed(self, paths: Sequence[str]) -> list[str]:
        """Choose the lost objects among all paths, which come in the order in which they were made."""
        if self.how is Losing.PART:
            return [path for path in paths if fnmatchcase(path, self.part)]
        return list(paths[: int(self.share * len(paths))])


@dataclass(frozen=True, slots=True)
class LifePlan:
    """One process, from its start to its end."""

    faults: tuple[Fault, ...] = ()
    chunk_rows: int = 2
    retention: int = 200
    sinks: int = 1
    """Number of the history's sinks that it serves. With 0 it only stages."""
    stages: bool = True
    """Whether a query runs in it. If not, it drains."""
    lagging: bool = False
    """Whether it delivers only after its query has ended."""
    before: Tamper | None = None
    """The change of the checkpoint before it starts."""
    restart: Tamper | None = None
    """The change of the checkpoint before its query starts a second time in the living process."""
    restarts: bool = False
    forgotten: int = 0
    """Number of newest commits that targets lose before it starts."""
    forgotten_by: Deed = Deed.FORGET
    """How they lose them."""
    loses: Loss | None = None
    """The objects that the WAL loses before it starts."""
    closes_every: int = 1
    """Number of batches after which it closes a roll while its query runs. Its end closes the last one."""
    roll_bytes: int = 1 << 20
    """Bytes of segments that end a roll."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One history. After its acts one more process lives to the end, undisturbed."""

    kinds: tuple[str, ...]
    """Kinds of the sinks."""
    batches: Shape
    acts: tuple[tuple[LifePlan, ...], ...]
    """Acts, one after the other. The lives of one act take turns whenever one of them stands still."""
    last: LifePlan = LifePlan()
    seed: int = 0
    """The seed that it was drawn from."""
    disorder: int = 0
    """If it is not 0, listings and deletions come in any order."""
    two_looks: bool = False
    """Whether a listing takes two looks, between which things may happen."""
    forgets: bool = False
    """Whether two-phase targets lose the rows they hold each time a process begins to deliver."""
    starts_next: bool = False
    """Whether a new sink gets only batches completed from then on. If not, it gets all that the WAL holds."""
    attempts: int = MOST_ATTEMPTS
    parquet: bool = False
    """Whether segments are Parquet files. If not, they name their rows, which costs nothing."""
    uneven: bool = False
    """Whether chunks end where a limit in bytes, not in rows, would end them."""
    call_s: float = 0.0
    """Seconds that each call of a target takes. With 0 a batch is sent before a record by time is due."""
    inline: bool = False
    """Whether partitions are packed into one segment, as small ones are. If not, each has its own segment."""
    in_order: bool = False
    """Whether the segments of a batch are delivered one after the other (`Delivery(max_concurrency=1)`)."""
    answers: bool = False
    """Whether a lost job answers by results, as a copy of a lost task does. If not, it raises an error."""
    refusing: int = 0
    """Number of bad rows of a chunk that such a target rejects at a time. With 0 it rejects none."""

    @property
    def segments(self) -> Shape:
        """Numbers of rows, by batch and segment."""
        if not self.inline:
            return self.batches
        return tuple((sum(partitions),) for partitions in self.batches)

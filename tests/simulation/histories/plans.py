"""What a history is made of: plain values, so that a seed is all that has to be kept of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Shape = tuple[tuple[int, ...], ...]
"""Rows by batch and partition."""

SENDING: tuple[str, ...] = ("plain", "at_most_once", "idempotent", "lookup", "transactional", "segment", "batch")
"""The kinds of sinks that get their rows once the batch is complete."""
HOLDING = "two_phase"
"""The kind that gets them while they are staged, and commits them then."""
KINDS: tuple[str, ...] = (*SENDING, HOLDING)
"""Every kind of sink."""

NAMES: tuple[str, ...] = ("default", "other")
"""Of the sinks of a history, in order."""


@dataclass(frozen=True, slots=True)
class At:
    """The n-th point of a life, counted from 1, of those that are so called and at such a place."""

    number: int
    what: str = ""
    """Part of what is done: "before create", "after", "sink"."""
    where: str = ""
    """Part of the path, or of the key."""

    @property
    def any_point(self) -> bool:
        return not (self.what or self.where)


class Deed(StrEnum):
    """What can happen at a point."""

    CRASH = "crash"
    FAIL = "fail"
    """An error: before the effect or after it (a lost answer), as the point is one before or after."""
    FULL = "full disk"
    """Nothing can be created, `size` times."""
    DELAY = "delay"
    """`size` seconds pass."""
    PAUSE = "pause"
    """The process stands still while others live."""
    LOSE = "lost job"
    """The delivery job under way is given up."""
    LEAVE = "task left behind"
    """The same, but its task only stands still."""
    WAKE = "task woke up"
    """Every task that was left behind goes on."""
    FORGET = "target forgot"
    """Transactional targets lose the `size` newest commits that they acknowledged, of all slots as one point in time.
    """
    FORGET_SLOT = "slot forgot"
    """They lose the newest commits of one slot."""
    REPLACE = "connection replaced"
    """As `FORGET`, on another copy: this process reaches it from now on, others when they connect again."""


FORGETTING = frozenset({Deed.FORGET, Deed.FORGET_SLOT, Deed.REPLACE})
"""What happens to targets, not to the process at whose point it happens."""


@dataclass(frozen=True, slots=True)
class Fault:
    deed: Deed
    at: At
    size: int = 0


class Tampering(StrEnum):
    """What happens to the checkpoint between two looks of the process at it."""

    FORGET = "forgotten commit"
    SAME = "rolled back, same offsets"
    OTHER = "rolled back, other offsets"


@dataclass(frozen=True, slots=True)
class Tamper:
    what: Tampering
    through: int = -1
    """The newest batch that a restored checkpoint still has."""


class Losable(Protocol):
    """What says which objects a WAL loses; see `losing`."""

    @property
    def how(self) -> str: ...
    def doomed(self, paths: Sequence[str]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class LifePlan:
    """One process, from its start to its end."""

    faults: tuple[Fault, ...] = ()
    chunk_rows: int = 2
    retention: int = 200
    sinks: int = 1
    """How many of the history's sinks it serves; 0: it only stages."""
    stages: bool = True
    """Whether a query runs in it; if not, it drains."""
    lagging: bool = False
    """Whether it delivers only once its query has ended."""
    before: Tamper | None = None
    """What happens to the checkpoint before it starts."""
    restart: Tamper | None = None
    """What happens to the checkpoint before its query is started a second time in the living process."""
    restarts: bool = False
    forgotten: int = 0
    """How many of their newest commits transactional targets have lost before it starts."""
    loses: Losable | None = None
    """What the WAL loses before it starts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One history. After its acts one more process lives, undisturbed, to the end."""

    kinds: tuple[str, ...]
    """Of the sinks."""
    batches: Shape
    acts: tuple[tuple[LifePlan, ...], ...]
    """One life after the other; lives of one act take turns, whenever one stands still."""
    last: LifePlan = LifePlan()
    seed: int = 0
    """What it was drawn from."""
    disorder: int = 0
    """Other than 0: listings and deletions come in any order."""
    two_looks: bool = False
    """Whether a listing looks twice, and things may happen in between."""
    forgets: bool = False
    """Whether two-phase targets lose what they hold each time a process begins to deliver."""
    starts_next: bool = False
    """Whether a new sink gets only what is completed from then on; if not, all that the WAL holds."""
    uneven: bool = False
    """Whether chunks are cut where bytes, not rows, would cut them."""
    forgetting: bool = False
    """Whether transactional targets may lose what they acknowledged: see `forgetful`."""
    refusing: int = 0
    """Of how many bad rows of a chunk such a target tells at a time; 0: it refuses none."""

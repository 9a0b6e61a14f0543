"""Transactional targets that lose what they acknowledged: a restart without the newest writes, a lagging standby.

A commit is lost as a whole, rows and position together, the newest first. A target that was replaced goes on as another
copy with an older state. A process that is still connected to the first copy writes rows there that nobody will read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

from tests.simulation.histories.judge import Judge
from tests.simulation.histories.losses import LossJudge
from tests.simulation.histories.plans import Deed
from tests.simulation.histories.segments import ROWS, numbers_in
from tests.simulation.histories.targets import CallingProcess, Target
from wal_sink.sinks.base import Rejected, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry

_BAD_OF_FOUR = (1, 2)
"""Row numbers, modulo 4, that are refused. A chunk of two rows has one such row; a chunk of one row may be one."""


class Client(CallingProcess, Protocol):
    """The process that calls such a target."""

    reconnections: int
    """How often its connections were replaced unseen."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The rows and the position that one transaction wrote."""

    slot: str
    before: LedgerEntry | None
    """The content of the slot before this commit."""
    entry: LedgerEntry
    numbers: list[int]


@dataclass(slots=True)
class ForgetfulTarget(Target):
    """A `Target` that remembers the order of its commits."""

    commits: list[Commit] = field(default_factory=list)
    told_at_a_time: int = 0
    """See `Plan.refusing`."""
    replaced_by: ForgetfulTarget | None = None

    @property
    def losses(self) -> LossJudge:
        return cast("LossJudge", self.judge)

    def copy(self, judge: Judge) -> ForgetfulTarget:
        other = ForgetfulTarget(self.name, judge, self.keys.copy(), self.ledger.copy())
        other.commits, other.told_at_a_time = self.commits.copy(), self.told_at_a_time
        return other

    def current(self) -> ForgetfulTarget:
        """The copy that a new connection reaches."""
        return self if self.replaced_by is None else self.replaced_by.current()

    def commit(self, chunk: Chunk, numbers: list[int]) -> Rejected | None:
        slot = chunk.position.slot
        before = self.ledger.get(slot)
        if LedgerEntry.is_known(before, chunk, self.name):
            return None
        bad = [index for index, number in enumerate(numbers) if number % ROWS % 4 in _BAD_OF_FOUR]
        if bad and self.told_at_a_time:
            return Rejected(dict.fromkeys(bad[: self.told_at_a_time], "it is bad"))
        self.ledger[slot] = LedgerEntry.of(chunk)
        self.commits.append(Commit(slot, before, self.ledger[slot], numbers))
        if self.replaced_by is None:
            self.losses.took_effect(self.name, chunk.key, numbers)
            self.losses.holds(self.name, _ordinal(slot), chunk.position)
        else:
            self.losses.written_unseen(self.name, numbers)
        return None

    def forget(self, most: int, *, slot: str | None = None) -> int:
        """Lose the newest commits, or those of one slot if it is named. Returns how many were lost."""
        doomed = [commit for commit in self.commits if slot in (None, commit.slot)][-most:]
        for commit in reversed(doomed):
            self.commits.remove(commit)
            if commit.before is None:
                del self.ledger[commit.slot]
            else:
                self.ledger[commit.slot] = commit.before
            self.losses.holds(self.name, _ordinal(commit.slot), commit.before.position if commit.before else None)
        self.losses.forgot(self.name, [number for commit in doomed for number in commit.numbers])
        return len(doomed)

    def replace(self, most: int) -> int:
        """Go on as another copy that lacks the newest commits. Returns how many it lacks."""
        self.replaced_by = other = self.copy(self.judge)
        return other.forget(most)

    def forget_of_a_slot(self, most: int, turn: int) -> int:
        """Lose the newest commits of one slot alone. Returns how many were lost."""
        slots = sorted(self.ledger)
        return self.forget(most, slot=slots[turn % len(slots)]) if slots else 0


def _ordinal(slot: str) -> int:
    return int(slot.rpartition("/")[2])


class ForgetfulSink(TransactionalSink):
    """One connection to such a target. Each attempt makes one."""

    def __init__(self, life: Client, target: ForgetfulTarget) -> None:
        self._life = life
        self._target = target
        self._reconnections = life.reconnections

    def open(self, context: SinkContext) -> None:  # noqa: ARG002
        self._target = self._target.current()

    def last(self, slot: str) -> Position | None:
        self._life.point("before last", slot)
        target = self._reached()
        seen = target.replaced_by is None
        target.losses.asked(self._life.number, target.name, _ordinal(slot), seen=seen)
        stored = target.ledger.get(slot)
        return stored.position if stored else None

    def write(self, chunk: Chunk) -> Rejected | None:
        self._life.point("before sink", chunk.key)
        target, numbers = self._reached(), numbers_in(chunk.table)
        target.called(self._life, chunk, numbers)
        answer = target.commit(chunk, numbers)
        self._life.point("after sink", chunk.key)
        return answer

    def _reached(self) -> ForgetfulTarget:
        if self._reconnections != self._life.reconnections:
            self._reconnections = self._life.reconnections
            self._target = self._target.current()
        return self._target


def forget(target: ForgetfulTarget, deed: Deed, size: int, turn: int) -> int:
    """Carry out a deed on a target. Returns how many commits it lost."""
    if deed is Deed.FORGET_SLOT:
        return target.forget_of_a_slot(size, turn)
    return target.replace(size) if deed is Deed.REPLACE else target.forget(size)

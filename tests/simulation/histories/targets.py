"""Targets that outlive processes, and one sink for each ability, through which processes reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar, cast

from tests.house.log import Log, Manifest, load_segment
from tests.house.protocol import DeliveryContext, chunks_of
from tests.house.sinks import (
    BatchCommit,
    BatchSink,
    Chunk,
    CommitPosition,
    CommitSink,
    LedgerEntry,
    Position,
    Rejected,
    ReleasedBatch,
    SegmentSink,
    Sink,
    SinkContext,
    StagedSegment,
    TransactionalSink,
)
from tests.simulation.histories.losses import EMPTY, LossJudge
from tests.simulation.histories.plans import Deed
from tests.simulation.histories.process import Process
from tests.simulation.histories.segments import ROWS, numbers_in
from wal_sink.errors import HandleGoneError
from wal_sink.sinks.base import Transaction, TwoPhaseSink

_BAD_OF_FOUR = (1, 2)
"""Row numbers, modulo 4, that are refused. A chunk of two rows has one such row; a chunk of one row may be one."""


@dataclass(slots=True)
class Target:
    """The contents of one sink's target."""

    name: str
    judge: LossJudge
    keys: set[str] = field(default_factory=set)
    held: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are held back, by transaction."""
    shown: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are committed, by transaction."""

    def copy(self, judge: LossJudge) -> Target:
        held = {number: rows.copy() for number, rows in self.held.items()}
        return Target(self.name, judge, self.keys.copy(), held, self.shown.copy())

    def current(self) -> Target:
        """The copy that a new connection reaches."""
        return self

    def called(self, life: Process, chunk: Chunk, numbers: list[int]) -> None:
        ordinal = int(chunk.position.slot.rpartition("/")[2])
        self.judge.sent(life.number, self.name, numbers, batch_id=chunk.batch_id, ordinal=ordinal, term=chunk.term)
        life.take_time()

    def take(self, chunk: Chunk, numbers: list[int]) -> None:
        self.keys.add(chunk.key)
        self.judge.took_effect(self.name, chunk.key, numbers)


class PlainSink(Sink):
    def __init__(self, life: Process, target: Target) -> None:
        self._life = life
        self._target = target

    def write(self, chunk: Chunk) -> None:
        send(self._life, self._target, chunk, self._put)

    def _put(self, chunk: Chunk, numbers: list[int]) -> None:
        self._target.take(chunk, numbers)


class IdempotentSink(PlainSink):
    idempotent = True

    def _put(self, chunk: Chunk, numbers: list[int]) -> None:
        if chunk.key not in self._target.keys:
            self._target.take(chunk, numbers)


class LookupSink(PlainSink):
    def was_applied(self, key: str) -> bool:
        self._life.point("before lookup", key)
        return key in self._target.keys


class WholeSegmentSink(SegmentSink):
    def __init__(self, life: Process, target: Target) -> None:
        self._life = life
        self._target = target

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:  # noqa: ARG002
        for chunk in chunks:
            send(self._life, self._target, chunk, self._target.take)


class HoldingSink(TwoPhaseSink):
    """A two-phase sink. Its target remembers its commits, so it can tell which transactions were never committed."""

    def __init__(self, life: Process, target: Target) -> None:
        self._life = life
        self._target = target
        self._term = 0
        self._rows: list[int] = []

    def open(self, context: SinkContext) -> None:
        self._term = context.term

    def begin(self, transaction: Transaction) -> str:
        self._life.point("before begin", transaction.id)
        self._rows = self._target.held[transaction.id] = []
        self._life.point("after begin", transaction.id)
        return ""

    def write(self, chunk: Chunk) -> None:
        self._life.point("before hold", chunk.key)
        self._rows += numbers_in(chunk.table)
        self._life.point("after hold", chunk.key)

    def prepare(self) -> str:
        self._life.point("before prepare", "")
        return "a handle"

    def commit(self, transaction: Transaction, handle: str) -> None:
        assert handle == "a handle"
        target, term = self._target, self._term  # it may be opened again before this call goes on
        self._life.point("before sink", transaction.id)
        rows = target.held.get(transaction.id) or target.shown.get(transaction.id)
        if rows is None:
            self._life.met("gone")
            raise HandleGoneError(f"{transaction.id} is gone", never_committed=True)
        target.judge.sent(
            self._life.number,
            target.name,
            rows,
            batch_id=transaction.batch_id,
            ordinal=transaction.partition,
            term=term,
        )
        if target.held.pop(transaction.id, None) is not None:
            target.shown[transaction.id] = rows
            target.judge.took_effect(target.name, transaction.id, rows)
            self._life.met("committed")
        self._life.point("after sink", transaction.id)

    def abort(self, transaction: Transaction, token: str) -> None:  # noqa: ARG002 - the id is enough
        self._life.point("before abort", transaction.id)
        if self._target.held.pop(transaction.id, None) is not None:
            self._life.met("aborted")
        self._life.point("after abort", transaction.id)


P = TypeVar("P", bound=LedgerEntry | CommitPosition)


@dataclass(frozen=True, slots=True)
class Commit(Generic[P]):
    """The rows and the position that one transaction wrote."""

    slot: str
    before: P | None
    """The content of the slot before this commit."""
    entry: P
    numbers: list[int]


@dataclass(slots=True)
class LosingTarget(Target, Generic[P]):
    """A target that stores positions. It may lose what it acknowledged: a restart, a lagging standby.

    A commit is lost as a whole, rows and position together, the newest first. A target that was replaced goes on as
    another copy with an older state. A process that is still connected to the first copy writes rows there that nobody
    will read.
    """

    ledger: dict[str, P] = field(default_factory=dict)
    commits: list[Commit[P]] = field(default_factory=list)
    replaced_by: LosingTarget[P] | None = None

    def copy(self, judge: LossJudge) -> Self:
        return replace(self, judge=judge, ledger=self.ledger.copy(), commits=self.commits.copy(), replaced_by=None)

    def current(self) -> Self:
        """The copy that a new connection reaches."""
        return self if self.replaced_by is None else cast("Self", self.replaced_by.current())

    def store(self, slot: str, entry: P, numbers: list[int], key: str) -> None:
        """Commit rows together with their position."""
        self.commits.append(Commit(slot, self.ledger.get(slot), entry, numbers))
        self.ledger[slot] = entry
        if self.replaced_by is None:
            self.judge.took_effect(self.name, key, numbers)
            self.judge.holds(self.name, _ordinal(slot), _held(entry))
        else:
            self.judge.written_unseen(self.name, numbers)

    def forget(self, most: int, *, slot: str | None = None) -> int:
        """Lose the newest commits, or those of one slot if it is named. Returns how many were lost."""
        doomed = [commit for commit in self.commits if slot in (None, commit.slot)][-most:]
        for commit in reversed(doomed):
            if commit.before is None:
                del self.ledger[commit.slot]
            else:
                self.ledger[commit.slot] = commit.before
        return self._lose(doomed)

    def replace(self, most: int) -> int:
        """Go on as another copy that lacks the newest commits. Returns how many it lacks."""
        self.replaced_by = other = self.copy(self.judge)
        return other.forget(most)

    def forget_of_a_slot(self, most: int, turn: int) -> int:
        """Lose the newest commits of one slot alone. Returns how many were lost."""
        slots = sorted(self.ledger)
        return self.forget(most, slot=slots[turn % len(slots)]) if slots else 0

    def restore(self, most: int) -> int:  # noqa: ARG002
        """Lose the rows of the newest commits, and keep the positions. Returns how many were lost."""
        return 0

    def _lose(self, doomed: list[Commit[P]]) -> int:
        for commit in doomed:
            self.commits.remove(commit)
            self.judge.holds(self.name, _ordinal(commit.slot), _held(self.ledger.get(commit.slot)))
        self.judge.forgot(self.name, [number for commit in doomed for number in commit.numbers])
        return len(doomed)


@dataclass(slots=True)
class LedgerTarget(LosingTarget[LedgerEntry]):
    """A target of a transactional sink."""

    told_at_a_time: int = 0
    """See `Plan.refusing`."""

    def commit(self, chunk: Chunk, numbers: list[int]) -> Rejected | None:
        slot = chunk.position.slot
        if LedgerEntry.is_known(self.ledger.get(slot), chunk, self.name):
            return None
        bad = [index for index, number in enumerate(numbers) if number % ROWS % 4 in _BAD_OF_FOUR]
        if bad and self.told_at_a_time:
            return Rejected(dict.fromkeys(bad[: self.told_at_a_time], "it is bad"))
        self.store(slot, LedgerEntry.of(chunk), numbers, chunk.key)
        return None


class CommitTarget(LosingTarget[CommitPosition]):
    """A target of a commit sink, a table with one slot. A restore shows an earlier state and keeps the position."""

    def restore(self, most: int) -> int:
        doomed, shown = self.commits[-most:], self.commits[:-most]
        if doomed:
            through = shown[-1].entry.batch_id if shown else EMPTY[0]
            self.ledger[_TABLE] = replace(self.ledger[_TABLE], is_shown=False, held_through=through)
        return self._lose(doomed)


_TABLE = "table/0"
"""The slot of a commit target."""


def _ordinal(slot: str) -> int:
    return int(slot.rpartition("/")[2])


def _held(entry: LedgerEntry | CommitPosition | None) -> tuple[int, int]:
    """The newest batch of which a slot holds rows, and their number. A commit has all of them, which count as none."""
    if isinstance(entry, LedgerEntry):
        return entry.position.batch_id, entry.position.rows
    return EMPTY if entry is None else (entry.batch_id if entry.is_shown else entry.held_through, 0)


T = TypeVar("T", bound=LosingTarget[Any])


class _Connection(Sink, Generic[T]):
    """One connection to a target that stores positions. Each attempt makes one."""

    def __init__(self, life: Process, target: T) -> None:
        self._life = life
        self._target = target
        self._reconnections = life.reconnections
        self._term = 0

    def open(self, context: SinkContext) -> None:
        self._target = self._target.current()
        self._term = context.term

    def _reached(self) -> T:
        if self._reconnections != self._life.reconnections:
            self._reconnections = self._life.reconnections
            self._target = self._target.current()
        return self._target

    def _asked(self, slot: str) -> T:
        target = self._reached()
        seen = target.replaced_by is None
        target.judge.asked(self._life.number, target.name, _ordinal(slot), seen=seen)
        return target


class LedgerSink(_Connection[LedgerTarget], TransactionalSink):
    """A transactional sink."""

    def last(self, slot: str) -> Position | None:
        self._life.point("before last", slot)
        stored = self._asked(slot).ledger.get(slot)
        return stored.position if stored else None

    def write(self, chunk: Chunk) -> Rejected | None:
        self._life.point("before sink", chunk.key)
        target, numbers = self._reached(), numbers_in(chunk.table)
        target.called(self._life, chunk, numbers)
        answer = target.commit(chunk, numbers)
        self._life.point("after sink", chunk.key)
        return answer


class CommittedSink(_Connection[CommitTarget], CommitSink):
    """A commit sink. Its target compares the position in the same step that shows the rows and moves it."""

    def prepare(self, segment: StagedSegment) -> str:
        self._life.point("before prepare", segment.id)
        return " ".join(str(number) for chunk in segment.chunks for number in numbers_in(chunk.table))

    def position(self) -> CommitPosition | None:
        self._life.point("before position", "")
        return self._asked(_TABLE).ledger.get(_TABLE)

    def commit(self, batch: BatchCommit) -> None:
        self._life.point("before sink", batch.digest)
        target = self._reached()
        rows = [number for handle in batch.handles for number in map(int, handle.split())]
        target.judge.sent(self._life.number, target.name, rows, batch_id=batch.batch_id, ordinal=0, term=self._term)
        if target.ledger.get(_TABLE) != batch.follows:
            self._life.met("refused by its position")
            raise ConnectionError("the position is another one")
        if batch.follows is not None and not batch.follows.is_shown:
            self._life.met("built on a restored state")
        target.store(_TABLE, batch.position, rows, batch.digest)
        self._asked(_TABLE)
        self._life.point("after sink", batch.digest)


def forget(target: LosingTarget[Any], deed: Deed, size: int, turn: int) -> int:
    """Carry out a deed on a target. Returns how many commits it lost."""
    if deed is Deed.FORGET_SLOT:
        return target.forget_of_a_slot(size, turn)
    lose = {Deed.RESTORE: target.restore, Deed.REPLACE: target.replace}.get(deed, target.forget)
    return lose(size)


class WholeBatchSink(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise AssertionError(f"`batch_writer` writes batch {batch.batch_id}")


SINKS: dict[str, Callable[[Process, Any], Sink | BatchSink]] = {
    "plain": PlainSink,
    "at_most_once": PlainSink,
    "idempotent": IdempotentSink,
    "lookup": LookupSink,
    "transactional": LedgerSink,
    "segment": WholeSegmentSink,
    "batch": lambda *_: WholeBatchSink(),
    "two_phase": HoldingSink,
    "commit": CommittedSink,
    "rolled_two_phase": HoldingSink,
    "rolled_commit": CommittedSink,
}
"""The sink of each kind, made for a process and a target."""


def batch_writer(life: Process, target: Target, log: Log) -> Callable[[DeliveryContext, Manifest], None]:
    """A function that writes a whole batch, as a wrapped writer would."""

    def write(given: DeliveryContext, manifest: Manifest) -> None:
        for ordinal, segment in enumerate(manifest.segments):
            data = load_segment(log.store, segment)
            for chunk in chunks_of(given, ordinal, segment, data, 0, where=segment.path, reader=log.segment_reader):
                send(life, target, chunk, target.take)

    return write


def send(life: Process, target: Target, chunk: Chunk, put: Callable[[Chunk, list[int]], None]) -> None:
    """Call the target once. A crash, an error or a standstill may come before or after the call."""
    life.point("before sink", chunk.key)
    numbers = numbers_in(chunk.table)
    target.called(life, chunk, numbers)
    put(chunk, numbers)
    life.point("after sink", chunk.key)

"""Sinks that keep their contract, and sinks that each break it at one point. `test_kit.py` runs them.

`breaks` and `fails` name the tests of `SinkContract` that must fail, without `test_`. No other test may fail.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import pyarrow as pa

from tests.house.sinks import (
    BatchSink,
    Chunk,
    ForgottenError,
    LedgerEntry,
    Position,
    Rejected,
    ReleasedBatch,
    SegmentSink,
    Sink,
    SinkContext,
    TransactionalSink,
)
from wal_sink.errors import FencedError
from wal_sink.testing import SinkContract

UNDISTURBED = "an_undisturbed_run_brings_every_row_once"
DIES = "a_process_may_die_at_any_point"
REQUEST_FAILS = "a_request_may_fail_at_any_point"
WAKES = "a_process_may_wake_after_its_successor_has_finished"
TRAVELS = "it_travels_to_executors"
OPENED_AGAIN = "it_can_be_opened_again_after_it_was_closed"
BESIDE = "a_second_one_works_beside_it"
RETURNS = "it_returns_none_or_rejected"
WITHOUT_ROWS = "a_chunk_without_rows_adds_none"
HIDDEN = "a_failure_inside_write_is_not_hidden"
TYPE = "a_column_of_this_type_is_taken_or_refused_by_name"
NAMES = "columns_with_such_names_are_taken_or_refused_by_name"
LONG_TEXT = "a_very_long_text_is_taken_or_refused_for_good"
SECRET = "no_secret_shows"  # noqa: S105 - a test's name
AGAIN = "a_chunk_that_comes_again_changes_nothing"
NOT_APPLIED = "was_applied_is_false_for_what_was_not_written"
APPLIED = "was_applied_is_true_for_what_was_written"
PARTLY_APPLIED = "was_applied_is_false_for_a_part_of_a_chunk"
LAST_BY_SLOT = "every_slot_has_a_position_of_its_own"
PROMISE = "it_promises_what_is_expected_of_it"
THERE = "every_row_is_there_when_write_returns"
INTERRUPTED = "another_one_may_write_in_the_middle_of_a_write"
RULE = "its_ledger_goes_by_the_rule"
POSITIONS = "positions_tells_every_slot_as_last_does"
SHUTS_OUT = "who_asks_for_positions_shuts_nobody_out"
FORGETS = "a_target_may_forget_its_newest_commits_at_any_point"
LOSES = "a_target_may_lose_rows_and_keep_their_position_at_any_point"
GOES_WRONG = frozenset({UNDISTURBED, DIES, REQUEST_FAILS, WAKES})
"""The tests that fail for a sink that is wrong even undisturbed. Tests with a disturbance do not skip it."""
TOGETHER = "rows_and_position_are_written_together_or_not_at_all"


@dataclass
class Target:
    """A target with transactions. It outlives every process, and its own lines are never interrupted."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    ledger: dict[str, tuple[int, Position]] = field(default_factory=dict)
    highest_terms: dict[str, int] = field(default_factory=dict)
    """The highest term of each WAL. Each WAL counts its own terms."""
    opened: int = 0
    held: list[dict[str, Any]] = field(default_factory=list)
    path: str = ""

    def put(self, chunk: Chunk) -> None:
        self.rows += rows_of(chunk)
        self.keys.append(chunk.key)

    def put_once(self, chunk: Chunk) -> None:
        if chunk.key not in self.keys:
            self.put(chunk)

    def commit(self, chunk: Chunk, *, slot: str, fenced: bool = True) -> None:
        term, stored = self.ledger.get(slot, (0, None))
        entry = None if stored is None else LedgerEntry(term if fenced else 0, stored)
        if not LedgerEntry.is_known(entry, chunk, "this target"):
            self.store(chunk, slot)

    def commit_by_position(self, chunk: Chunk) -> None:
        term, stored = self.ledger.get(chunk.position.slot, (0, None))
        if stored is not None and (stored.batch_id, stored.rows) >= (chunk.batch_id, chunk.position.rows):
            return
        if term > chunk.term:
            raise FencedError(f"term {chunk.term} is below {term}")
        self.store(chunk)

    def commit_after_anything(self, chunk: Chunk) -> None:
        """Store the chunk, whatever batch the slot is at."""
        _, stored = self.ledger.get(chunk.position.slot, (0, None))
        self.commit(replace(chunk, follows=stored), slot=chunk.position.slot)

    def store(self, chunk: Chunk, slot: str = "") -> None:
        self.rows += rows_of(chunk)
        self.ledger[slot or chunk.position.slot] = (chunk.term, chunk.position)


T = TypeVar("T")
TARGETS: dict[int, Target] = {}
_numbers = itertools.count()


def rows_of(chunk: Chunk) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = chunk.table.to_pylist()
    return rows


class Contract(SinkContract):
    """Small batches and few types. The results of the tests do not depend on them."""

    kind: Any = None
    fails: ClassVar[frozenset[str]] = frozenset()
    column_types: ClassVar[Sequence[str]] = ("boolean", "string")
    column_names: ClassVar[Sequence[str]] = ("dots", "spaces")

    @contextmanager
    def new_target(self, folder: Path) -> Iterator[int]:  # noqa: ARG002 - for targets that are files
        """Yield a new target, for one test."""
        number = next(_numbers)
        TARGETS[number] = Target()
        yield number

    def make_sink(self, target: int) -> object:
        return type(self).kind(target)

    def rows_in(self, target: int) -> list[dict[str, Any]]:
        return list(TARGETS[target].rows)

    def tables(self) -> list[pa.Table]:
        return [pa.table({"id": ids, "name": [f"name {row}" for row in ids]}) for ids in (range(5), range(5, 7))]

    def secrets(self) -> list[str]:
        return ["hunter2"]

    def data_frame(self, table: pa.Table) -> pa.Table:
        return table


def breaker(contract: type[Contract]) -> Callable[..., Callable[[type[T]], type[T]]]:
    """Return the decorator that puts a sink under a contract. Exactly the named tests must fail."""

    def breaks(*fails: str) -> Callable[[type[T]], type[T]]:
        def put(kind: type[T]) -> type[T]:
            name, module = f"Test{kind.__name__}", kind.__module__
            members = {"kind": kind, "fails": frozenset(fails), "__module__": module}
            setattr(sys.modules[module], name, type(name, (contract,), members))
            return kind

        return put

    return breaks


breaks = breaker(Contract)

# Correct sinks.


@breaks()
class Plain(Sink):
    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def target(self) -> Target:
        return TARGETS[self.number]

    def write(self, chunk: Chunk) -> None:
        for row in rows_of(chunk):
            self.target.rows.append(row)


@breaks()
class Idempotent(Plain):
    idempotent = True

    def write(self, chunk: Chunk) -> None:
        self.target.put_once(chunk)


@breaks()
class LookUp(Plain):
    def write(self, chunk: Chunk) -> None:
        self.target.put(chunk)

    def was_applied(self, key: str) -> bool:
        return key in self.target.keys


@breaks()
class Ledger(Plain, TransactionalSink):
    def write(self, chunk: Chunk) -> None:
        self.target.commit(chunk, slot=chunk.position.slot)

    def last(self, slot: str) -> Position | None:
        return self.target.ledger.get(slot, (0, None))[1]


@breaks()
class Segments(SegmentSink):
    def __init__(self, number: int) -> None:
        self.number = number

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:  # noqa: ARG002
        for chunk in chunks:
            TARGETS[self.number].rows += rows_of(chunk)


@breaks()
class Batches(BatchSink):
    def __init__(self, number: int) -> None:
        self.number = number

    def write_batch(self, batch: ReleasedBatch) -> None:
        table: Any = batch.read()
        TARGETS[self.number].rows += table.to_pylist()


# Wrong sinks.


@breaks(*GOES_WRONG)
class LosesASegment(Plain):
    def write(self, chunk: Chunk) -> None:
        if not (chunk.rows == range(1) and chunk.position.slot.endswith("/1")):
            super().write(chunk)


@breaks(*GOES_WRONG)
class LosesRowsOfABatch(Batches):
    def write_batch(self, batch: ReleasedBatch) -> None:
        table: Any = batch.read()
        TARGETS[self.number].rows += table.to_pylist()[1:]


@breaks(DIES, THERE)
class SendsWhenItIsClosed(Plain):
    def open(self, context: SinkContext) -> None:  # noqa: ARG002
        self.buffer: list[dict[str, Any]] = []

    def write(self, chunk: Chunk) -> None:
        self.buffer += rows_of(chunk)

    def close(self) -> None:
        self.target.rows += self.buffer


class TestNeverFlushesItsFile(Contract):
    """A sink that never flushes its file. A killed process does not flush it, so the files of processes that die here
    stay open until the test ends.
    """

    files: ClassVar[list[TextIO]] = []

    class kind(Plain):  # noqa: N801
        def open(self, context: SinkContext) -> None:  # noqa: ARG002
            self.file = Path(self.target.path).open("a")  # noqa: SIM115 - closed in close
            TestNeverFlushesItsFile.files.append(self.file)

        def write(self, chunk: Chunk) -> None:
            self.file.writelines(json.dumps(row) + "\n" for row in rows_of(chunk))

        def close(self) -> None:
            self.file.close()

    @contextmanager
    def new_target(self, folder: Path) -> Iterator[int]:
        number = next(_numbers)
        TARGETS[number] = Target(path=str(folder / f"rows-{number}"))
        yield number
        while self.files:
            self.files.pop().close()

    def rows_in(self, target: int) -> list[dict[str, Any]]:
        path = Path(TARGETS[target].path)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    column_types: ClassVar[Sequence[str]] = ()
    column_names: ClassVar[Sequence[str]] = ()
    fails = frozenset({DIES, THERE})


@breaks(INTERRUPTED)
class SharesOnePlaceWithOtherTasks(Plain):
    """A sink that uses one temporary file name for all tasks."""

    def write(self, chunk: Chunk) -> None:
        self.target.held = rows_of(chunk)
        rows = self.target.held
        self.target.rows += rows


@breaks(REQUEST_FAILS)
class SendsWhatFailedWithWhatFollows(Plain):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.buffer: list[dict[str, Any]] = []

    def write(self, chunk: Chunk) -> None:
        self.buffer += rows_of(chunk)
        self.target.rows += self.buffer
        self.buffer = []


@breaks(WAKES)
class ForgetsOldKeys(Idempotent):
    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        del self.target.keys[:-3]


@breaks(TRAVELS)
class HoldsALock(Plain):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.lock = threading.Lock()


@breaks(*GOES_WRONG, OPENED_AGAIN)
class IsClosedForGood(Plain):
    closed = False

    def write(self, chunk: Chunk) -> None:
        if self.closed:
            raise RuntimeError("closed")
        super().write(chunk)

    def close(self) -> None:
        self.closed = True


@breaks(BESIDE)
class WantsTheTargetForItself(Plain):
    def open(self, context: SinkContext) -> None:
        if self.target.opened == context.term:
            raise RuntimeError("another sink is open")
        self.target.opened = context.term

    def close(self) -> None:
        self.target.opened = 0


@breaks(*GOES_WRONG, RETURNS)
class ReturnsTrue(Plain):
    def write(self, chunk: Chunk) -> Any:
        super().write(chunk)
        return True


@breaks(WITHOUT_ROWS)
class WritesARowForNone(Plain):
    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        if not chunk.num_rows:
            self.target.rows.append({"id": None, "name": None})


@breaks(HIDDEN, REQUEST_FAILS)
class HidesFailures(Plain):
    def write(self, chunk: Chunk) -> None:
        try:
            self.target.put(chunk)
        except ConnectionError:
            return


@breaks(TYPE)
class StumblesOverAType(Plain):
    def write(self, chunk: Chunk) -> None:
        if any(str(field.type) == "bool" for field in chunk.table.schema):
            raise TypeError("bool is not serializable")
        super().write(chunk)


@breaks()
class RefusesARow(Plain):
    """A correct sink: it refuses one row and writes the others."""

    def write(self, chunk: Chunk) -> Any:
        bad = [index for index, row in enumerate(rows_of(chunk)) if "\0" in str(row.get("odd_one"))]
        super().write(chunk.without(bad))
        return Rejected(dict.fromkeys(bad, "column odd_one has a NUL")) if bad else None


@breaks(TYPE)
class RefusesARowAndWritesNone(Plain):
    def write(self, chunk: Chunk) -> Any:
        if any("\0" in str(row.get("odd_one")) for row in rows_of(chunk)):
            return Rejected({0: "column odd_one has a NUL"})
        super().write(chunk)
        return None


@breaks(LONG_TEXT)
class CutsTexts(Plain):
    def write(self, chunk: Chunk) -> None:
        self.target.rows += [
            {name: value[:20] if isinstance(value, str) else value for name, value in row.items()}
            for row in rows_of(chunk)
        ]


class TestMakesDecimalsNull(Contract):
    class kind(Plain):  # noqa: N801
        def write(self, chunk: Chunk) -> None:
            self.target.rows += [
                {name: None if isinstance(value, Decimal) else value for name, value in row.items()}
                for row in rows_of(chunk)
            ]

    column_types = ("decimal", "date")
    fails = frozenset({TYPE})


class TestForgetsToSayThatItIsIdempotent(Contract):
    class kind(Idempotent):  # noqa: N801
        idempotent = False

    expected_guarantee = "exactly_once"
    fails = frozenset({PROMISE})


class TestMayBeExpectedToBeIdempotent(Contract):
    kind = Idempotent
    expected_guarantee = "exactly_once"


class TestExpectsWhatThereIsNot(Contract):
    kind = Idempotent
    expected_guarantee = "exactly once"  # type: ignore[assignment]
    fails = frozenset({PROMISE})


@breaks(NAMES)
class StumblesOverAName(Plain):
    def write(self, chunk: Chunk) -> None:
        if not any("." in name for name in chunk.table.column_names):
            super().write(chunk)


@breaks(LONG_TEXT)
class StumblesOverALongText(Plain):
    def write(self, chunk: Chunk) -> None:
        if len(str(rows_of(chunk))) > 10_000:
            raise ValueError("item too large")
        super().write(chunk)


@breaks(SECRET)
class ShowsItsPassword(Plain):
    def __repr__(self) -> str:
        return "kind(password='hunter2')"


@breaks(SECRET)
class KeepsItsPassword(Plain):
    def open(self, context: SinkContext) -> None:  # noqa: ARG002
        self.password = "hunter2"  # noqa: S105


@breaks(AGAIN, DIES, WAKES)
class KnowsOnlyTheNewestKey(Idempotent):
    def write(self, chunk: Chunk) -> None:
        wal = chunk.position.slot.partition("/")[0]
        if chunk.term < self.target.highest_terms.get(wal, 0):
            raise FencedError("superseded")
        super().write(chunk)
        self.target.highest_terms[wal] = chunk.term
        del self.target.keys[:-1]


@breaks(WAKES)
class LooksBeforeItWrites(Idempotent):
    """A sink that looks first and writes then. Another process may write in between."""

    def write(self, chunk: Chunk) -> None:
        if chunk.key in self.target.keys:
            return
        self.target.put(chunk)


@breaks(AGAIN, DIES, REQUEST_FAILS, WAKES)
class RemembersInItsProcess(Idempotent):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.seen: set[str] = set()

    def write(self, chunk: Chunk) -> None:
        for key, row in zip(chunk.row_keys(), rows_of(chunk), strict=True):
            if key not in self.seen:
                self.target.rows.append(row)
                self.seen.add(key)


def keep(target: Target, chunk: Chunk) -> None:
    """Store a chunk. It belongs to the sink's module, so a process may die between its lines."""
    target.keys.append(chunk.key)
    target.rows += rows_of(chunk)


@breaks(PARTLY_APPLIED, DIES, REQUEST_FAILS)
class NotesTheKeyBeforeTheRowsInAFunction(LookUp):
    def write(self, chunk: Chunk) -> None:
        keep(self.target, chunk)


@breaks(NOT_APPLIED)
class LooksUpTooMuch(LookUp):
    def was_applied(self, key: str) -> bool:
        return key in self.target.keys or bool(self.target.keys and key.startswith("0000"))


@breaks(APPLIED, DIES, REQUEST_FAILS)
class LooksUpNothing(LookUp):
    def was_applied(self, key: str) -> bool:  # noqa: ARG002
        return False


@breaks(PARTLY_APPLIED, DIES, REQUEST_FAILS)
class NotesTheKeyBeforeTheRows(LookUp):
    def write(self, chunk: Chunk) -> None:
        self.target.keys.append(chunk.key)
        self.target.rows += rows_of(chunk)


@breaks(WAKES)
class LooksAtThePositionBeforeItWrites(Ledger):
    """A sink that looks first and writes then. Two processes of different terms both find no entry."""

    def write(self, chunk: Chunk) -> None:
        slot = chunk.position.slot
        term, stored = self.target.ledger.get(slot, (0, None))
        entry = None if stored is None else LedgerEntry(term, stored)
        if not LedgerEntry.is_known(entry, chunk, "this target"):
            self.target.store(chunk)


@breaks(LAST_BY_SLOT, POSITIONS, RULE, SHUTS_OUT, FORGETS, LOSES, *GOES_WRONG)
class HasAPositionForEverySlot(Ledger):
    """A sink that answers with a position for every slot, and relies on it."""

    def write(self, chunk: Chunk) -> None:
        slot = chunk.position.slot
        entry = LedgerEntry(self.target.ledger.get(slot, (0, None))[0], self.last(slot))
        if not LedgerEntry.is_known(entry, chunk, "this target"):
            self.target.store(chunk)

    def last(self, slot: str) -> Position:
        return super().last(slot) or Position(slot, -1, 0, "")


@breaks(LAST_BY_SLOT, POSITIONS, RULE, SHUTS_OUT, FORGETS, LOSES, *GOES_WRONG)
class TellsAnotherSlot(Ledger):
    """A sink that answers with the position of another slot, and relies on it."""

    def write(self, chunk: Chunk) -> None:
        at = self.last(chunk.position.slot)
        entry = LedgerEntry(self.target.ledger[chunk.position.slot][0], at) if at else None
        if not LedgerEntry.is_known(entry, chunk, "this target"):
            self.target.store(chunk)

    def last(self, slot: str) -> Position | None:
        stored = super().last(slot)
        return stored and Position("slot", stored.batch_id, stored.rows, stored.segment_id)


@breaks(*GOES_WRONG, LAST_BY_SLOT, BESIDE, OPENED_AGAIN, RULE, INTERRUPTED, POSITIONS, FORGETS, LOSES)
class HasOneSlot(Ledger):
    def write(self, chunk: Chunk) -> None:
        self.target.commit(chunk, slot="one")

    def last(self, slot: str) -> Position | None:  # noqa: ARG002
        return super().last("one")


@breaks(RULE)
class IgnoresTerms(Ledger):
    def write(self, chunk: Chunk) -> None:
        self.target.commit(chunk, slot=chunk.position.slot, fenced=False)


@breaks(RULE, FORGETS)
class ComparesOnlyPositions(Ledger):
    """A sink that compares neither segments nor parts of chunks, and tells any process what it has."""

    def write(self, chunk: Chunk) -> None:
        self.target.commit_by_position(chunk)


@breaks(RULE, FORGETS, WAKES)
class TakesAnEmptySlotForNew(Ledger):
    """A sink that takes any chunk into an empty slot. It does not notice that the rows before it are gone."""

    def write(self, chunk: Chunk) -> None:
        if chunk.position.slot in self.target.ledger:
            super().write(chunk)
        else:
            self.target.store(chunk)


@breaks(RULE, FORGETS)
class AcceptsAGap(Ledger):
    """A sink that accepts a chunk wherever it starts, unless the slot is past the chunk's end."""

    def write(self, chunk: Chunk) -> None:
        try:
            super().write(chunk)
        except ForgottenError:
            self.target.store(chunk)


class TestRemembersItsPositions(Contract):
    """A sink that remembers its positions. It does not notice that the target forgot some."""

    class kind(Ledger):  # noqa: N801
        def __init__(self, number: int) -> None:
            super().__init__(number)
            self.known: dict[str, Position] = {}

        def write(self, chunk: Chunk) -> None:
            super().write(chunk)
            self.known[chunk.position.slot] = chunk.position

        def last(self, slot: str) -> Position | None:
            return self.known.get(slot) or super().last(slot)

    def snapshot(self, target: int) -> Target:
        return deepcopy(TARGETS[target])

    def restore(self, target: int, saved: Target) -> None:
        TARGETS[target] = deepcopy(saved)

    fails = frozenset({FORGETS})


class TestIsBroughtBack(Contract):
    """A correct sink, whose author says how to copy and restore the target."""

    kind = Ledger
    snapshot = TestRemembersItsPositions.snapshot
    restore = TestRemembersItsPositions.restore


@breaks(POSITIONS, FORGETS)
class TellsOnlySlotsThatItHas(Ledger):
    def positions(self, slots: Sequence[str]) -> dict[str, Position | None]:
        return {slot: self.last(slot) for slot in slots if self.last(slot)}


@breaks(TOGETHER, DIES, REQUEST_FAILS, WAKES, INTERRUPTED)
class CommitsTwice(Ledger):
    def write(self, chunk: Chunk) -> None:
        before = len(self.target.rows)
        self.target.commit(chunk, slot=chunk.position.slot)
        rows = self.target.rows[before:]
        del self.target.rows[before:]
        self.target.rows += rows


@breaks(RULE)
class IgnoresWhatAChunkFollows(Ledger):
    """A sink that does not look at what a chunk follows. Batches that the target forgot are missing for good."""

    def write(self, chunk: Chunk) -> None:
        self.target.commit_after_anything(chunk)


@breaks(POSITIONS)
class TellsPositionsThatItRemembers(Ledger):
    """A sink that answers with old positions, which the target may have forgotten since."""

    def open(self, context: SinkContext) -> None:  # noqa: ARG002
        self.known: dict[str, Position | None] = {}

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        self.known = {**super().positions(slots), **self.known}
        return self.known


@breaks(SHUTS_OUT, BESIDE)
class ShutsOutWhoWritesWhenItIsOpened(Ledger):
    """A sink that shuts others out in `open`, as a producer with one transactional id per slot may do."""

    def open(self, context: SinkContext) -> None:  # noqa: ARG002
        self.target.opened += 1
        self.number_of_open = self.target.opened

    def write(self, chunk: Chunk) -> None:
        if self.number_of_open != self.target.opened:
            raise ConnectionError("another sink was opened since")
        super().write(chunk)


@breaks(*GOES_WRONG, POSITIONS, FORGETS, LOSES)
class TellsOnePositionForAllSlots(Ledger):
    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        return dict.fromkeys(slots, self.last(slots[0]))

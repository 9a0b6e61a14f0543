"""The part of `SinkContract` for transactional sinks: rows and position are written in one step, by one rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wal_sink.sinks.base import TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.testing.contract.base import LinesContract
from wal_sink.testing.contract.calls import deliver, opened, send, shown_error, slot
from wal_sink.testing.contract.ledger_cases import REFUSALS, STORED, STORING, TYPICAL, Case


@dataclass(frozen=True, slots=True)
class _Stored:
    """A target with a ledger, and the slot and key prefix that are used for its chunks only."""

    target: Any
    slot: str
    prefix: str

    def chunk(self, case: Case, table: pa.Table) -> Chunk:
        return case.chunk(table, slot=self.slot, prefix=self.prefix)


class LedgerContract(LinesContract):
    """See `SinkContract`."""

    def test_every_slot_has_a_position_of_its_own(self, target: Any) -> None:
        self._ledger(target)
        first, second = self._two_segments()
        deliver(self._sink(target), first)
        self._expect_last(target, second[0], None)
        deliver(self._sink(target), second)
        self._expect_last(target, first[0], first[-1].position)

    def test_rows_and_position_are_written_together_or_not_at_all(self, target: Any) -> None:
        self._ledger(target)
        for fresh, chunk, added, place, _ in self._each_line_failing(target):
            has_position = self._last(fresh, chunk) == chunk.position
            if len(added) != (chunk.num_rows if has_position else 0):
                self._fail(
                    expected="rows and position, or neither",
                    found=f"{len(added)} of {chunk.num_rows} rows and {'the' if has_position else 'no'} position, "
                    f"after a request failed just before {place}",
                    next_step="write both in one transaction, and roll it back after every error",
                )

    def test_its_ledger_goes_by_the_rule(self, target: Any) -> None:
        """The rule is that of `LedgerEntry.is_known`. It distinguishes known and new chunks, chunks of a fenced process
        or of another history, and chunks that follow rows which the target lacks.
        """
        self._ledger(target)
        shared = self._stored(self.another(target), 0)  # these cases do not change its position
        old = [case for case in TYPICAL if case.stored and case.verdict != "new"]
        for case in sorted(old, key=lambda case: case.term):  # a ledger may store the term of a chunk that it knows
            self._meet(shared, case)
        for number, case in enumerate((case for case in TYPICAL if not case.stored or case.verdict == "new"), 1):
            another = self.another(target)
            self._meet(self._stored(another, number) if case.stored else self._apart(another, number), case)

    def test_positions_tells_every_slot_as_last_does(self, target: Any) -> None:
        """Delivery reads all slots of a batch in one call before it marks the batch. The answer must include rows that
        others wrote after the sink was opened and after its previous answer.
        """
        sink = self._ledger(target)
        first, second = self._two_segments()
        deliver(self._sink(target), first)
        slots = [second[0].position.slot, slot(99), first[0].position.slot]
        expected = {slots[0]: None, slots[1]: None, slots[2]: first[-1].position}
        with opened(sink, first[0]):
            self._expect_positions(sink, slots, expected)
            deliver(self._sink(target), second)
            self._expect_positions(sink, slots, {**expected, slots[0]: second[-1].position})

    def test_who_asks_for_positions_shuts_nobody_out(self, target: Any) -> None:
        """With `spark.speculation`, one task reads the positions while another task moves them."""
        sink = self._ledger(target)
        first, *others = self._chunks()
        told = ""
        with opened(sink, first):
            send(sink, [first])
            self._expect_last(target, first, first.position)  # read by another sink, which is open at the same time
            try:
                send(sink, others)
            except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
                told = shown_error(error)
        if told:
            self._fail(
                expected="the next chunk is written after another sink was opened with the same term and called last()",
                found=told,
                next_step="fence others only in write, by the term of the chunk: not in open, last or positions",
            )
        self._expect_last(target, first, [first, *others][-1].position)

    def _expect_positions(
        self, sink: TransactionalSink, slots: list[str], expected: Mapping[str, Position | None]
    ) -> None:
        found: object = sink.positions(slots)
        if not isinstance(found, Mapping) or any(found.get(each, "absent") != expected[each] for each in slots):
            self._fail(
                expected=f"{expected} from positions({slots})",
                found=str(found),
                next_step="return every slot, with None for an empty one, or do not override positions()",
            )

    def _apart(self, target: Any, number: int) -> _Stored:
        """A slot and keys that no other case uses."""
        return _Stored(target, slot(100 + number), f"{number:04x}")

    def _stored(self, target: Any, number: int) -> _Stored:
        """A target whose ledger is at `STORED`, in a separate slot and with separate keys."""
        stored = self._apart(target, number)
        deliver(self._sink(target), [stored.chunk(STORING, self._numbered(STORING))])
        return stored

    def _meet(self, at: _Stored, case: Case) -> None:
        target, chunk = at.target, at.chunk(case, self._numbered(case))
        before = self._count(target)
        is_new, refusal = case.verdict == "new", REFUSALS.get(case.verdict)
        expected = (refusal[0].__name__ if refusal else "no error", chunk.num_rows if is_new else 0)
        outcome, told = "no error", ""
        sink = self._sink(target)
        try:
            with opened(sink, chunk):
                send(sink, [chunk])
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            outcome, told = type(error).__name__, shown_error(error)
        found = (outcome, self._count(target) - before)
        if found != expected:
            self._fail(
                expected=f"{expected[0]} and {expected[1]} rows from a chunk which is {case.verdict}: {case}",
                found=f"{told or found[0]}, {found[1]} rows; the ledger was at {STORED if case.stored else None}",
                next_step="let LedgerEntry.is_known(stored, chunk, where) decide, or follow the same rule",
            )
        before_it = at.chunk(STORING, self._numbered(STORING)).position if case.stored else None
        self._expect_last(target, chunk, chunk.position if is_new else before_it)

    def _numbered(self, case: Case) -> pa.Table:
        """The rows of a case. If the tables have fewer rows than a case needs, they start again from the first."""
        table = pa.concat_tables(self.tables())
        return table.take(pa.array([row % table.num_rows for row in case.rows], pa.int64()))

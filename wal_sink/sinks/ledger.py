"""`LedgerEntry`: the record that a `TransactionalSink` stores beside its rows, and the rule to recognise a known chunk.

The rule for the entry found in the slot and a chunk that arrives:

| found | verdict |
|---|---|
| a higher term than the chunk's | fenced: `FencedError` |
| a later batch, or the same segment at or past the chunk's end | known: the target has it; a late answer is no error |
| the same batch with another segment | another history: `HistoryError` |
| the same segment exactly at the chunk's start | new: write it |
| the same segment between the chunk's start and its end | cut in two: `HistoryError` |
| for the first chunk of a segment: exactly the position read when the attempt began (`Chunk.follows`) | new: write it |
| anything else: the target is behind the rows it acknowledged | forgotten: `ForgottenError`, write nothing |

Also the name of a slot in a transactional target, and the check of the position that it holds.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Self, SupportsIndex

from wal_sink.errors import FencedError, HistoryError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import FailureKind, ForgottenError, SinkFailedError
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import repr_of

if TYPE_CHECKING:
    from wal_sink.sinks.chunk import Chunk


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Position of a target in one slot, and the term that moved it there. Plain values, used wherever the sink runs.

    stored = ...                          # the slot's entry, read and locked in the transaction; None without one
    if LedgerEntry.is_known(stored, chunk, f"table {self.table!r}"):
        return None                       # a repeat: there is nothing to write
    ...                                   # write the rows, and LedgerEntry.of(chunk) in place of `stored`
    """

    term: int
    """Term of the committer that wrote last."""
    position: Position

    @classmethod
    def of(cls, chunk: Chunk) -> Self:
        """The entry to store with the rows of a chunk."""
        return cls(chunk.term, chunk.position)

    @staticmethod
    def is_known(stored: LedgerEntry | None, chunk: Chunk, where: str) -> bool:
        """Return whether the target has this chunk already. False: write its rows and the new entry.

        `stored` is the present entry of the slot, None if the slot is empty. `where` names the ledger in messages,
        without secrets: "ledger in postgresql://db/shop".

        Raises `FencedError` if a process newer than the chunk's sender has written to the slot, even if the target has
        the chunk; `HistoryError` if the target has rows of another segment in place of the chunk's, or some of the
        chunk's rows, but not all; `OutcomeUnknownError` if it lacks rows that come before the chunk.
        """
        if stored is not None:
            stored.check_term(chunk, where)
        at, due = stored.position if stored else None, chunk.position
        if at is not None and at.batch_id > due.batch_id:
            return True
        if at is not None and at.batch_id == due.batch_id:
            return _is_known_in_segment(at, chunk, where)
        if chunk.start == 0 and at == chunk.follows:
            return False
        raise _forgotten(at, chunk, where)

    def check_term(self, chunk: Chunk, where: str) -> None:
        """Raise `FencedError` if a process newer than the chunk's sender has written to the slot."""
        if self.term > chunk.term:
            raise FencedError(
                f"{_place(chunk, where)}: a process with term {self.term} has already written to this slot, but the "
                f"term of this process is {chunk.term}",
                term=self.term,
            )


def _is_known_in_segment(at: Position, chunk: Chunk, where: str) -> bool:
    """Return `LedgerEntry.is_known` for an entry of the chunk's own batch."""
    due = chunk.position
    if at.segment_id != due.segment_id:
        raise HistoryError(
            f"{_place(chunk, where)}: the target holds rows of segment {at.segment_id}, but the chunk is of segment "
            f"{due.segment_id}. Find out which WAL wrote to this slot before you continue"
        )
    if at.rows >= due.rows:
        return True
    if at.rows == chunk.start:
        return False
    if at.rows > chunk.start:
        raise HistoryError(
            f"{_place(chunk, where)}: the target holds the first {at.rows} rows of the segment, but this boundary is "
            "in the middle of this chunk. Find out which WAL wrote to this slot before you continue"
        )
    raise _forgotten(at, chunk, where)


def _forgotten(at: Position | None, chunk: Chunk, where: str) -> ForgottenError:
    held = f"batch {chunk.batch_id}, row {chunk.start}" if chunk.start else described(chunk.follows)
    return ForgottenError(
        f"{_place(chunk, where)}: the slot is at {described(at)}, expected it at {held}. The target lost rows that "
        "it acknowledged, or its answers come from different states. Nothing was written. Find out whether it "
        "failed over to a standby that lagged, or restarted without its newest writes"
    )


def described(position: Position | None) -> str:
    """A slot's position in words, for messages."""
    return "nothing" if position is None else f"batch {position.batch_id}, row {position.rows}"


def _place(chunk: Chunk, where: str) -> str:
    return f"batch {chunk.batch_id}, chunk {chunk.key}, slot {chunk.position.slot!r} of {where}"


_MOST_SHOWN = 200


def stored_position(what: str, slot: str, found: object) -> Position | None:
    """A target's answer about one slot, with plain numbers: databases return decimals, libraries return their own
    types.

    Raises `SinkFailedError` for an invalid answer. Otherwise delivery would draw conclusions from it.
    """
    if found is None:
        return None
    if isinstance(found, Position) and found.slot == slot and isinstance(found.segment_id, str):
        batch_id, rows = _whole(found.batch_id), _whole(found.rows)
        if batch_id is not None and rows is not None:
            return Position(slot, batch_id, rows, found.segment_id)
    raise SinkFailedError(
        FailureKind.PERMANENT,
        f"{what} returned {redacted(repr_of(found))[:_MOST_SHOWN]}: expected None, or a Position of the slot {slot!r} "
        "whose batch_id and rows are whole numbers, 0 or more. Each slot has a separate position: store it with the "
        "rows, under the slot",
    )


def _whole(value: object) -> int | None:
    """The number as a plain int if it is whole and not negative. None for anything else, True and False included."""
    number: int | None = None
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        number = int(value)
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
    return number if number is not None and number >= 0 else None


def slot_name(wal_id: str, sink: str, ordinal: int) -> str:
    """The slot under which a transactional target stores the position of a batch's n-th segment. Every batch reuses
    it.
    """
    return f"{wal_id}/{sink}/{ordinal}"

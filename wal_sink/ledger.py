"""`LedgerEntry`: what a `TransactionalSink` stores beside its rows, and the rule by which it knows a chunk again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from wal_sink.errors import DivergentReplay, FencedError, HistoryError

if TYPE_CHECKING:
    from wal_sink.chunk import Chunk, Position


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """How far a target is in one slot, and who brought it there. Plain values; used wherever the sink runs.

    stored = ...                          # the slot's entry, read and locked in the transaction; None without one
    if stored and stored.has(chunk, f"table {self.table!r}"):
        return None                       # a repeat: there is nothing to write
    ...                                   # write the rows, and LedgerEntry.of(chunk) in place of `stored`
    """

    term: int
    """Of the committer that wrote last."""
    position: Position

    @classmethod
    def of(cls, chunk: Chunk) -> Self:
        """What to store with the rows of a chunk."""
        return cls(chunk.term, chunk.position)

    def has(self, chunk: Chunk, where: str) -> bool:
        """Whether the target has this chunk already. False: write its rows and the new entry.

        `where` names the ledger in messages, without secrets: "ledger in postgresql://db/shop". Raises as `check` does.
        """
        self.check(chunk, where)
        at, due = self.position, chunk.position
        return (at.batch_id, at.rows) >= (due.batch_id, due.rows)

    def check(self, chunk: Chunk, where: str) -> None:
        """Refuse a chunk that the target neither has nor may get.

        Raises `FencedError` if a successor of the chunk's sender has written to the slot, also for a chunk that the
        target has; `DivergentReplay` if the target has rows of another segment in place of the chunk's; `HistoryError`
        if it has some of the chunk's rows, but not all.
        """
        self.check_term(chunk, where)
        at, due = self.position, chunk.position
        if at.batch_id != due.batch_id:
            return
        if at.segment_id != due.segment_id:
            raise DivergentReplay(
                f"{_place(chunk, where)}: the target holds rows of segment {at.segment_id}, the chunk is of segment "
                f"{due.segment_id}; find out which WAL wrote there before going on"
            )
        if at.rows < due.rows and chunk.rows and chunk.rows[0] < at.rows:
            raise HistoryError(
                f"{_place(chunk, where)}: the target holds the first {at.rows} rows of the segment, which cuts this "
                "chunk in two; find out which WAL wrote there before going on"
            )

    def check_term(self, chunk: Chunk, where: str) -> None:
        """`FencedError` if a successor of the chunk's sender has written to the slot."""
        if self.term > chunk.term:
            raise FencedError(f"{_place(chunk, where)}: term {self.term} has written, this sender's is {chunk.term}")


def _place(chunk: Chunk, where: str) -> str:
    return f"batch {chunk.batch_id}, chunk {chunk.key}, slot {chunk.position.slot!r} of {where}"

"""Every order in which a chunk and a ledger's entry can stand to each other, and what the rule makes of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from wal_sink.chunk import Chunk, Position
from wal_sink.errors import DivergentReplay, FencedError, HistoryError
from wal_sink.ledger import LedgerEntry

Verdict: TypeAlias = Literal["new", "known", "fenced", "other history", "cut in two"]

SLOT = "wal/default/0"
STORED = LedgerEntry(term=5, position=Position(SLOT, batch_id=7, rows=4, segment_id="m"))
"""What the ledger holds in every case."""
REFUSALS: dict[Verdict, tuple[type[Exception], str]] = {
    "fenced": (FencedError, r"term 5 has written, this sender's is 4$"),
    "other history": (DivergentReplay, r"holds rows of segment m, the chunk is of segment \w; find out which WAL"),
    "cut in two": (HistoryError, r"holds the first 4 rows of the segment, which cuts this chunk in two; find out"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A chunk that meets `STORED`."""

    term: int
    batch_id: int
    segment_id: str
    rows: tuple[int, ...]
    """Numbers in the segment."""
    end: int
    """Rows of the segment that the target has once it has the chunk."""
    verdict: Verdict

    def chunk(self, table: pa.Table | None = None, *, slot: str = SLOT, prefix: str = "") -> Chunk:
        """The chunk; `table` has its rows, by default their numbers as a column `id`. `prefix`: of the segment's id."""
        if table is None:
            table = pa.table({"id": pa.array(self.rows, pa.int64())})
        segment_id = prefix + self.segment_id
        made = Chunk.of(table, key=f"{segment_id}-of-{self.end}")
        position = Position(slot, self.batch_id, self.end, segment_id)
        return dataclasses.replace(
            made,
            batch_id=self.batch_id,
            segment_id=segment_id,
            rows=self.rows,
            position=position,
            term=self.term,
        )

    def __str__(self) -> str:
        return f"term {self.term}, batch {self.batch_id}, segment {self.segment_id}, {self.rows} of {self.end}"


_ROWS: tuple[tuple[tuple[int, ...], int, Verdict], ...] = (
    ((0, 1), 2, "known"),
    ((1, 2), 3, "known"),
    ((0, 1, 2, 3), 4, "known"),
    ((3,), 4, "known"),
    ((), 4, "known"),
    ((0, 1, 2, 3, 4), 5, "cut in two"),
    ((3, 4), 5, "cut in two"),
    ((3,), 5, "cut in two"),
    ((4,), 5, "new"),
    ((4, 5), 6, "new"),
    ((5,), 6, "new"),  # row 4 is no gap: it was refused before
    ((), 5, "new"),
)
"""Of the entry's own batch and segment: the chunk's rows, where it ends, and the verdict."""


def _verdict(term: int, batch_id: int, segment_id: str, of_rows: Verdict) -> Verdict:
    if term == 4:
        return "fenced"
    if batch_id != 7:
        return "known" if batch_id == 6 else "new"
    return of_rows if segment_id == "m" else "other history"


CASES = [
    Case(term, batch_id, segment_id, rows, end, _verdict(term, batch_id, segment_id, of_rows))
    for term in (4, 5, 6)
    for batch_id in (6, 7, 8)
    for segment_id in ("l", "m", "n")
    for rows, end, of_rows in _ROWS
]

STORING = Case(5, 7, "m", (0, 1, 2, 3), 4, "new")
"""The chunk after which a ledger holds `STORED`."""


def _is_typical(case: Case) -> bool:
    if case.batch_id != STORED.position.batch_id:
        return case.segment_id == "m" and case.rows == (4, 5)  # not those that a target with keys would count once
    long = (case.rows, case.end) in {((0, 1, 2, 3), 4), ((3, 4), 5), ((4, 5), 6)}
    if case.term != STORED.term or case.segment_id != "m":
        return long and case.segment_id == ("m" if case.term != STORED.term else "n")
    return case.end != 3 and case.rows != (3,)


TYPICAL = [case for case in CASES if _is_typical(case)]
"""Enough of them to know a ledger that goes by another rule, for targets that take their time."""

"""All relations between a chunk and a ledger's entry, each with the verdict of the rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from wal_sink.errors import FencedError, HistoryError
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.failures import ForgottenError
from wal_sink.sinks.ledger import LedgerEntry

Verdict: TypeAlias = Literal["new", "known", "fenced", "other history", "cut in two", "forgotten"]
Follows: TypeAlias = Literal["stored", "nothing"]

SLOT = "wal/default/0"
STORED = LedgerEntry(term=5, position=Position(SLOT, batch_id=7, rows=4, segment_id="m"))
"""The ledger's entry in every case, except those of an empty slot."""
REFUSALS: dict[Verdict, tuple[type[Exception], str]] = {
    "fenced": (
        FencedError,
        r"a process with term 5 has already written to this slot, but the term of this process is 4$",
    ),
    "other history": (HistoryError, r"holds rows of segment m, but the chunk is of segment \w\. Find out which WAL"),
    "cut in two": (
        HistoryError,
        r"holds the first 4 rows of the segment, but this boundary is in the middle of this chunk\. Find out",
    ),
    "forgotten": (ForgottenError, r"the slot is at (batch 7, row 4|nothing), expected it at .* Nothing was written"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A chunk that meets `STORED`, or an empty slot."""

    term: int
    batch_id: int
    segment_id: str
    rows: tuple[int, ...]
    """Row numbers in the segment."""
    start: int
    """The first row of the chunk when it was staged. Rejected rows are missing in `rows`."""
    end: int
    """Number of rows of the segment that the target has after the chunk."""
    verdict: Verdict
    follows: Follows = "stored"
    """The position that the attempt read before it began the segment: `STORED`, or an empty slot."""
    stored: bool = True
    """Whether the slot holds `STORED`; if False, it is empty."""

    @property
    def found(self) -> LedgerEntry | None:
        """The entry in the slot; None if it is empty."""
        return STORED if self.stored else None

    def chunk(self, table: pa.Table | None = None, *, slot: str = SLOT, prefix: str = "") -> Chunk:
        """The chunk of this case. `table`: its rows (default: their numbers in a column `id`). `prefix`: begins the
        segment's id.
        """
        if table is None:
            table = pa.table({"id": pa.array(self.rows, pa.int64())})
        segment_id, at = prefix + self.segment_id, STORED.position
        read = Position(slot, at.batch_id, at.rows, prefix + at.segment_id) if self.follows == "stored" else None
        made = Chunk.of(table, key=f"{segment_id}-of-{self.end}")
        return dataclasses.replace(
            made,
            batch_id=self.batch_id,
            segment_id=segment_id,
            rows=self.rows,
            position=Position(slot, self.batch_id, self.end, segment_id),
            term=self.term,
            start=self.start,
            follows=read,
        )

    def __str__(self) -> str:
        held = "" if self.stored else ", empty slot"
        of = f"term {self.term}, batch {self.batch_id}, segment {self.segment_id}"
        return f"{of}, {self.rows} in {self.start}:{self.end}, follows {self.follows}{held}"


_ROWS: tuple[tuple[tuple[int, ...], int, int, Verdict], ...] = (
    ((0, 1), 0, 2, "known"),
    ((1, 2), 1, 3, "known"),
    ((0, 1, 2, 3), 0, 4, "known"),
    ((3,), 2, 4, "known"),  # row 2 is no gap: it was rejected before
    ((), 2, 4, "known"),
    ((0, 1, 2, 3, 4), 0, 5, "cut in two"),
    ((3, 4), 3, 5, "cut in two"),
    ((4,), 3, 5, "cut in two"),
    ((), 3, 5, "cut in two"),
    ((4,), 4, 5, "new"),
    ((4, 5), 4, 6, "new"),
    ((5,), 4, 6, "new"),
    ((), 4, 5, "new"),
    ((5,), 5, 6, "forgotten"),
    ((6, 7), 5, 8, "forgotten"),
    ((), 5, 6, "forgotten"),
)
"""Cases in the entry's own batch and segment: the chunk's rows, its start, its end, and the verdict."""


def _verdict(term: int, batch_id: int, segment_id: str, start: int, of_rows: Verdict) -> Verdict:
    if term == 4:
        return "fenced"
    if batch_id == 6:
        return "known"
    if batch_id == 8:
        return "forgotten" if start else "new"
    return of_rows if segment_id == "m" else "other history"


_IN_ORDER = [
    Case(term, batch_id, segment_id, rows, start, end, _verdict(term, batch_id, segment_id, start, of_rows))
    for term in (4, 5, 6)
    for batch_id in (6, 7, 8)
    for segment_id in ("l", "m", "n")
    for rows, start, end, of_rows in _ROWS
]
_BEHIND = [
    Case(5, 8, "n", (4, 5), 0, 6, "new"),
    Case(5, 8, "n", (4, 5), 0, 6, "forgotten", follows="nothing"),
    Case(5, 8, "n", (4, 5), 4, 6, "forgotten", follows="nothing"),
    Case(5, 8, "n", (4, 5), 0, 6, "new", follows="nothing", stored=False),
    Case(5, 8, "n", (), 0, 6, "new", follows="nothing", stored=False),
    Case(5, 8, "n", (4, 5), 0, 6, "forgotten", stored=False),
    Case(5, 8, "n", (), 0, 6, "forgotten", stored=False),
    Case(5, 8, "n", (4, 5), 4, 6, "forgotten", stored=False),
    Case(5, 8, "n", (4, 5), 4, 6, "forgotten", follows="nothing", stored=False),
    Case(5, 7, "m", (4, 5), 4, 6, "new", follows="nothing"),
]
"""Cases in which the position that the attempt read differs from the slot's entry, or equals it."""
CASES = [*_IN_ORDER, *_BEHIND]

STORING = Case(5, 7, "m", (0, 1, 2, 3), 0, 4, "new", follows="nothing", stored=False)
"""The chunk that brings a ledger to `STORED`."""


def _is_typical(case: Case) -> bool:
    if case.batch_id != STORED.position.batch_id:
        return case.batch_id == 6 and case.segment_id == "m" and (case.rows, case.start) == ((4, 5), 4)
    long = (case.rows, case.end) in {((0, 1, 2, 3), 4), ((3, 4), 5), ((4, 5), 6)}
    if case.term != STORED.term or case.segment_id != "m":
        return long and case.segment_id == ("m" if case.term != STORED.term else "n")
    return case.end != 3 and case.rows != (3,)


TYPICAL = [*filter(_is_typical, _IN_ORDER), *_BEHIND]
"""A selection for slow targets; it is large enough to detect a ledger that follows another rule."""

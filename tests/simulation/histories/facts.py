"""The judge's knowledge of every attempt and every sink, and the rows that each kind of sink may repeat or lack."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

NOTHING = -1
"""The number before the first batch."""


@dataclass(slots=True)
class Attempt:
    """One evaluation of a batch. Its rows are numbered from `first` on, and no other attempt has these numbers."""

    first: int
    batch_id: int
    end: int
    """The end of its offsets, which tells the history that it belongs to."""
    segments: tuple[int, ...]
    """Number of rows in each segment."""

    @property
    def rows(self) -> range:
        return range(self.first, self.first + sum(self.segments))

    def rows_from(self, ordinal: int, start: int, end: int) -> range:
        base = self.first + sum(self.segments[:ordinal])
        return range(base + start, base + end)


@dataclass(slots=True)
class SinkFacts:
    """Facts about one sink."""

    kind: str
    is_rolled: bool = False
    """Whether it gets rolls of batches."""
    first_batch: int | None = None
    """The batch with which it begins; None before it is registered."""
    floor: int | None = None
    """Low water at the time at which a committer of the sink first claimed a term."""
    marked: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    """How often each row took effect."""
    keys: dict[str, int] = field(default_factory=dict)
    """The first row of each key."""
    term: int = 0
    repeated_chunks: int = 0
    repeated_rows: int = 0
    late_rows: int = 0
    late: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=dict)
    """Sends after a term was superseded, by process and term."""
    known: dict[int, set[int]] = field(default_factory=dict)
    """Batches that were marked when a process could last look, by process."""
    rolls: dict[int, int] = field(default_factory=dict)
    """The rolls that were decided: the last batch of each, by its first one."""
    dead: dict[int, int] = field(default_factory=dict)
    """Rows kept as dead letters, each with the first one of its chunk."""

    def copy(self) -> SinkFacts:
        return SinkFacts(**{each.name: copied(getattr(self, each.name)) for each in fields(self)})


def copied(value: Any) -> Any:
    """A copy of a judge's knowledge. It shares only what never changes: numbers, tuples, attempts."""
    if isinstance(value, dict):
        other = value.copy()
        other.update((name, copied(inner)) for name, inner in value.items())
        return other
    return value.copy() if isinstance(value, (list, set, SinkFacts)) else value


def broken_by_repeats(facts: SinkFacts, disturbances: int, shape: tuple[tuple[int, ...], ...]) -> str | None:
    """The repeats or gaps by which a sink of this kind breaks I4 or I5, in words; None if there are none.

    `disturbances` counts everything that may leave one send in doubt: crashes, failures, takeovers, lost jobs.
    """
    match facts.kind:
        case "at_most_once":
            missing = {first for row, first in facts.dead.items() if row not in facts.seen}
            if facts.repeated_rows or len(missing) > disturbances:
                return f"at most once: {facts.repeated_rows} rows repeat, {len(missing)} chunks are missing"
        case "idempotent" | "transactional" | "two_phase" | "commit":
            if facts.repeated_rows:
                return f"I4: {facts.repeated_rows} rows repeat"
        case "lookup":
            if facts.repeated_rows > facts.late_rows:
                return f"I5: {facts.repeated_rows} rows repeat although it can look up"
        case "plain":
            if facts.repeated_chunks > disturbances:
                return f"I5: {facts.repeated_chunks} chunks repeat"
        case kind:
            window = max(sum(rows) if kind == "batch" else max(rows, default=0) for rows in shape)
            if facts.repeated_rows > disturbances * window:
                return f"I5: {facts.repeated_rows} rows repeat"
    return None

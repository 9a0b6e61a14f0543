"""A transactional target that loses acknowledged commits at a test's command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.house.sinks import Chunk, LedgerEntry, Position, Rejected, TransactionalSink

Row = tuple[int, int, int]
"""Batch, segment, and the number of the row in its segment."""


@dataclass(frozen=True)
class Commit:
    slot: str
    entry: LedgerEntry
    rows: tuple[Row, ...]


@dataclass
class Target:
    """The state of the target, which outlives every process. It refuses `bad` rows."""

    commits: list[Commit] = field(default_factory=list)
    bad: frozenset[Row] = frozenset()
    met: list[str] = field(default_factory=list)
    """Each `last`, `write` (before its effect) and `wrote` (after it), in the order of the calls."""
    due: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)
    """The actions at the n-th of these events."""

    def happens(self, what: str, number: int, then: Callable[[], object]) -> None:
        """Let an action happen at the n-th `last`, `write` or `wrote`."""
        self.due[what, number] = then

    def meet(self, what: str) -> None:
        self.met.append(what)
        then = self.due.get((what, self.met.count(what)))
        if then is not None:
            then()

    def forget(self, newest: int = 1, *, slot: int | None = None) -> None:
        """Lose the newest commits, rows and positions together. With `slot`, only commits of this slot."""
        doomed = [commit for commit in self.commits if slot is None or commit.slot.endswith(f"/{slot}")][-newest:]
        self.commits = [commit for commit in self.commits if commit not in doomed]

    def entry(self, slot: str) -> LedgerEntry | None:
        return next((commit.entry for commit in reversed(self.commits) if commit.slot == slot), None)

    @property
    def rows(self) -> list[Row]:
        return sorted(row for commit in self.commits for row in commit.rows)


class Forgetful(TransactionalSink):
    def __init__(self, target: Target) -> None:
        self.target = target

    def last(self, slot: str) -> Position | None:
        self.target.meet("last")
        entry = self.target.entry(slot)
        return entry.position if entry else None

    def write(self, chunk: Chunk) -> Rejected | None:
        self.target.meet("write")
        rejected = self.commit(chunk)
        self.target.meet("wrote")
        return rejected

    def describe(self) -> str:
        """The same for each double of this target, whatever it does wrong."""
        return "Forgetful"

    def commit(self, chunk: Chunk) -> Rejected | None:
        slot = chunk.position.slot
        if LedgerEntry.is_known(self.target.entry(slot), chunk, "this target"):
            return None
        rows = [(chunk.batch_id, int(slot.split("/")[2]), number) for number in chunk.rows]
        refused = {index: "it is bad" for index, row in enumerate(rows) if row in self.target.bad}
        if refused:
            return Rejected(refused)
        self.target.commits.append(Commit(slot, LedgerEntry.of(chunk), tuple(rows)))
        return None


def rows_of(*batches: Sequence[int]) -> list[Row]:
    """Return every row of some batches. Each batch is given by the numbers of rows of its segments."""
    return [
        (batch, segment, row)
        for batch, segments in enumerate(batches)
        for segment, count in enumerate(segments)
        for row in range(count)
    ]


def raising(error: Exception, *, after: Callable[[], Any] = lambda: None) -> Callable[[], None]:
    def fail() -> None:
        after()
        raise error

    return fail

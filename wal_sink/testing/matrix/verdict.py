"""What a crash matrix found, and how it is told to the author of the sink."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Self

from wal_sink.sinks.guarantees import Ability, Promise
from wal_sink.testing.data.rows import Difference

_MOST_SHOWN = 4
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")

What = Literal["dies", "fails", "stands still", "forgets"]
EVERYTHING: tuple[What, ...] = ("dies", "fails", "stands still", "forgets")


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of one process, and what happens to it there."""

    what: What
    number: int
    """Of the point in the life of the process, counted from 1."""
    name: str
    newest: int = 0
    """How many commits the target forgets."""

    def __str__(self) -> str:
        # A line has not run yet; the other points say "before" or "after" themselves.
        place = self.name.replace("inside ", "just before ", 1)
        if self.what == "dies":
            return f"the process died {place}"
        if self.what == "fails":
            return f"a request failed {place}, and was tried again"
        if self.what == "forgets":
            commits = "newest commit" if self.newest == 1 else f"{self.newest} newest commits"
            return f"the target lost its {commits} {place}"
        return f"the process stood still {place} until its successor had finished, then went on"

    @property
    def is_inside(self) -> bool:
        """Whether the sink has sent something of a chunk, and not all of it."""
        return self.name.startswith("inside ")

    @property
    def kind(self) -> str:
        """A line of the sink; else the same for points that differ only in their batch, segment or rows."""
        kind = self.name if self.is_inside else _NUMBERS.sub("#", self.name)
        return f"{kind}, less {self.newest}" if self.newest else kind

    @property
    def moment(self) -> str:
        """The same in every run: ids are new in each."""
        return f"{self.number} {self.kind}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A run that did not end as the sink's kind promises."""

    at: tuple[Point, ...]
    """Empty for a run that nothing disturbed."""
    difference: Difference
    permitted: int
    """Rows that this run might have repeated; delivered at most once: lost."""
    error: str = ""
    """Why the last process could not deliver, if it could not."""

    def __str__(self) -> str:
        story = ", then ".join(str(point) for point in self.at) or "nothing happened: no crash, no failure"
        problems = [self.error] if self.error else []
        if self.difference:
            problems.append("; ".join([str(self.difference), *self._allowance()]))
        return "\n     ".join([story, *problems])

    def _allowance(self) -> list[str]:
        if not self.difference.repeated:
            return []
        return [f"it may repeat {self.permitted} rows" if self.permitted else "it may repeat none"]


@dataclass(frozen=True, slots=True)
class CrashMatrix:
    """The outcome of every run of a matrix. Rows are counted over all runs."""

    sink: str
    promise: Promise
    points: int
    """Different moments at which something was made to happen."""
    known_points: int
    """Different moments at which something might have been made to happen: more than `points` if a part was chosen."""
    crashes: int
    """Processes that died."""
    failures: int
    """Requests that failed."""
    takeovers: int
    """Processes that stood still until a successor had finished, or had to wait for them."""
    waited: int
    """Of `takeovers`, those in which the successor had to wait for the process that stood still, or gave up."""
    lost: int
    repeated: int
    permitted: int
    """Rows that all runs together might have repeated."""
    losses: int = 0
    """Targets of transactional sinks that lost what they had acknowledged."""
    violations: tuple[Violation, ...] = field(default=())

    def check(self) -> Self:
        """This, if every run ended as promised; else `AssertionError`, with the points that show why not."""
        if self.violations:
            raise AssertionError(self.report())
        return self

    def __str__(self) -> str:
        return (
            f"{self.sink} ({self.promise.ability.value}): {self.crashes} crashes, {self.failures} failed requests and "
            f"{self.takeovers} takeovers{self._waiting()}{self._forgetting()} at {self.points} of {self.known_points} "
            f"points; {self.lost} rows lost, {self.repeated} repeated, {self.permitted} permitted to be repeated"
        )

    def report(self) -> str:
        """What was expected, what was found, what to do next."""
        shown = [f"  {number}. {violation}" for number, violation in enumerate(self.violations[:_MOST_SHOWN], 1)]
        more = len(self.violations) - _MOST_SHOWN
        lines = [
            str(self),
            f"expected: {self.promise.sentence}",
            f"found:    {len(self.violations)} runs that ended otherwise",
            *shown,
            *([f"  … and {more} more"] if more > 0 else []),
            *(f"next:     {advice}" for advice in self._advice()),
        ]
        return "\n".join(lines)

    def _waiting(self) -> str:
        return f" ({self.waited} of them waited for)" if self.waited else ""

    def _forgetting(self) -> str:
        return f", {self.losses} targets that forgot" if self.losses else ""

    def _advice(self) -> list[str]:
        forgetting = [violation for violation in self.violations if any(at.what == "forgets" for at in violation.at)]
        found = [violation.difference for violation in self.violations if violation not in forgetting]
        chosen = [advice for kind, advice in _GENERAL.items() if any(getattr(one, kind) for one in found)]
        if any(one.repeated for one in found):
            chosen.append(_REPEATED.get(self.promise.ability, _REPEATED[Ability.ACCEPT]))
        if forgetting:
            chosen.append(
                "let LedgerEntry.is_known(stored, chunk, where) decide, with what the slot holds at that moment and "
                "None where it holds nothing; last() and positions() ask the target each time"
            )
        if any(violation.error for violation in self.violations):
            chosen.append("an error kept the next process from delivering: the same chunk must be welcome again")
        return chosen


_GENERAL = {
    "lost": (
        "write() may return only when the rows are in the target for good: no buffer that is sent later, no error that "
        "is caught and forgotten, no key that is remembered before its rows are in"
    ),
    "foreign": (
        "rows_in(target) must give the rows as they were sent; override tables() if the target alters these values"
    ),
}
_REPEATED = {
    Ability.IGNORE_KNOWN_KEYS: (
        "let the target itself ignore what it has, for instance by chunk.row_keys() as a primary key or chunk.key as "
        "the name of an object; what this process remembers dies with it. Or leave idempotent = False: at least once"
    ),
    Ability.LOOK_UP: (
        "was_applied(key) must ask the target, and its answer must turn true with the last row of the chunk"
    ),
    Ability.TRANSACTIONAL: (
        "write rows and position in one transaction, which compares the stored position and term first"
    ),
    Ability.TWO_PHASE: (
        "prepare() must leave the rows invisible; commit(transaction, handle) must ask the target whether that "
        "transaction is committed already; abort() must reach no other transaction than its own"
    ),
    Ability.ACCEPT: "one chunk may be repeated, not more: does write() send rows of earlier chunks again?",
}

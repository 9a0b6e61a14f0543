"""The points at which a run can be disturbed, the choice of those that are tried, and the report of what was found."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, Self

from wal_sink.sinks.guarantees import Ability, Promise
from wal_sink.support.texts import counted
from wal_sink.testing.data.rows import Difference
from wal_sink.testing.simulation.watched import SENDING

_MOST_SHOWN = 4
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")

What = Literal["dies", "fails", "stands still", "forgets", "loses rows"]
EVERYTHING: tuple[What, ...] = ("dies", "fails", "stands still", "forgets", "loses rows")
LOSSES: tuple[What, ...] = ("forgets", "loses rows")
"""The disturbances of a target. They need another target in place of the first."""
Verdict = Literal["holds", "repeats", "detected", "cannot be seen"]
"""The fate of the rows: each is there once; some are there more than once, as the sink may do; some are missing, or
older ones stand in their place, and delivery ended with an error; the same without any error. From good to bad.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One moment in the life of a process, and the disturbance there."""

    what: What
    number: int
    """The number of the point in the life of the process, counted from 1."""
    name: str
    newest: int = 0
    """How many commits the target loses."""

    def __str__(self) -> str:
        # A line has not run yet. The names of other points already begin with "before" or "after".
        place = self.name.replace("inside ", "just before ", 1)
        if self.what == "dies":
            return f"the process died {place}"
        if self.what == "fails":
            return f"a request failed {place}, and was tried again"
        if self.what in LOSSES:
            commits = "newest commit" if self.newest == 1 else f"{self.newest} newest commits"
            lost = f"its {commits}" if self.what == "forgets" else f"the rows of its {commits}, but no position,"
            return f"the target lost {lost} {place}"
        return f"the process stood still {place} until a newer process had finished, then continued"

    @property
    def is_inside(self) -> bool:
        """Whether the sink may have sent a part of a chunk."""
        return self.name.startswith("inside ")

    @property
    def kind(self) -> str:
        """The line of the sink, or the name of the point without its batch, segment and rows."""
        kind = self.name if self.is_inside else _NUMBERS.sub("#", self.name)
        return f"{kind}, less {self.newest}" if self.newest else kind

    @property
    def moment(self) -> str:
        """A name of the point that is the same in every run. It holds no ids, since each run has new ones."""
        return f"{self.number} {self.kind}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A run that broke the promise of the sink."""

    at: tuple[Point, ...]
    """The disturbed points. Empty for an undisturbed run."""
    difference: Difference
    permitted: int
    """The number of rows that this run was allowed to repeat. For delivery at most once: to lose."""
    error: str = ""
    """The reason why the last process could not deliver, if there is one."""

    def __str__(self) -> str:
        story = ", then ".join(str(point) for point in self.at) or "nothing happened: no crash, no failure"
        problems = [self.error] if self.error else []
        if self.difference:
            problems.append("; ".join([str(self.difference), *self._allowance()]))
        return "\n     ".join([story, *problems])

    def _allowance(self) -> list[str]:
        if not self.difference.repeated:
            return []
        return [f"the sink may repeat {self.permitted} rows" if self.permitted else "the sink may repeat none"]


@dataclass(frozen=True, slots=True)
class CrashMatrix:
    """The result of all runs of a matrix. The counts of rows are sums over all runs."""

    sink: str
    promise: Promise
    points: int
    """The number of different points at which a run was disturbed."""
    known_points: int
    """The number of different points at which a run can be disturbed. Larger than `points` if only some were tried."""
    crashes: int
    """The number of processes that died."""
    failures: int
    """The number of requests that failed."""
    takeovers: int
    """The number of processes that stood still until a newer process had finished or had to wait for them."""
    waited: int
    """The number of `takeovers` in which the newer process had to wait for the one that stood still, or gave up."""
    lost: int
    """Missing rows, without those that a target lost and its sink may miss."""
    repeated: int
    permitted: int
    """The number of rows that all runs together were allowed to repeat."""
    losses: int = 0
    """How often a target lost commits that it had acknowledged, or their rows."""
    verdict: Verdict = "holds"
    """The worst that became of the rows in any run. A loss that a sink of this kind cannot notice breaks no promise."""
    violations: tuple[Violation, ...] = field(default=())

    def check(self) -> Self:
        """Return this matrix if every run kept the promise. Otherwise raise `AssertionError` with the report."""
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
        """Tell what was expected, what was found and what to do next."""
        shown = [f"  {number}. {violation}" for number, violation in enumerate(self.violations[:_MOST_SHOWN], 1)]
        more = len(self.violations) - _MOST_SHOWN
        lines = [
            str(self),
            f"expected: {self.promise.sentence}",
            f"found:    {counted(len(self.violations), 'run')} that broke this promise",
            *shown,
            *([f"  … and {more} more"] if more > 0 else []),
            *(f"next:     {advice}" for advice in self._advice()),
        ]
        return "\n".join(lines)

    def _waiting(self) -> str:
        return f" (the newer process waited in {self.waited} of them)" if self.waited else ""

    def _forgetting(self) -> str:
        return f", {self.losses} targets that lost rows" if self.losses else ""

    def _advice(self) -> list[str]:
        forgetting = [violation for violation in self.violations if any(at.what in LOSSES for at in violation.at)]
        found = [violation.difference for violation in self.violations if violation not in forgetting]
        chosen = [advice for kind, advice in _GENERAL.items() if any(getattr(one, kind) for one in found)]
        if any(one.repeated for one in found):
            chosen.append(_REPEATED.get(self.promise.ability, _REPEATED[Ability.ACCEPT]))
        if forgetting and self.promise.ability is Ability.TRANSACTIONAL:
            chosen.append(
                "let LedgerEntry.is_known(stored, chunk, where) decide: pass the entry that the slot holds at that "
                "moment, or None for an empty slot; read the target at each last() and positions()"
            )
        if forgetting and self.promise.ability is Ability.COMMIT:
            chosen.append(
                "read the target at each position(), and return is_shown=False if the commit that stored the position "
                "is no part of what the target shows; let the target refuse a commit on top of another state than the "
                "one that was compared"
            )
        if any(violation.error for violation in self.violations):
            chosen.append("an error kept a process from delivering: the sink must accept the same chunk again")
        return chosen


_GENERAL = {
    "lost": (
        "let write() return only after the rows are in the target durably: send no buffer later, hide no error, and "
        "store no key before its rows"
    ),
    "replaced": (
        "an old row came back: let the target itself refuse a write that is older than what it holds, by position and "
        "term (TransactionalSink), or give each row a separate key (chunk.row_keys())"
    ),
    "foreign": (
        "let rows_in(target) return the rows as they were sent; override tables() if the target changes these values"
    ),
}
_REPEATED = {
    Ability.IGNORE_KNOWN_KEYS: (
        "let the target itself ignore the rows that it has: use chunk.row_keys() as a primary key, for example, or "
        "chunk.key as the name of an object. A process loses its memory when it dies. Or leave idempotent = False, "
        "which promises at least once"
    ),
    Ability.LOOK_UP: "let was_applied(key) read the target, and return True only if the target has the whole chunk",
    Ability.TRANSACTIONAL: (
        "write rows and position in one transaction, and compare the stored position and term first in it"
    ),
    Ability.TWO_PHASE: (
        "keep the rows invisible in prepare(); read in commit(transaction, handle) whether the target has already "
        "committed this transaction; touch no other transaction in abort()"
    ),
    Ability.COMMIT: (
        "let the target itself refuse a commit on top of another state than the one whose position was compared with "
        "batch.follows; after a refusal, look again"
    ),
    Ability.ACCEPT: "only one chunk may be repeated: check whether write() sends rows of earlier chunks again",
}


BEFORE_SENDING = tuple(f"before {call}" for call in SENDING)
_AFTER_SENDING = tuple(f"after {call}" for call in SENDING)
_INSIDE = "inside "
_LOOKS = ("before last", "before position")
_MARKERS = tuple(f"{when} create sinks/default/markers" for when in ("before", "after"))
FORGOTTEN = (1, 2)
"""The numbers of newest commits that a target loses at a time. One concerns one segment, two may concern two."""
_TIMES_PER_LINE = 2
"""A line in a loop is tried twice. The second time differs from the first; later times do not differ any more."""


def points_of(names: Sequence[str], disturb: Iterable[What]) -> list[Point]:
    """Every point at which to disturb a process that passed points of these names, one kind of disturbance after the
    other.
    """
    wanted = set(disturb)
    return [point for what in EVERYTHING if what in wanted for point in _points_of_kind(what, names)]


def chosen(points: Sequence[Point], *, every: int, each_line: bool, seed: int = 0) -> list[Point]:
    """Choose one of `every` points, at random. A fixed step could miss a point that repeats itself every n points.

    With `each_line`, the choice always includes each line of the sink's code, each of its calls and each kind of
    operation of the log, for each kind of disturbance.
    """
    chance = random.Random(seed)  # noqa: S311 - a choice, not cryptography
    return [
        point
        for _, of_a_kind in groupby(points, key=lambda point: point.what)
        for point in _chosen(list(of_a_kind), every, chance, each_line=each_line)
    ]


def _points_of_kind(what: What, names: Sequence[str]) -> Iterable[Point]:
    seen: Counter[str] = Counter()
    if what in LOSSES:  # these runs do not stop at lines
        names = [name for name in names if not name.startswith(_INSIDE)]
    for number, name in enumerate(names, 1):
        seen[name] += 1
        if _matters(what, name, number) and not (name.startswith(_INSIDE) and seen[name] > _TIMES_PER_LINE):
            yield from (Point(what, number, name, newest) for newest in (FORGOTTEN if what in LOSSES else (0,)))


def _matters(what: What, name: str, number: int) -> bool:
    """Tell whether a disturbance at this point differs from those at other points.

    Between two effects a process only reads, so a death at any point there leaves the same traces. A target loses rows
    only between two calls of its sink: its transactions answer for everything within one call.
    """
    if what in LOSSES:
        return is_between_calls(name)
    if what == "dies":
        return number == 1 or name.startswith(("after ", *BEFORE_SENDING, _INSIDE))
    return name.startswith((*BEFORE_SENDING, *_AFTER_SENDING, _INSIDE))


def is_between_calls(name: str) -> bool:
    """Tell whether a target may lose something here. A later call or read of the sink has to notice it."""
    return name.startswith((*BEFORE_SENDING, *_AFTER_SENDING, *_LOOKS, *_MARKERS))


def _chosen(points: list[Point], every: int, chance: random.Random, *, each_line: bool) -> list[Point]:
    picked: set[Point] = set()
    if each_line:
        alike: dict[str, list[Point]] = {}
        for point in points:
            alike.setdefault(point.kind, []).append(point)
        picked = {chance.choice(group) for group in alike.values()}
    wanted = -(-len(points) // every)
    others = [point for point in points if point not in picked]
    picked.update(chance.sample(others, max(0, wanted - len(picked))))
    return [point for point in points if point in picked]

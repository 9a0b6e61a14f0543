"""Advice on an estimate: its first problem, and the smallest change that solves it.

The effect of a change is calculated: the changed plan is estimated like the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wal_sink.estimation.estimate import Estimate, estimate, is_in_driver
from wal_sink.estimation.plan import Plan

HEADROOM = 0.8
"""Share of a limit that may be used on average, because batches differ."""
PATIENCE_S = 3.5
"""Average seconds for which the client repeats a throttled request, in four tries (botocore's standard mode)."""
LONG_RESTART_S = 60.0
LARGE_MANIFEST_BYTES = 16 << 20
"""Bytes from which a manifest is large. The driver holds several of them decoded, and sends references to every
delivery task.
"""
DEAR_USD, DEAR_USD_PER_EXECUTOR = 100.0, 10.0
"""Dollars per month from which requests are expensive. An executor itself costs many times that."""


_NO_CHANGE = "no single change is enough: combine fewer partitions, a longer interval, several queries"


@dataclass(frozen=True, slots=True)
class Advice:
    """One problem, and its solution."""

    problem: str
    """Name of the problem; empty: there is none."""
    change: str
    """Change that solves it; empty: no tried change is enough."""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if not self.problem:
            return "nothing: no limit is near"
        change = self.change or _NO_CHANGE
        outcome = f", which makes it {self.after}" if self.after else ""
        return f"{self.problem} ({self.before}): {change}{outcome}"


@dataclass(frozen=True, slots=True)
class _Problem:
    """A possible problem. It exists if `measure` is above `limit`."""

    name: str
    measure: Callable[[Estimate], float]
    limit: Callable[[Estimate], float]
    shown: Callable[[Estimate], str]
    saves_money: bool = False


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"


_PROBLEMS = (
    _Problem(
        "delivery takes too much of the time",
        lambda found: found.busy,
        lambda _: HEADROOM,
        lambda found: (
            f"{_seconds(found.busy * found.plan.batch_interval_s)} of every {_seconds(found.plan.batch_interval_s)}"
        ),
    ),
    _Problem(
        "the store's limit for a prefix",
        lambda found: found.busiest.share or 0.0,
        lambda _: HEADROOM,
        lambda found: f"{found.busiest.share or 0.0:.0%} under {found.busiest.prefix}",
    ),
    _Problem(
        "segments that end together are held back longer than the client waits",
        lambda found: found.burst_s,
        lambda _: PATIENCE_S,
        lambda found: _seconds(found.burst_s),
    ),
    _Problem(
        "the store's limit, until it has split the WAL's folders",
        lambda found: found.whole.share or 0.0,
        lambda _: HEADROOM,
        lambda found: f"{found.whole.share or 0.0:.0%}",
    ),
    _Problem(
        "a long restart",
        lambda found: found.restart_s,
        lambda _: LONG_RESTART_S,
        lambda found: _seconds(found.restart_s),
    ),
    _Problem(
        "a large manifest",
        lambda found: found.manifest_bytes,
        lambda _: LARGE_MANIFEST_BYTES,
        lambda found: f"{found.manifest_bytes / 2**20:.1f} MiB",
    ),
    _Problem(
        "requests are dear",
        lambda found: found.dollars.requests if found.dollars else 0.0,
        lambda found: max(DEAR_USD, DEAR_USD_PER_EXECUTOR * found.plan.executors),
        lambda found: f"${found.dollars.requests if found.dollars else 0.0:,.0f} a month",
        saves_money=True,
    ),
)


def advise(found: Estimate) -> Advice:
    """The first problem of an estimate, and the first change after which neither it nor a more severe one exists.

    Costs need not fall below their limit: half of them is enough.
    """
    index = _first_problem(found)
    if index is None:
        return Advice("", "")
    problem = _PROBLEMS[index]
    # Several queries send the same number of requests, only elsewhere.
    for change in (each for each in changes(found) if each.wals == 1 or not problem.saves_money):
        changed = estimate(change.plan, found.store)
        left = _first_problem(changed)
        halved = problem.saves_money and left == index and problem.measure(changed) <= problem.measure(found) / 2
        if left is None or left > index or halved:
            return Advice(problem.name, change.what, problem.shown(found), problem.shown(changed))
    return Advice(problem.name, "", problem.shown(found))


def _first_problem(found: Estimate) -> int | None:
    """The index of the most severe problem."""
    return next((n for n, problem in enumerate(_PROBLEMS) if problem.measure(found) > problem.limit(found)), None)


@dataclass(frozen=True, slots=True)
class Change:
    """A plan that differs in one thing."""

    what: str
    plan: Plan
    wals: int = 1
    """Number of queries, each with its own WAL, into which the load is divided."""


def changes(found: Estimate) -> Iterator[Change]:
    """The changes to try, the smallest first."""
    plan, shape = found.plan, found.shape
    settings = plan.settings
    if is_in_driver(plan, shape) and shape.segments > 1:
        yield Change("Delivery(…, where='executors')", replace(plan, where="executors"))
    if settings.max_delivery_tasks is not None:
        more = replace(settings, max_delivery_tasks=None)
        yield Change("leave max_delivery_tasks to wal-sink", replace(plan, settings=more))
    if any(group.chunks_each > 1 and not group.uneven for group in shape.groups):
        yield from (_larger_chunks(plan, factor) for factor in (10, 100))
    yield from _fewer_segments(plan)
    for factor in (3, 6, 30):
        interval_s = plan.batch_interval_s * factor
        yield Change(f"a batch every {interval_s:g} s", replace(plan, batch_interval_s=interval_s))
    for wals in (2, 4, 8, 16, 32):
        if wals <= plan.executors:
            yield Change(f"{wals} queries, each with its own WAL and a part of the rows", _part(plan, wals), wals)


def _larger_chunks(plan: Plan, factor: int) -> Change:
    rows = plan.settings.chunk_rows * factor
    return Change(f"chunk_rows={rows}", replace(plan, settings=replace(plan.settings, chunk_rows=rows)))


def _fewer_segments(plan: Plan) -> Iterator[Change]:
    """Plans with fewer partitions, whose segments are larger. These have more chunks, so each plan is also tried with
    larger chunks.
    """
    for divisor in (4, 16, 64):
        fewer = (plan.segments or plan.slots) // divisor
        if fewer >= 1:
            change = Change(f"{fewer:,} partitions a batch (df.coalesce)", replace(plan, segments=fewer))
            chunks = _larger_chunks(change.plan, 10)
            yield change
            yield Change(f"{change.what} and {chunks.what}", chunks.plan)


def _part(plan: Plan, wals: int) -> Plan:
    segments = None if plan.segments is None else max(1, plan.segments // wals)
    return replace(plan, executors=plan.executors // wals, segments=segments)

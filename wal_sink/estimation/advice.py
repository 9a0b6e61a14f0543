"""Advice on an estimate: its first problem, and the smallest change that solves it.

The effect of a change is calculated: the changed plan is estimated like the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from wal_sink.errors import ConfigError
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
    """The changes to try, the smallest first. A plan that no cluster has is left out."""
    for what, change, wals in _candidates(found):
        try:
            changed = change(found.plan)
        except ConfigError:
            continue
        yield Change(what, changed, wals)


def _candidates(found: Estimate) -> Iterator[tuple[str, Callable[[Plan], Plan], int]]:
    """Text, effect on the plan, and number of queries."""
    plan, shape = found.plan, found.shape
    if is_in_driver(plan, shape) and shape.segments > 1:
        yield "Delivery(…, where='executors')", lambda plan: replace(plan, where="executors"), 1
    if plan.settings.max_delivery_tasks is not None:
        yield "leave max_delivery_tasks to wal-sink", _with_any_delivery_tasks, 1
    chunk_rows = plan.settings.chunk_rows
    if any(group.chunks_each > 1 and not group.uneven for group in shape.groups):
        for rows in (10 * chunk_rows, 100 * chunk_rows):
            yield f"chunk_rows={rows}", partial(_with_chunk_rows, chunk_rows=rows), 1
    # Fewer partitions have larger segments of more chunks, so each number is also tried with larger chunks.
    for divisor in (4, 16, 64):
        if fewer := (plan.segments or plan.slots) // divisor:
            what, rows = f"{fewer:,} partitions a batch (df.coalesce)", 10 * chunk_rows
            yield what, partial(_with_segments, segments=fewer), 1
            both = partial(_with_segments, segments=fewer, chunk_rows=rows)
            yield f"{what} and chunk_rows={rows}", both, 1
    for factor in (3, 6, 30):
        interval_s = plan.batch_interval_s * factor
        yield f"a batch every {interval_s:g} s", partial(_with_interval, interval_s=interval_s), 1
    for wals in (2, 4, 8, 16, 32):
        if wals <= plan.executors:
            yield f"{wals} queries, each with its own WAL and a part of the rows", partial(_part, wals=wals), wals


def _with_any_delivery_tasks(plan: Plan) -> Plan:
    return replace(plan, settings=replace(plan.settings, max_delivery_tasks=None))


def _with_chunk_rows(plan: Plan, *, chunk_rows: int) -> Plan:
    return replace(plan, settings=replace(plan.settings, chunk_rows=chunk_rows))


def _with_segments(plan: Plan, *, segments: int, chunk_rows: int | None = None) -> Plan:
    fewer = replace(plan, segments=segments)
    return fewer if chunk_rows is None else _with_chunk_rows(fewer, chunk_rows=chunk_rows)


def _with_interval(plan: Plan, *, interval_s: float) -> Plan:
    return replace(plan, batch_interval_s=interval_s)


def _part(plan: Plan, *, wals: int) -> Plan:
    """One of several queries, with its part of all rows, though executors do not divide evenly."""
    segments = None if plan.segments is None else max(1, plan.segments // wals)
    executors = plan.executors // wals
    rows_per_s = plan.rows_per_s * (plan.executors / (wals * executors))
    return replace(plan, executors=executors, segments=segments, rows_per_s=rows_per_s)

"""The costs so far, beside what `wal-sink estimate` calculates for batches of the same shape.

Objects that were written are counted in the WAL. Reads, polls and listings leave no trace, so the estimate alone has
them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import ConfigError
from wal_sink.estimation import KINDS, PRICES_OF, Estimate, Plan
from wal_sink.inspection.ages import seconds_between
from wal_sink.inspection.status import Status
from wal_sink.report.collect import Past, PastBatch
from wal_sink.sinks.guarantees import Ability

_LEAST_S = 0.001


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: the value that was found, and the estimated one."""

    what: str
    found: str
    estimated: str


@dataclass(frozen=True, slots=True)
class Costs:
    """The table of costs, or why there is none."""

    lines: tuple[Line, ...]
    note: str


def costs_of(status: Status, past: Past) -> Costs:
    """The costs of the batches so far, at the list prices of S3. Sends no request."""
    batches = [each for each in past.batches if not each.is_passed_over]
    kinds = [sink.kind if sink.kind in KINDS else Ability.ACCEPT for sink in status.sinks if sink.state != "retired"]
    if len(batches) < 2 or not kinds:
        return Costs((), "There are too few batches or sinks for an estimate.")
    try:
        found = Estimate(_plan(batches, kinds))
    except (ConfigError, ValueError) as error:
        return Costs((), f"There is no estimate: {error}")
    so_far = status.newest_batch - (status.first_batch or 0) + 1
    return Costs(tuple(_lines(found, past, so_far)), _note(found, status))


def _plan(batches: Sequence[PastBatch], kinds: Sequence[str]) -> Plan:
    rows, stored = (statistics.fmean(getattr(each, name) for each in batches) for name in ("rows", "bytes"))
    interval_s = _interval_s(batches)
    return Plan(
        batch_interval_s=interval_s,
        rows_per_s=rows / interval_s,
        row_bytes=stored / max(1, rows),
        segments=max(1, round(statistics.fmean(each.segments for each in batches))),
        chunk_rows=batches[-1].chunk_rows,
        sinks=tuple(kinds),
    )


def _interval_s(batches: Sequence[PastBatch]) -> float:
    pairs = itertools.pairwise(batches)
    between = [seconds_between(one.created, other.created) for one, other in pairs]
    return max(_LEAST_S, statistics.median(seconds for seconds in between if seconds is not None))


def _lines(found: Estimate, past: Past, so_far: int) -> list[Line]:
    plan, requests = found.plan, found.requests
    of_batch = sum(each.objects for each in past.batches) / len(past.batches) + len(plan.sinks)
    puts = of_batch * found.prices.per_1000_puts / 1000 * so_far
    stored = statistics.fmean(each.bytes for each in past.batches)
    return [
        Line("objects written a batch", f"{of_batch:,.1f} or more", f"{requests.puts:,.1f}"),
        Line("requests a batch", "reads leave no trace", f"{requests.total:,.1f}"),
        Line("bytes of segments a batch", f"{stored:,.0f}", f"{plan.rows * plan.row_bytes:,.0f}"),
        Line(
            f"requests of {so_far:,} batches so far",
            f"${puts:,.4f} or more",
            f"${found.dollars_of_batch * so_far:,.4f}",
        ),
        Line("a month at this pace", "", f"${found.request_dollars + found.storage_dollars:,.2f}"),
    ]


def _note(found: Estimate, status: Status) -> str:
    elsewhere = "This WAL does not lie on S3: the dollars are what it would cost there. "
    return (
        f"{'' if status.wal.startswith('s3') else elsewhere}Estimated for batches of the same shape every "
        f"{found.plan.batch_interval_s:,.1f} s, at the list prices of {PRICES_OF}. Objects that were written are "
        "counted; progress records, reads and polls are in the estimate alone."
    )

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
from wal_sink.estimation.estimate import MONTH_S, Estimate, estimate
from wal_sink.estimation.plan import S3_MODEL, Plan
from wal_sink.inspection.ages import seconds_between
from wal_sink.inspection.status import Status
from wal_sink.report.collect import Past, PastBatch
from wal_sink.settings import Settings
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
    sinks = [sink for sink in status.sinks if sink.state != "retired"]
    if len(batches) < 2 or not sinks:
        return Costs((), "There are too few batches or sinks for an estimate.")
    try:
        found = estimate(_plan(batches, len(sinks), _ability(sinks[0].kind)), S3_MODEL)
    except (ConfigError, ValueError) as error:
        return Costs((), f"There is no estimate: {error}")
    so_far = status.newest_batch - (status.first_batch or 0) + 1
    return Costs(tuple(_lines(found, past, so_far, len(sinks))), _note(found, status))


def _plan(batches: Sequence[PastBatch], sinks: int, ability: Ability) -> Plan:
    rows = max(1.0, statistics.fmean(each.rows for each in batches))
    row_bytes = max(1.0, statistics.fmean(each.bytes for each in batches) / rows)
    segments = max(1, round(statistics.fmean(each.segments for each in batches)))
    interval_s = _interval_s(batches)
    settings = Settings(chunk_rows=batches[-1].chunk_rows)
    return Plan(
        executors=1, cores_per_executor=segments, segments=segments, batch_interval_s=interval_s,
        rows_per_s=rows / interval_s, row_bytes=row_bytes, compression=1.0, columns=max(1, batches[-1].columns),
        offsets_bytes=batches[-1].offsets_bytes, inline_bytes=0, settings=settings, sinks=sinks, ability=ability,
    )  # fmt: skip


def _interval_s(batches: Sequence[PastBatch]) -> float:
    pairs = itertools.pairwise(batches)
    between = [seconds_between(one.created, other.created) for one, other in pairs]
    return max(_LEAST_S, statistics.median(seconds for seconds in between if seconds is not None))


def _ability(kind: str) -> Ability:
    return next((ability for ability in Ability if ability.value == kind), Ability.ACCEPT)


def _lines(found: Estimate, past: Past, so_far: int, sinks: int) -> list[Line]:
    of_batch = sum(each.objects for each in past.batches) / len(past.batches) + sinks
    prices, dollars = found.store.prices, found.dollars
    lines = [
        Line("objects written a batch", f"{of_batch:,.1f} or more", f"{found.requests.puts:,.1f}"),
        Line("requests a batch", "reads leave no trace", f"{found.requests.total + found.checkpoint_gets:,.1f}"),
        Line("bytes of segments a batch", f"{_bytes_of(past):,.0f}", f"{found.shape.bytes:,.0f}"),
    ]
    if prices is not None and dollars is not None:
        per_batch = dollars.requests / (MONTH_S / found.plan.batch_interval_s)
        puts = of_batch * prices.per_1000_puts / 1000 * so_far
        lines += [
            Line(f"requests of {so_far:,} batches so far", f"${puts:,.4f} or more", f"${per_batch * so_far:,.4f}"),
            Line("a month at this pace", "", f"${dollars.total:,.2f}"),
        ]
    return lines


def _bytes_of(past: Past) -> float:
    return statistics.fmean(each.bytes for each in past.batches)


def _note(found: Estimate, status: Status) -> str:
    prices, interval_s = found.store.prices, found.plan.batch_interval_s
    elsewhere = "This WAL does not lie on S3: the dollars are what it would cost there. "
    as_of = f" of {prices.as_of}" if prices else ""
    return (
        f"{'' if status.wal.startswith('s3') else elsewhere}Estimated for batches of the same shape every "
        f"{interval_s:,.1f} s, at S3's list prices{as_of}. Objects that were written are counted; progress records, "
        "reads and polls are in the estimate alone."
    )

"""How a WAL does right now: for each sink its lag, its backlog, its dead letters, and what keeps batches from deletion.

Everything is read once, with a bounded number of requests, and nothing is written. Ages compare the times in records
with the clock of this process, so they are only as right as the clocks agree.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from wal_sink.inspection.ages import age_s
from wal_sink.inspection.backlog import MOST_READ, Backlog, backlog_of
from wal_sink.inspection.commits import SparkCommit
from wal_sink.inspection.letters import NOT_COUNTED, Letters, read_letters
from wal_sink.inspection.registrations import find_registration, reading_log
from wal_sink.inspection.sink_errors import SinkError, read_error
from wal_sink.inspection.staged import find_staged
from wal_sink.inspection.status import SinkStatus, Status
from wal_sink.inspection.take_overs import take_overs
from wal_sink.recovery.inventory import newest_marker
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log

_NO_LAG = "a sink of an unfinished catch-up has no lag. To complete or end that: wal-sink sinks list WAL"


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How one sink does. Times are those of records; ages are seconds by the clock of the process that looked."""

    name: str
    delivered_at: str | None
    """When its newest marker was made; None if it has none."""
    delivered_age_s: float | None
    pending: Backlog
    pending_age_s: float | None
    """Age of the oldest batch that it lacks; None if there is none, or if this is unknown."""
    behind_spark: int | None
    """Batches that Spark completed and that the sink lacks; None if Spark's commits are unknown."""
    lag_s: float | None
    """Age of the oldest batch that it lacks; 0 if it lacks none, and None if this is unknown. Negative if the clocks
    differ.
    """
    lag_note: str
    """Why the lag is unknown, or what the oldest batch waits for; empty if there is nothing to say."""
    last_error: SinkError | None
    """The last error of its committer, which may be over. None if it never failed."""
    dead_letters: int
    """Dead letters with rows that were not sent again. At least so many, unless `letters.is_exact`."""
    letters: Letters
    """The same with their rows, since when, and how many were sent again."""
    letters_age_s: float | None
    """Seconds since the oldest of them was kept; None if there is none."""
    keeps_back: int
    """Batches that stay in the WAL because only this sink lacks them, or sinks that are as far."""
    is_retired: bool
    take_overs: int
    """How many of its newest processes were fenced by the next one within an hour; see `inspection.take_overs`."""
    is_holder: bool = False
    """Whether it is the sink of a catch-up: then it has no backlog and no lag."""

    @property
    def has_lag(self) -> bool:
        """Whether the sink is to get every batch, so that it can be behind."""
        return not (self.is_retired or self.is_holder)

    def is_late(self, max_lag_s: float) -> bool:
        """Whether the sink is further behind than allowed. An unknown lag is late, and so is one of the future."""
        return self.has_lag and (self.lag_s is None or abs(self.lag_s) > max_lag_s)

    def refuses_too_much(self, max_letters: int) -> bool:
        """Whether more dead letters wait than allowed, or it cannot be excluded."""
        return not self.is_retired and self.letters.may_exceed(max_letters)


@dataclass(frozen=True, slots=True)
class Health:
    """How a WAL does."""

    looked_at: str
    """The time at which it was read, by the clock of this process."""
    spark: SparkCommit
    sinks: tuple[SinkHealth, ...]

    @property
    def kept_back_by(self) -> tuple[str, ...]:
        """The sinks that keep batches from deletion."""
        return tuple(sink.name for sink in self.sinks if sink.keeps_back)


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where a sink stands: the first and the last batch that it must get, and the time of its last delivery."""

    status: SinkStatus
    expected: int
    last: int
    delivered_at: str | None


def read_health(store: Store, status: Status, spark: SparkCommit, *, now: datetime | None = None) -> Health:
    """Read how each sink of a WAL does. `spark` was read before, so that each batch it names is in the WAL.

    Two listings, and for each sink three listings and up to six reads (more if its processes end each other). Up to
    three requests more for each of the oldest pending batches, of which `MOST_READ` are read. A read for each dead
    letter that was not sent again, of which `MOST_LETTERS` of a sink are read, and none of a retired one. Raises
    `CorruptError`, also as `ObjectLost`, or `StoreError`; not for a damaged dead letter, which `letters.note` tells.
    """
    log = reading_log(store)
    now = now or log.runtime.now()
    standings = [_standing(log, sink, status) for sink in status.sinks]
    active = [each for each in standings if each.status.state != "retired"]
    start = min((each.expected for each in active), default=0)
    held = log.numbers(paths.BATCHES, after=max(start - 1, NOTHING))
    most = max(1, MOST_READ // max(1, len(active)) - 1)
    look = cache(lambda batch_id: find_staged(log, batch_id))
    found = []
    for each in standings:
        gets_all = each in active and not each.status.is_holder
        batches = [batch_id for batch_id in held if each.expected <= batch_id <= each.last] if gets_all else []
        committed = min(spark.newest, each.last) if gets_all and spark.newest is not None else None
        pending = backlog_of(batches, expected=each.expected, committed=committed, most=most, look=look)
        found.append(_health(log, each, pending, spark, now=now, keeps_back=_kept_back(each, active, held)))
    return Health(looked_at=now.isoformat(timespec="seconds"), spark=spark, sinks=tuple(found))


def _standing(log: Log, sink: SinkStatus, status: Status) -> _Standing:
    marker = newest_marker(log, sink.folder)
    first = 0
    if marker is None:
        registered = find_registration(log, sink.folder, None)
        first = max(registered.first_batch if registered else 0, status.low_water + 1)
    through = marker.batch_id if marker else NOTHING
    expected = max(through + 1, first, status.first_batch or 0)
    last = sys.maxsize if sink.last_batch is None else sink.last_batch
    return _Standing(sink, expected, last, marker.created if marker else None)


def _health(
    log: Log, standing: _Standing, pending: Backlog, spark: SparkCommit, *, now: datetime, keeps_back: int
) -> SinkHealth:
    sink, pending_age_s = standing.status, age_s(pending.oldest_staged, now)
    is_retired = sink.state == "retired"
    lag_s, note = (None, _NO_LAG) if sink.is_holder else _lag(pending, pending_age_s, spark)
    lacks_none = is_retired or (pending.oldest is None and pending.missing is None)
    expected = sys.maxsize if is_retired else standing.expected  # nobody will end the error of a retired sink
    letters = (
        Letters(is_exact=False, note=NOT_COUNTED)
        if is_retired
        else read_letters(log.store, sink.folder, log.runtime.side_by_side)
    )
    return SinkHealth(
        name=sink.name,
        delivered_at=standing.delivered_at,
        delivered_age_s=age_s(standing.delivered_at, now),
        pending=pending,
        pending_age_s=pending_age_s,
        behind_spark=None
        if spark.newest is None or is_retired or sink.is_holder
        else max(0, min(spark.newest, standing.last) - standing.expected + 1),
        lag_s=None if is_retired else lag_s,
        lag_note="" if is_retired else note,
        last_error=read_error(log, sink.folder, expected=expected, lacks_none=lacks_none, now=now),
        dead_letters=letters.due,
        letters=letters,
        letters_age_s=age_s(letters.since, now),
        keeps_back=0 if is_retired else keeps_back,
        is_retired=is_retired,
        take_overs=0 if is_retired else take_overs(log, sink.folder, sink.term, now),
        is_holder=sink.is_holder,
    )


def _lag(pending: Backlog, pending_age_s: float | None, spark: SparkCommit) -> tuple[float | None, str]:
    if pending.missing is not None:
        return None, f"batch {pending.missing} is due, but the WAL does not hold it, or not readably"
    if pending.oldest is None:
        return 0.0, ""
    if pending_age_s is None:
        return None, f"the time at which batch {pending.oldest} was staged is unknown"
    if spark.newest is not None and spark.newest < pending.oldest:
        return pending_age_s, f"batch {pending.oldest} waits until Spark completes it"
    return pending_age_s, "the clock of the writer is ahead of this machine's" if pending_age_s < 0 else ""


def _kept_back(standing: _Standing, active: Sequence[_Standing], held: Sequence[int]) -> int:
    """Batches that only this sink lacks, or sinks that are as far: from its next one to that of the next sink."""
    if any(each.expected < standing.expected for each in active):
        return 0
    end = min((each.expected for each in active if each.expected > standing.expected), default=None)
    return sum(1 for batch_id in held if batch_id >= standing.expected and (end is None or batch_id < end))

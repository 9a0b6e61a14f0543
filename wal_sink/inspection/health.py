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

from wal_sink.errors import ConfigError, CorruptError, OutcomeUnknownError, StoreError
from wal_sink.inspection.ages import age_s
from wal_sink.inspection.backlog import MOST_READ, Backlog, backlog_of
from wal_sink.inspection.batches import find_staged
from wal_sink.inspection.commits import SparkCommit, older_checkpoint
from wal_sink.inspection.letters import NOT_COUNTED, Letters, read_letters
from wal_sink.inspection.status import SinkStatus, Status, reading_log
from wal_sink.recovery.inventory import newest_marker
from wal_sink.redaction import redacted
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.holders import Holding, state_of
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import TermRecord
from wal_sink.wal.sink_records import EndedRecord, ErrorRecord

_LOOKS = 3
"""How often the newest record is looked for: between listing and read, a newer one may replace it."""
_OUTAGES = frozenset({StoreError.__name__, OutcomeUnknownError.__name__})
"""Errors of a store that did not answer. A committer with nothing to do meets them when it looks for its next batch."""
LOOKED_AT = 5
"""Newest terms of a sink that are looked at."""
WITHIN_S = 3600.0
"""Time in which so many terms are suspicious."""
_NO_LAG = "a sink of an unfinished catch-up has no lag. To complete or end that: wal-sink sinks list WAL"


@dataclass(frozen=True, slots=True)
class SinkError:
    """The last error that a committer left."""

    batch_id: int
    """The batch that the sink lacked; -1 if the record cannot be read."""
    attempts: int
    """Failed attempts in a row when it was recorded; there may have been more since."""
    error_class: str
    text: str
    since: str
    """When the first of these attempts failed."""
    at: str
    """When it was recorded."""
    age_s: float | None
    """Seconds since `since`."""
    term: int
    is_over: bool
    """Whether the sink has the batch by now. Also if only the store failed, and there is no batch that it lacks."""


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
    """How many of its newest processes were fenced by the next one within an hour; see `take_overs`."""
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
    checkpoint_fault: str | None
    """Why the checkpoint is older than the WAL; None if it is not, or if that is unknown."""
    sinks: tuple[SinkHealth, ...]
    kept_back_by: tuple[str, ...]
    """The sinks that keep batches from deletion."""


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
    `CorruptError` or `StoreError`; not for a damaged dead letter, which `letters.note` tells.
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
    through = max((sink.delivered_through for sink in status.sinks), default=NOTHING)
    return Health(
        looked_at=now.isoformat(timespec="seconds"),
        spark=spark,
        checkpoint_fault=older_checkpoint(spark, newest_batch=status.newest_batch, delivered_through=through) or None,
        sinks=tuple(found),
        kept_back_by=tuple(sink.name for sink in found if sink.keeps_back),
    )


def _standing(log: Log, sink: SinkStatus, status: Status) -> _Standing:
    marker = newest_marker(log, sink.folder)
    first = max(sink.first_batch, status.low_water + 1) if marker is None else marker.batch_id + 1
    last = sys.maxsize if sink.last_batch is None else sink.last_batch
    return _Standing(sink, max(first, status.first_batch or 0), last, marker.created if marker else None)


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


def read_error(log: Log, folder: str, *, expected: int, lacks_none: bool, now: datetime) -> SinkError | None:
    """The last error of a sink whose next batch is `expected`; None if there is none. One listing, and perhaps a read.

    `lacks_none`: no batch is known that the sink lacks. Then nobody will deliver one and end the error of an outage.

    A damaged record is an answer too: an error that cannot be read must not look like none.
    """
    for _ in range(_LOOKS):
        number = max(log.numbers(paths.errors(folder)), default=None)
        if number is None:
            return None
        try:
            record = log.find(ErrorRecord, paths.error(folder, number))
        except (CorruptError, ConfigError) as error:
            return SinkError(-1, 0, type(error).__name__, redacted(error), "", "", None, 0, is_over=False)
        if record is not None:
            return _error_of(record, expected, now, lacks_none=lacks_none)
    return None


def _error_of(record: ErrorRecord, expected: int, now: datetime, *, lacks_none: bool) -> SinkError:
    was_outage = lacks_none and record.error_class in _OUTAGES
    return SinkError(
        batch_id=record.batch_id,
        attempts=record.attempts,
        error_class=record.error_class,
        text=record.text,
        since=record.since,
        at=record.created,
        age_s=age_s(record.since, now),
        term=record.term,
        is_over=record.batch_id < expected or was_outage,
    )


# --- starts of a sink one after the other, each before the process before it recorded its end: processes that end each
# other in turn, or one that is killed again and again


def take_overs(log: Log, folder: str, newest: int, now: datetime) -> int:
    """How many of a sink's newest terms began before the process that held the one before had recorded its end. 0 if
    these terms are not of the last hour. A process that is known to be gone without that record was killed.

    No request for a sink with few terms, one read for any other, and two for each term only if they are so young.
    """
    role, first = paths.committer_role(folder), newest - LOOKED_AT + 1
    if first < 1:
        return 0
    try:
        began = log.find(TermRecord, paths.term(role, first))
        age = age_s(began.created, now) if began else None
        if age is None or age > WITHIN_S:
            return 0
        return sum(_was_fenced(log, role, number) for number in range(first, newest))
    except CorruptError:
        return 0  # terms count by their names; a record that cannot be read tells nothing


def _was_fenced(log: Log, role: str, number: int) -> bool:
    held = log.find(TermRecord, paths.term(role, number))
    following = log.find(TermRecord, paths.term(role, number + 1))
    if held is None or following is None or held.run_id == following.run_id:
        return False  # one process claims several terms to fence its requests
    ended = log.find(EndedRecord, paths.ended(role, number))
    if ended is None:
        return state_of(held.holder) is not Holding.GONE  # it was killed: one that is fenced records its end
    return ended.created > following.created

"""How a WAL does right now: for each sink its lag, its backlog, its dead letters, and what keeps batches from deletion.

Everything is read once, with a bounded number of requests, and nothing is written. Ages compare the times in records
with the clock of this process, so they are only as right as the clocks agree.

The number of batches that a sink lacks is exact, from one listing. Rows and bytes stand in the manifests. Only those of
the oldest batches are read, so with a long backlog the sums are lower bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from itertools import dropwhile, groupby, islice
from operator import itemgetter
from typing import TypeAlias

from wal_sink.errors import ConfigError, CorruptError, OutcomeUnknownError, StoreError
from wal_sink.log import paths
from wal_sink.log.holders import Holding, state_of
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import TermRecord
from wal_sink.log.sink_records import EndedRecord, ErrorRecord
from wal_sink.operate.batches import age_s
from wal_sink.operate.look import SinkOfWal, StagedBatch, WalFacts, find_staged
from wal_sink.operate.status import SinkStatus, SparkCommit, Status, older_checkpoint, status_of
from wal_sink.protocol.letters import find_dead_letter
from wal_sink.stores.base import Store
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import counted, text_of

MOST_LETTERS = 16
"""Dead letters of a sink that one look reads, so that its cost does not grow without a bound."""
MOST_BYTES = 16 * 1024 * 1024
"""After so many bytes of rows a look begins to read no more letters."""
_AT_ONCE = 4
NOT_COUNTED = "the sink is retired: its dead letters are not counted"
_File: TypeAlias = tuple[str, bool]
"""A file's path, and whether it was sent again. Which of its rows count depends on the newer files of its chunk."""
_Seen: TypeAlias = "Mapping[str, _Content | str | None]"
"""Of each file that was read its content, or why it cannot be read. None: it was deleted meanwhile."""
MOST_READ = 64
"""The most batches whose manifest is read, shared by all sinks."""
_LOOKS = 3
"""How often the newest record is looked for: between listing and read, a newer one may replace it."""
_OUTAGES = frozenset({StoreError.__name__, OutcomeUnknownError.__name__})
"""Errors of a store that did not answer. A committer with nothing to do meets them when it looks for its next batch."""
LOOKED_AT = 5
"""Newest terms of a sink that are looked at."""
WITHIN_S = 3600.0
"""Time in which so many terms are suspicious."""
_NO_LAG = "a sink of an unfinished catch-up has no lag. To complete or end the catch-up: wal-sink sinks list WAL"


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of one sink. A file without rows is none: it only tells that a process took a chunk over."""

    due: int = 0
    """Those with rows that were not sent again."""
    rows: int = 0
    """Their rows. A row that was refused several times counts once."""
    since: str | None = None
    """When the oldest of them was kept; None if there is none."""
    replayed: int = 0
    """Dead letters that were sent again and not deleted."""
    is_exact: bool = True
    """False: some were not read, or cannot be read. These are not counted, so there are at least as many."""
    files: int = 0
    """Files that were not sent again, as listed. There are at most so many dead letters. A file may have no rows."""
    note: str = ""
    """Why the numbers are not exact; empty if they are."""

    def may_exceed(self, most: int) -> bool:
        """Whether more wait than allowed, or it cannot be excluded."""
        return self.due > most or (not self.is_exact and self.files > most)


@dataclass(frozen=True, slots=True)
class _Content:
    rows: frozenset[int]
    created: str
    bytes: int


def read_letters(log: Log, folder: str, names: Sequence[str]) -> Letters:
    """Count the dead letters of a sink, of which a listing showed these names. A read for each file that was not sent
    again: those of the oldest batches, `MOST_LETTERS` at most. One that is damaged is told and not counted.
    """
    root = paths.dead_letter_batches(folder)
    replayed = {name.removesuffix(paths.REPLAYED) for name in names if name.endswith(paths.REPLAYED)}
    chunks: list[list[_File]] = []
    for files in _by_chunk(names):
        found = [(f"{root}/{file}", file.removesuffix(".parquet") in replayed) for file in files]
        chunks.append(list(dropwhile(itemgetter(1), found))[::-1])
    seen = _seen(log, [path for files in chunks for path, _ in files])
    waiting = [each for files in chunks for each in _due(files, seen)]
    note = _note(seen, sum(map(len, chunks)))
    return Letters(
        due=len(waiting),
        rows=sum(rows for rows, _ in waiting),
        since=min((created for _, created in waiting), default=None),
        replayed=len(replayed),
        is_exact=not note,
        files=sum(not was_sent and seen.get(path, "") is not None for files in chunks for path, was_sent in files),
        note=note,
    )


def _seen(log: Log, files: Sequence[str]) -> _Seen:
    """Read the first files, a few at once, until they are many or large."""
    seen: dict[str, _Content | str | None] = {}
    remaining = iter(files[:MOST_LETTERS])
    while some := list(islice(remaining, _AT_ONCE)):
        seen |= zip(some, log.runtime.side_by_side(partial(_content, log.store), some), strict=True)
        if sum(each.bytes for each in seen.values() if isinstance(each, _Content)) >= MOST_BYTES:
            break
    return seen


def _content(store: Store, path: str) -> _Content | str | None:
    try:
        letter = find_dead_letter(store, path)
    except (CorruptError, ConfigError) as error:
        return text_of(error)
    if letter is None:
        return None
    return _Content(frozenset(letter.chunk.rows), letter.created, letter.chunk.table.nbytes)


def _due(files: Sequence[_File], seen: _Seen) -> Iterator[tuple[int, str]]:
    """The rows of each dead letter of a chunk, and when it was kept; newest first. They end at the first file whose
    content is not known: it may have the same rows as the older ones.
    """
    newer: frozenset[int] = frozenset()
    for path, was_sent in files:
        content = seen.get(path, "not read")
        if isinstance(content, str):
            return
        if content is not None:
            own = content.rows - newer
            newer |= own
            if own and not was_sent:
                yield len(own), content.created


def _note(seen: _Seen, files: int) -> str:
    damaged = [content for content in seen.values() if isinstance(content, str)]
    parts = [f"{counted(len(damaged), 'file')} cannot be read, the first: {damaged[0]}"] if damaged else []
    if len(seen) < files:
        parts.append(f"{len(seen)} of {files} files were read")
    return "; ".join(parts)


def _by_chunk(names: Sequence[str]) -> Iterator[list[str]]:
    """The dead letters of each chunk, oldest first. One of unknown outcome has no number, and comes before all."""
    found = []
    for name in names:
        batch, _, file = name.rpartition("/")
        parsed = paths.parse_dead_letter(file)
        if parsed is not None:
            found.append(((batch, *parsed[:3]), -1 if parsed.number is None else parsed.number, name))
    for _, files in groupby(sorted(found), key=lambda each: each[0]):
        yield [name for *_, name in files]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Batches that a sink lacks."""

    batches: int = 0
    """Exact. A batch that is being staged does not count."""
    rows: int = 0
    bytes: int = 0
    is_exact: bool = True
    """Whether rows and bytes are those of all batches; otherwise there are at least as many."""
    oldest: int | None = None
    oldest_staged: str | None = None
    """When the oldest batch was staged; None if this is unknown, or if there is none."""
    missing: int | None = None
    """The first batch that the sink must get and that the WAL does not hold, or not readably."""


def backlog_of(
    batches: Sequence[int], *, expected: int, committed: int | None, most: int, look: Callable[[int], StagedBatch]
) -> Backlog:
    """The backlog of a sink whose next batch is `expected`. `batches`: those from there on that have any object.

    `committed`: Spark's newest commit, if known. `most`: how many batches may be read with `look`.
    """
    if not batches:
        missing = expected if committed is not None and committed >= expected else None
        return Backlog(missing=missing)
    read = [look(batch_id) for batch_id in batches[:most]]
    read += [look(batches[-1])] if len(batches) > most else []
    if _is_being_staged(read[-1], committed):
        batches, read = batches[:-1], read[:-1]
        if not batches:
            return Backlog()
    oldest = next((each for each in read if each.batch_id == batches[0]), None)
    manifests = [each.manifest for each in read if each.manifest is not None]
    first = oldest.manifest if oldest else None
    return Backlog(
        batches=len(batches),
        rows=sum(manifest.rows for manifest in manifests),
        bytes=sum(manifest.bytes for manifest in manifests),
        is_exact=len(manifests) == len(batches),
        oldest=batches[0],
        oldest_staged=first.created if first else None,
        missing=_first_missing(batches, read, expected=expected, committed=committed),
    )


def _is_being_staged(newest: StagedBatch, committed: int | None) -> bool:
    """Whether the newest batch has no manifest yet. Spark completes no batch before that."""
    return newest.manifest is None and newest.error is None and (committed is None or committed < newest.batch_id)


def _first_missing(
    batches: Sequence[int], read: Sequence[StagedBatch], *, expected: int, committed: int | None
) -> int | None:
    present = set(batches)
    gaps = (batch_id for batch_id in range(expected, batches[-1]) if batch_id not in present)
    unfit = (each.batch_id for each in read if each.manifest is None)
    beyond = (batches[-1] + 1,) if committed is not None and committed > batches[-1] else ()
    return min((*islice(gaps, 1), *islice(unfit, 1), *beyond), default=None)


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
    """Where a sink stands: the first and the last batch that it must get."""

    sink: SinkOfWal
    status: SinkStatus
    expected: int
    last: int


def read_health(
    facts: WalFacts, spark: SparkCommit, *, again: Callable[[], SparkCommit] | None = None, now: datetime | None = None
) -> Health:
    """Read how each sink of a WAL does. `spark` was read before any batch of `facts`, so each batch that it names is in
    the WAL. `again` reads it once more where the WAL seems to be ahead: then the query may have run on meanwhile.

    The listings of `facts`, and for each sink up to six reads (more if its processes end each other). Up to three
    requests more for each of the oldest pending batches, of which `MOST_READ` are read. A read for each dead letter
    that was not sent again, of which `MOST_LETTERS` of a sink are read, and none of a retired one. Raises
    `CorruptError` or `StoreError`; not for a damaged dead letter, which `letters.note` tells.
    """
    log, status = facts.log, status_of(facts)
    through = max((sink.delivered_through for sink in status.sinks), default=NOTHING)
    older = partial(older_checkpoint, newest_batch=status.newest_batch, delivered_through=through)
    now = now or log.runtime.now()
    fault = older(spark)
    if fault and again and (second := again()).newest is not None:  # a second look that failed clears no fault
        fault = older(second)
    standings = [_standing(*each, status) for each in zip(facts.sinks, status.sinks, strict=True)]
    active = [each for each in standings if not each.sink.is_retired]
    most = max(1, MOST_READ // max(1, len(active)) - 1)
    look = cache(lambda batch_id: find_staged(log, batch_id))
    found = []
    for each in standings:
        gets_all = each in active and not each.status.is_holder
        batches = [number for number in facts.batches if each.expected <= number <= each.last] if gets_all else []
        committed = min(spark.newest, each.last) if gets_all and spark.newest is not None else None
        pending = backlog_of(batches, expected=each.expected, committed=committed, most=most, look=look)
        kept_back = _kept_back(each, active, facts.batches)
        found.append(_health(log, each, pending, spark, now=now, keeps_back=kept_back))
    return Health(
        looked_at=now.isoformat(timespec="seconds"),
        spark=spark,
        checkpoint_fault=fault or None,
        sinks=tuple(found),
        kept_back_by=tuple(sink.name for sink in found if sink.keeps_back),
    )


def _standing(sink: SinkOfWal, its: SinkStatus, status: Status) -> _Standing:
    first = max(its.first_batch, status.low_water + 1) if sink.marker is None else sink.marker.batch_id + 1
    last = sys.maxsize if its.last_batch is None else its.last_batch
    return _Standing(sink, its, max(first, status.first_batch or 0), last)


def _health(
    log: Log, standing: _Standing, pending: Backlog, spark: SparkCommit, *, now: datetime, keeps_back: int
) -> SinkHealth:
    sink, is_holder, pending_age_s = standing.sink, standing.status.is_holder, age_s(pending.oldest_staged, now)
    delivered_at = sink.marker.created if sink.marker else None
    if sink.is_retired:  # nobody will end its error, so every batch counts as expected
        letters = Letters(is_exact=False, note=NOT_COUNTED)
        expected, lag_s, note, lacks_none = sys.maxsize, None, "", True
    else:
        letters = read_letters(log, sink.folder, sink.letters)
        lag_s, note = (None, _NO_LAG) if is_holder else _lag(pending, pending_age_s, spark)
        expected, lacks_none = standing.expected, pending.oldest is None and pending.missing is None
    return SinkHealth(
        name=sink.name,
        delivered_at=delivered_at,
        delivered_age_s=age_s(delivered_at, now),
        pending=pending,
        pending_age_s=pending_age_s,
        behind_spark=None
        if spark.newest is None or sink.is_retired or is_holder
        else max(0, min(spark.newest, standing.last) - standing.expected + 1),
        lag_s=lag_s,
        lag_note=note,
        last_error=read_error(log, sink.folder, expected=expected, lacks_none=lacks_none, now=now),
        dead_letters=letters.due,
        letters=letters,
        letters_age_s=age_s(letters.since, now),
        keeps_back=0 if sink.is_retired else keeps_back,
        is_retired=sink.is_retired,
        take_overs=0 if sink.is_retired else take_overs(log, sink.folder, sink.term, now),
        is_holder=is_holder,
    )


def _lag(pending: Backlog, pending_age_s: float | None, spark: SparkCommit) -> tuple[float | None, str]:
    if pending.missing is not None:
        return None, f"batch {pending.missing} is due, but the WAL does not hold it, or it cannot be read"
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

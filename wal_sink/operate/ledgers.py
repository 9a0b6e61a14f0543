"""Reading the ledger of a transactional target: the rows of a batch that one sink has delivered to it.

A ledger tells the rows exactly only if it is that of the right target, and if no process can still add some.

Of a restored ledger: which batches are due, and whether it can be the state of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.holders import Holding, holder_of
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Marker, Release, TermRecord, without_segments
from wal_sink.log.terms import Term
from wal_sink.protocol.inventory import Lost, require
from wal_sink.protocol.messages import LastDelivered
from wal_sink.protocol.positions import position_of
from wal_sink.sinks.base import CommitPosition, CommitSink, Sink, SinkContext, TransactionalSink
from wal_sink.sinks.calls import SinkSession
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import SinkFailedError, failure_error
from wal_sink.sinks.ledger import described, slot_name, stored_position
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import name_of

ASK_S = 120.0
"""Time limit of one call."""
MOST_TERMS = 64
"""Terms whose holders are looked at. If there are more, it counts as unknown whether all ended."""
MOST_LOOKED_AT = 10_000
"""Batches before the newest position that are compared with older slots."""


@runtime_checkable
class HasTable(Protocol):
    """A transactional target that can tell whether the place for its rows exists."""

    def has_table(self) -> bool:
        """Whether the table exists. A ledger may outlive it."""
        ...


def rows_in_ledger(
    log: Log, to: TransactionalSink, sink: str, manifest: Manifest, *, wal_id: str, before: Marker | None
) -> tuple[int, ...] | None:
    """The rows of each segment that the target has, by the slots of a sink that is to deliver the batch next. `before`:
    the newest marker of the sink. None: the ledger holds nothing of this sink, and need not, so it may be any ledger.

    Raises `DeliveryError` if the target gives no answer, `HistoryError` if its slots are ahead of the batch or behind
    the marker: then it is another target, or one of another history.
    """
    owed = owed_slots(before)
    with asked(log, to, manifest, wal_id=wal_id, sink=sink) as session:
        found = positions_of(session, to, sink, wal_id, max(len(manifest.segments), len(owed)))
    for number in Ledger(tuple(found), owed).behind:
        raise HistoryError(
            f"batch {owed[number][0]} was delivered and marked, but {name_of(to)} holds {described(found[number])} in "
            f"slot {slot_name(wal_id, sink, number)!r}. Either --to does not name the target of this sink, or the "
            "target was restored to an older state. Nothing was skipped"
        )
    if not owed and not any(found):
        return None
    return tuple(_rows(to, manifest, number, found[number]) for number in range(len(manifest.segments)))


def have_ended(log: Log, term: Term, *, since: int) -> bool:
    """Whether every process that held the role from term `since` on, below `term`, has certainly ended.

    One that lives may have a chunk in flight, which the target can still commit. The executors of a driver that was
    killed may live on too, for the chunk in their hand: nobody here can see them. Three reads for each term.
    """
    numbers = range(max(since, 1), term.number)
    if len(numbers) > MOST_TERMS:
        return False
    found = log.runtime.side_by_side(lambda number: _holding(log, term.role, number), numbers)
    ended = {run_id for run_id, state in found if state is Holding.ENDED}
    return all(run_id in ended or state is Holding.GONE for run_id, state in found)


def position_in(log: Log, to: CommitSink, sink: str, *, wal_id: str, batch_id: int) -> CommitPosition | None:
    """The position of a commit sink in its target. `batch_id`: for messages. Raises `DeliveryError`, `HistoryError`."""
    with asked(log, to, without_segments(batch_id), wal_id=wal_id, sink=sink) as session:
        return position_of(session, to, "position")


def told(found: CommitPosition | None) -> str:
    """The position of a commit sink, in words."""
    if found is None or found.is_shown:
        return "nothing" if found is None else f"batch {found.batch_id}"
    shows = f"batch {found.held_through}" if found.held_through > NOTHING else "nothing of this sink"
    return f"batch {found.batch_id}, which it does not show; it shows {shows}"


@contextmanager
def asked(
    log: Log,
    to: Sink,
    manifest: Manifest,
    *,
    wal_id: str,
    sink: str,
    term: int = 0,
    limit_s: float = ASK_S,
    renaming: Renaming = SAME,
) -> Iterator[SinkSession]:
    """An open session for questions, or with `renaming` for a chunk. Raises `DeliveryError` if the target gives no
    answer.
    """
    context = SinkContext(
        wal_id=wal_id,
        sink=sink,
        term=term,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        on_executor=False,
        spark_schema=manifest.spark_schema,
    )
    try:
        with opened(log, to, context, limit_s, renaming) as session:
            yield session
    except SinkFailedError as error:
        raise failure_error(error.failure, f"batch {manifest.batch_id}: {name_of(to)}") from error


@contextmanager
def opened(
    log: Log,
    to: Sink,
    context: SinkContext,
    limit_s: float,
    renaming: Renaming = SAME,
) -> Iterator[SinkSession]:
    """A session with an open sink. Its calls raise `SinkFailedError`, and so does opening it."""
    session = SinkSession(to, log.runtime.new_timed_call(), context, timeout_s=limit_s, renaming=renaming)
    try:
        session.open()
        yield session
    finally:
        session.close()


def positions_of(
    session: SinkSession, sink: TransactionalSink, name: str, wal_id: str, count: int
) -> list[Position | None]:
    """The positions of a sink's first slots, in order. One call. Raises `SinkFailedError`."""
    slots = [slot_name(wal_id, name, ordinal) for ordinal in range(count)]
    found: Mapping[str, object] = session.call("positions", sink.positions, slots)
    return [stored_position(f"last({slot!r})", slot, found.get(slot)) for slot in slots]


def is_for(identity: str, to: Sink) -> bool:
    """Whether a sink with this description was registered for this target."""
    return identity == redacted(name_of(to))


def _holding(log: Log, role: str, number: int) -> tuple[str, Holding]:
    """The run that claimed a term, and its state. A run notes its end beside the last of its terms only."""
    try:
        record = log.require(TermRecord, paths.term(role, number))
    except CorruptError:
        return "", Holding.UNKNOWN
    return record.run_id, holder_of(log, role, number).state


def _rows(to: TransactionalSink, manifest: Manifest, ordinal: int, position: Position | None) -> int:
    """The rows of a segment that the target has, given what its slot holds."""
    if position is None or position.batch_id < manifest.batch_id:
        return 0
    segment = manifest.segments[ordinal]
    if position.segment_id != segment.id:
        raise HistoryError(
            f"batch {manifest.batch_id}: {name_of(to)} holds batch {position.batch_id}, segment "
            f"{position.segment_id}, where segment {segment.id} is due. This is not the target of this sink, or "
            "a copy of the WAL delivers too"
        )
    return position.rows


@dataclass(frozen=True, slots=True)
class Ledger:
    """The positions of a sink in its target, by slot, and those that its newest marker stands for."""

    found: tuple[Position | None, ...]
    owed: tuple[tuple[int, int], ...]

    @property
    def newest(self) -> Position | None:
        """The newest position; None if no slot has one."""
        return max((each for each in self.found if each), key=lambda each: (each.batch_id, each.rows), default=None)

    @property
    def at(self) -> int:
        """The batch of the newest position; -1 if there is none. Every earlier batch is complete."""
        return self.newest.batch_id if self.newest else NOTHING

    @property
    def behind(self) -> list[int]:
        """The slots that lack a position that the marker stands for."""
        return [
            number
            for number, (owed, found) in enumerate(zip(self.owed, self.found, strict=False))
            if found is None or (found.batch_id, found.rows) < owed
        ]


@dataclass(frozen=True, slots=True)
class DueBatch:
    """A batch that the target lacks, or of which it lacks some rows."""

    batch_id: int
    rows: int | None
    """The rows that it lacks. None: the sink skipped the batch, and nobody knows which rows its target had."""
    bytes: int = 0
    segments: int = 0
    is_skipped: bool = False
    """Whether the sink skipped the batch. Only rows are sent that its target had then."""


@dataclass(frozen=True, slots=True)
class Due:
    """The batches that the target lacks."""

    batches: tuple[DueBatch, ...] = ()
    gone: range = range(0)
    """Those that the log does not hold any more."""
    slots: int = 0
    """The most segments of a batch."""


def owed_slots(marker: Marker | None) -> tuple[tuple[int, int], ...]:
    """The positions that a sink's newest marker stands for, by slot. Empty if no batch with rows was marked."""
    owed = LastDelivered.of(marker)
    return owed.slots if owed else ()


def find_due(log: Log, sink: str, ledger: Ledger, through: int, first_batch: int, *, held_from: int) -> Due:
    """The batches from the newest position up to `through`. Three reads a batch.

    `held_from`: from this batch on none is deleted that is there. Raises `HistoryError` if the newest position is of
    another segment than the log delivers, and `CorruptError`.
    """
    low_water = deleted_through(log, held_from=held_from)
    first = max(ledger.at, first_batch)
    held = range(max(first, low_water + 1), through + 1)
    batches = log.runtime.side_by_side(lambda batch_id: _due(log, sink, ledger, batch_id), held)
    last_gone = min(low_water, through)
    if first == ledger.at <= last_gone and _is_known_complete(log, ledger):
        first += 1
    slots = max((each.segments for each in batches), default=0)
    due = tuple(each for each in batches if each.rows != 0 or (each.is_skipped and each.batch_id > ledger.at))
    return Due(due, range(first, last_gone + 1), slots)


def released(log: Log, sink: str, batch_id: int) -> Manifest:
    """The released manifest of a batch that the sink has. Two reads. Raises `CorruptError`."""
    path = paths.release(batch_id)
    release = require(log, Release, path, Lost.RELEASE, paths.marker(sink, batch_id))
    return require(log, Manifest, paths.manifest(batch_id, release.term, release.attempt), Lost.MANIFEST, path)


def deleted_through(log: Log, *, held_from: int) -> int:
    """The newest batch that is deleted, or may be at any moment. A listing.

    Low water may rise past batches that a sink holds, if it was registered while they were looked at: those stay. One
    read more for each of these.
    """
    low_water = log.low_water()
    doubtful = range(low_water, held_from - 1, -1)
    gone = (batch_id for batch_id in doubtful if log.find(Release, paths.release(batch_id)) is None)
    return next(gone, min(low_water, held_from - 1))


def refuse_two_moments(
    log: Log, sink: str, ledger: Ledger, *, first_batch: int, left_out: Sequence[int], where: str
) -> None:
    """Raise `HistoryError` if a slot lacks rows of a batch before the newest position: then the ledger is no state that
    the target ever had. Up to three reads for each batch that the log holds between two slots.
    """
    at = ledger.at
    older = {number: each for number, each in enumerate(ledger.found) if (each.batch_id if each else NOTHING) < at}
    for number in ledger.behind:
        owed, _ = ledger.owed[number]
        if owed < at and owed not in left_out:
            raise _two_moments(where, number, ledger, owed)
    if not older:
        return
    lowest = min(each.batch_id if each else NOTHING for each in older.values())
    looked = range(max(lowest, log.low_water() + 1, first_batch, at - MOST_LOOKED_AT), at)
    lacking = log.runtime.side_by_side(lambda batch_id: _lacking(log, sink, older, batch_id), looked)
    for batch_id, slot in zip(looked, lacking, strict=True):
        if slot is not None and batch_id not in left_out:
            raise _two_moments(where, slot, ledger, batch_id)


def _two_moments(where: str, number: int, ledger: Ledger, batch_id: int) -> HistoryError:
    return HistoryError(
        f"{where} is at {described(ledger.newest)}, but slot {number} is at {described(ledger.found[number])} and "
        f"lacks rows of batch {batch_id}. So this ledger mixes states of different times. Restore rows and ledger "
        "from one backup, made in one transaction or while nothing was delivered. Nothing was sent"
    )


def _lacking(log: Log, sink: str, older: dict[int, Position | None], batch_id: int) -> int | None:
    """The first of these slots that lacks rows of a batch before the newest position; None if none does."""
    marker = log.find(Marker, paths.marker(sink, batch_id))
    if marker is not None and marker.skipped:
        return None
    manifest = released(log, sink, batch_id)
    for number, found in older.items():
        if number < len(manifest.segments) and _has(found, manifest, number) < manifest.segments[number].rows:
            return number
    return None


def _due(log: Log, sink: str, ledger: Ledger, batch_id: int) -> DueBatch:
    marker = log.find(Marker, paths.marker(sink, batch_id))
    if marker is None or not marker.skipped:
        manifest = released(log, sink, batch_id)
        there = sum(_there(ledger, manifest))
        return DueBatch(batch_id, manifest.rows - there, manifest.bytes, len(manifest.segments))
    had = marker.skipped_rows
    if had is None:
        return DueBatch(batch_id, None, is_skipped=True)
    if not any(had):
        return DueBatch(batch_id, 0, is_skipped=True)
    manifest = released(log, sink, batch_id)
    lacking = sum(max(0, rows - there) for rows, there in zip(had, _there(ledger, manifest), strict=False))
    return DueBatch(batch_id, lacking, manifest.bytes, len(manifest.segments), is_skipped=True)


def _there(ledger: Ledger, manifest: Manifest) -> list[int]:
    """Rows of each segment that the target has. Raises `HistoryError` if they are those of another history."""
    there = [0] * len(manifest.segments)
    if manifest.batch_id != ledger.at:
        return there
    for segment, found in zip(manifest.segments, ledger.found, strict=False):
        if found and found.batch_id == manifest.batch_id and found.segment_id != segment.id:
            raise HistoryError(
                f"batch {manifest.batch_id}: the target holds segment {found.segment_id} in slot {found.slot!r}, but "
                f"the WAL delivers segment {segment.id}. This is not the target of this sink, or it has another "
                "history. Nothing was sent"
            )
    for number, found in enumerate(ledger.found[: len(there)]):
        there[number] = _has(found, manifest, number)
    return there


def _has(found: Position | None, manifest: Manifest, number: int) -> int:
    """Rows of a segment that a slot stands for."""
    segment = manifest.segments[number]
    if found is None or found.batch_id < manifest.batch_id:
        return 0
    return segment.rows if found.batch_id > manifest.batch_id else min(found.rows, segment.rows)


def _is_known_complete(log: Log, ledger: Ledger) -> bool:
    """Whether the batch of the newest position, which the log gave up, is still there and tells that it is complete."""
    release = log.find(Release, paths.release(ledger.at))
    manifest = log.find(Manifest, paths.manifest(ledger.at, release.term, release.attempt)) if release else None
    return manifest is not None and sum(_there(ledger, manifest)) == manifest.rows

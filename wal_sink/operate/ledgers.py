"""Reading the ledger of a transactional target: the rows of a batch that one sink has delivered to it.

A ledger tells the rows exactly only if it is that of the right target, and if no process can still add some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.messages import LastDelivered
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import SinkFailedError, failure_error
from wal_sink.sinks.ledger import described
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term
from wal_sink.wal.holders import Holding, holder_of
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker, TermRecord

ASK_S = 120.0
"""Time limit of one call."""
MOST_TERMS = 64
"""Terms whose holders are looked at. If there are more, it counts as unknown whether all ended."""


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
    last = LastDelivered.of(before)
    owed = last.slots if last is not None else ()
    slots = [slot_name(wal_id, sink, number) for number in range(max(len(manifest.segments), len(owed)))]
    with asked(log, to, manifest, wal_id=wal_id, sink=sink) as session:
        positions = positions_of(session, to, sink, wal_id, len(slots))
    for slot, position, (batch_id, rows) in zip(slots, positions, owed, strict=False):
        if position is None or (position.batch_id, position.rows) < (batch_id, rows):
            raise HistoryError(
                f"batch {batch_id} was delivered and marked, but {name_of(to)} holds {described(position)} in slot "
                f"{slot!r}. Either --to does not name the target of this sink, or the target was restored to an older "
                "state. Nothing was skipped"
            )
    if not owed and not any(positions):
        return None
    return tuple(
        _rows(to, manifest, ordinal, position) for ordinal, position in enumerate(positions[: len(manifest.segments)])
    )


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


@contextmanager
def asked(
    log: Log,
    to: TransactionalSink,
    manifest: Manifest,
    *,
    wal_id: str,
    sink: str,
    term: int = 0,
    limit_s: float = ASK_S,
) -> Iterator[SinkSession]:
    """An open session for questions. Raises `DeliveryError` if the target gives no answer."""
    context = SinkContext(
        wal_id=wal_id,
        sink=sink,
        term=term,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        on_executor=False,
        spark_schema=manifest.spark_schema,
    )
    session = SinkSession(to, log.runtime.new_timed_call(), context, timeout_s=limit_s)
    try:
        session.open()
        yield session
    except SinkFailedError as error:
        raise failure_error(error.failure, f"batch {manifest.batch_id}: {name_of(to)}") from error
    finally:
        session.close()


def positions_of(
    session: SinkSession, sink: TransactionalSink, name: str, wal_id: str, count: int
) -> list[Position | None]:
    """The positions of a sink's first slots, in order. One call. Raises `SinkFailedError`."""
    slots = [slot_name(wal_id, name, ordinal) for ordinal in range(count)]
    found: Mapping[str, object] = session.call("positions", sink.positions, slots)
    return [stored_position(f"last({slot!r})", slot, found.get(slot)) for slot in slots]


def is_for(identity: str, to: TransactionalSink) -> bool:
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

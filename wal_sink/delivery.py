"""Delivering one segment to a sink, chunk by chunk. Runs on an executor or in the driver; the code is the same.

A failure of the sink is an outcome, not an exception: Spark's task retries must never repeat a send, and the retry
budgets are the committer's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from wal_sink import paths
from wal_sink.calls import Caller, CallTimedOutError, ProgramExitError
from wal_sink.chunk import Chunk, Position, chunk_key
from wal_sink.dead_letters import keep_unknown
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    DeliveryError,
    FencedError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
    StoreError,
    WalSinkError,
)
from wal_sink.log import Log
from wal_sink.records import Progress, SegmentRef
from wal_sink.segments import SegmentReader, load_segment, read_chunks, read_parquet
from wal_sink.sink import Lookup, Rejected, SegmentSink, Sink, SinkContext, TransactionalSink
from wal_sink.stores.spec import mask_url
from wal_sink.terms import Term

_logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Witness:
    """What a transactional target must at least remember; less means that it was restored to an older state."""

    batch_id: int
    rows: tuple[int, ...]
    """Rows of that batch in each slot."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all segments of a batch have in common when they are delivered to one sink."""

    wal_id: str
    sink: str
    term: Term
    batch_id: int
    columns: tuple[str, ...]
    spark_schema: str
    chunk_rows: int
    segments: int
    at_most_once: bool
    attempt_timeout_s: float
    witness: Witness | None


@dataclass(frozen=True, slots=True)
class Order:
    """One segment to deliver, from a row on."""

    ordinal: int
    segment: SegmentRef
    start: int
    maybe_sent: bool
    """Whether the chunk at `start` may have been sent before."""
    term_checked: bool = False
    """Whether the committer checked its term so shortly before that the first chunk needs no check of its own."""


class FailureKind(StrEnum):
    RETRIABLE = "retriable"
    UNKNOWN = "unknown"
    """The sink may have the chunk."""
    LOST = "lost"
    """The same, and whoever sent it may still be sending."""
    PERMANENT = "permanent"
    FENCED = "fenced"
    CORRUPT = "corrupt"
    HISTORY = "history"
    STOPPED = "stopped"
    """The run asked to end; not a failure of the sink."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a segment came."""

    ordinal: int
    rows: int
    """Rows from the segment's beginning that are settled: delivered, or given up by an at-most-once delivery."""
    chunks: int = 0
    """Chunks the sink took and the log knows of, in this attempt: what counts as progress."""
    failure: Failure | None = None


class SinkFailedError(Exception):
    """Leaves the calls of a sink with a failure that is the sink's or the store's. Never leaves this package."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


def call_sink(caller: Caller, what: str, function: Callable[..., T], *args: object, timeout_s: float) -> T:
    """Call a user's code; every way it can fail becomes a `SinkFailedError`."""
    try:
        return caller.call(function, *args, timeout_s=timeout_s)
    except CallTimedOutError as error:
        raise SinkFailedError(FailureKind.UNKNOWN, f"{what} timed out: {error}") from error
    except (PermanentError, ConfigError) as error:
        raise SinkFailedError(FailureKind.PERMANENT, mask_url(f"{what} refused for good: {error}")) from error
    except OutcomeUnknownError as error:
        raise SinkFailedError(FailureKind.UNKNOWN, mask_url(f"{what}: {error}")) from error
    except (FencedError, HistoryError, CorruptError) as error:
        raise SinkFailedError(kind_of(error), str(error)) from error
    except ProgramExitError as error:
        message = mask_url(f"{what} {error}: expected it to return, or to raise an Exception")
        raise SinkFailedError(FailureKind.PERMANENT, message) from error
    except Exception as error:  # a user's sink may raise anything; it becomes the batch's outcome
        message = mask_url(f"{what} raised {type(error).__name__}: {error}")
        raise SinkFailedError(FailureKind.RETRIABLE, message) from error


def check_returned(what: str, returned: object) -> None:
    """Anything but None or `Rejected` is an error: a sink that answers `False` did not succeed."""
    if returned is None:
        return
    if isinstance(returned, Rejected):
        first, reason = min(returned.reasons.items())
        message = f"{what} rejected {len(returned.reasons)} rows; row {first} of the chunk: {_shown(str(reason))}"
        raise SinkFailedError(FailureKind.PERMANENT, message)
    expected = "None (every row is in the target) or Rejected"
    raise SinkFailedError(FailureKind.PERMANENT, f"{what} returned {_repr(returned)}: expected {expected}")


def _repr(thing: object) -> str:
    try:
        return _shown(repr(thing))
    except Exception:  # noqa: BLE001 - a user's own __repr__
        return f"a {type(thing).__name__}"


def _shown(text: str, most: int = 200) -> str:
    """What a sink said, fit for a message: it may be a whole answer of a server, with an address that holds a token."""
    masked = mask_url(text)
    return masked if len(masked) <= most else f"{masked[: most - 1]}…"


class SinkSession:
    """One sink instance, opened once per delivery task, every call on the same thread and bounded in time."""

    def __init__(self, sink: Sink, caller: Caller, assignment: Assignment, *, on_executor: bool) -> None:
        self._sink = sink
        self._caller = caller
        self._assignment = assignment
        self._on_executor = on_executor
        self._opened = False

    @property
    def sink(self) -> Sink:
        return self._sink

    def open(self) -> None:
        """Open the sink if it is not yet; a failure is retriable, since nothing was sent."""
        if self._opened:
            return
        given = self._assignment
        context = SinkContext(
            wal_id=given.wal_id,
            sink=given.sink,
            term=given.term.number,
            batch_id=given.batch_id,
            columns=given.columns,
            on_executor=self._on_executor,
            spark_schema=given.spark_schema,
        )
        self.call("open", self._sink.open, context, nothing_sent=True)
        self._opened = True

    def call(self, what: str, function: Callable[..., T], *args: object, nothing_sent: bool = False) -> T:
        """Call the sink. Where nothing can have been sent yet, an unknown outcome is a retriable one."""
        timeout_s = self._assignment.attempt_timeout_s
        try:
            return call_sink(self._caller, what, function, *args, timeout_s=timeout_s)
        except SinkFailedError as error:
            if nothing_sent and error.failure.kind is FailureKind.UNKNOWN:
                error.failure = Failure(FailureKind.RETRIABLE, error.failure.message)
            raise

    def close(self) -> None:
        """Close the sink and its thread; what `write` returned from is in the target, so an error is only logged."""
        try:
            if self._opened:
                self.call("close", self._sink.close)
        except SinkFailedError as error:
            _logger.warning("sink %s: %s", self._assignment.sink, error)
        finally:
            self._caller.close()


class SegmentDelivery:
    """Carries out orders of one assignment on one sink session."""

    def __init__(
        self,
        assignment: Assignment,
        session: SinkSession,
        log: Log,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._given = assignment
        self._session = session
        self._log = log
        self._should_stop = should_stop

    def deliver(self, order: Order) -> Outcome:
        """Deliver one segment from `order.start` on. Raises nothing of the sink's, the store's or the history's."""
        run = _Run(order)
        try:
            data = load_segment(self._log.store, order.segment)
            self._session.open()
            if isinstance(self._session.sink, SegmentSink):
                self._whole_segment(run, data, self._session.sink)
            else:
                self._chunk_by_chunk(run, data)
        except SinkFailedError as error:
            run.failure = error.failure
        except WalSinkError as error:
            run.failure = Failure(kind_of(error), str(error))
        return run.outcome()

    def _chunk_by_chunk(self, run: _Run, data: bytes) -> None:
        sink = self._session.sink
        run.rows = max(run.rows, self._stored_rows(sink, run.order))
        for chunk in self._chunks(run.order, data, run.rows):
            if self._should_stop():
                raise SinkFailedError(FailureKind.STOPPED, "the run is ending")
            if self._given.at_most_once:
                self._send_at_most_once(run, chunk)
            else:
                self._send(run, chunk)

    def _send(self, run: _Run, chunk: Chunk) -> None:
        """Send, then record."""
        self._check_term(run)
        sink = self._session.sink
        doubtful = run.order.maybe_sent and run.rows == run.order.start
        if not (doubtful and isinstance(sink, Lookup) and self._was_applied(sink, chunk)):
            self._write(chunk)
        if not isinstance(sink, TransactionalSink) and not self._marker_follows(run.order, chunk):
            self._record(run.order, chunk)
        run.rows = chunk.position.rows
        run.chunks += 1

    def _send_at_most_once(self, run: _Run, chunk: Chunk) -> None:
        """Record, then send; whatever goes wrong while sending, this chunk is never sent again.

        The term is checked in between: a record that could be created may be one that a successor made and collected.
        """
        self._record(run.order, chunk)
        self._given.term.check(self._log.store)
        try:
            self._write(chunk)
        except SinkFailedError as error:
            # Settled only once it is kept: if keeping fails, the record tells the next attempt to keep it.
            keep_unknown(self._log.store, self._given.sink, run.order.ordinal, chunk, reason=str(error))
            run.rows = chunk.position.rows
            raise
        run.rows = chunk.position.rows
        run.chunks += 1

    def _whole_segment(self, run: _Run, data: bytes, sink: SegmentSink) -> None:
        self._check_term(run)
        last: list[Chunk] = []
        chunks = _remember_last(self._chunks(run.order, data, 0), last)
        returned = self._session.call(
            self._what(run.order), sink.write_segment, run.order.ordinal, self._given.batch_id, chunks
        )
        check_returned(self._what(run.order), returned)
        if self._given.segments > 1 and last:
            self._record(run.order, last[0])
        run.rows = run.order.segment.rows
        run.chunks += 1

    def _check_term(self, run: _Run) -> None:
        """Before each send: what a successor may see repeated is then the chunk in hand alone. One read."""
        if not (run.order.term_checked and run.chunks == 0):
            self._given.term.check(self._log.store)

    def _stored_rows(self, sink: Sink, order: Order) -> int:
        """Rows of the segment a transactional target already has. Refuses one that forgot what it had."""
        if not isinstance(sink, TransactionalSink):
            return 0
        slot = slot_name(self._given.wal_id, self._given.sink, order.ordinal)
        stored = self._last(sink, slot)
        self._check_witnesses(sink, order.ordinal, stored)
        if stored is None or stored.batch_id < self._given.batch_id:
            return 0
        if stored.batch_id > self._given.batch_id or stored.segment_id != order.segment.id:
            raise HistoryError(
                f"batch {self._given.batch_id}, sink {self._given.sink!r}: its target already holds batch "
                f"{stored.batch_id}, segment {stored.segment_id}, in slot {slot!r}, where segment "
                f"{order.segment.id} is due; the WAL was restored to an older state. Restore the newer WAL, or "
                "start a new one"
            )
        return stored.rows

    def _last(self, sink: TransactionalSink, slot: str) -> Position | None:
        return self._session.call(f"last({slot!r})", sink.last, slot, nothing_sent=True)

    def _check_witnesses(self, sink: TransactionalSink, ordinal: int, stored: Position | None) -> None:
        """The segments of a batch share the slots of the witness among them, each its own first."""
        witness = self._given.witness
        if witness is None:
            return
        for number in range(ordinal, len(witness.rows), self._given.segments):
            slot = slot_name(self._given.wal_id, self._given.sink, number)
            self._check_witness(witness, number, slot, stored if number == ordinal else self._last(sink, slot))

    def _check_witness(self, witness: Witness, number: int, slot: str, found: Position | None) -> None:
        if found and (found.batch_id, found.rows) >= (witness.batch_id, witness.rows[number]):
            return
        at = "nothing" if found is None else f"batch {found.batch_id}, row {found.rows}"
        raise HistoryError(
            f"sink {self._given.sink!r}: batch {witness.batch_id} was delivered and marked, but its target "
            f"remembers {at} in slot {slot!r}; the target was restored to an older state. Nothing was "
            "sent to that slot. Restore the newer target, or deliver from an older WAL"
        )

    def _was_applied(self, sink: Lookup, chunk: Chunk) -> bool:
        return bool(self._session.call(f"was_applied({chunk.key!r})", sink.was_applied, chunk.key, nothing_sent=True))

    def _write(self, chunk: Chunk) -> None:
        what = f"batch {chunk.batch_id}, chunk {chunk.key}: {self._session.sink.describe()}"
        check_returned(what, self._session.call(what, self._session.sink.write, chunk))

    def _record(self, order: Order, chunk: Chunk) -> None:
        """Create the progress record. Another's means that somebody else delivers the same segment: this one stops."""
        rows = chunk.position.rows
        path = paths.progress(self._given.sink, self._given.batch_id, order.ordinal, rows)
        record = Progress(
            batch_id=self._given.batch_id,
            ordinal=order.ordinal,
            rows=rows,
            segment_id=order.segment.id,
            term=self._given.term.number,
            run_id=self._log.run_id,
            **self._log.stamp(),
        )
        if self._log.create(path, record):
            return
        self._given.term.check(self._log.store)
        raise SinkFailedError(
            FailureKind.UNKNOWN, f"{self._log.store.url_of(path)} was written by another attempt at the same segment"
        )

    def _marker_follows(self, order: Order, chunk: Chunk) -> bool:
        """The last chunk of a batch of one segment needs no record: the marker, created at once, stands for it."""
        return self._given.segments == 1 and chunk.position.rows == order.segment.rows

    def _chunks(self, order: Order, data: bytes, start: int) -> Iterator[Chunk]:
        where = self._log.store.url_of(order.segment.path)
        reader = self._log.segment_reader
        return chunks_of(self._given, order.ordinal, order.segment, data, start, where=where, reader=reader)

    def _what(self, order: Order) -> str:
        return f"batch {self._given.batch_id}, segment {order.segment.id}: {self._session.sink.describe()}"


def slot_name(wal_id: str, sink: str, ordinal: int) -> str:
    """Under which a transactional target stores the position of a batch's n-th segment; used again by every batch."""
    return f"{wal_id}/{sink}/{ordinal}"


def chunks_of(
    given: Assignment,
    ordinal: int,
    segment: SegmentRef,
    data: bytes,
    start: int,
    *,
    where: str,
    reader: SegmentReader = read_parquet,
) -> Iterator[Chunk]:
    """The chunks of a loaded segment from row `start` on, which must begin one. Raises `CorruptError`."""
    slot = slot_name(given.wal_id, given.sink, ordinal)
    tables = read_chunks(
        data, segment, chunk_rows=given.chunk_rows, columns=given.columns, start=start, where=where, reader=reader
    )
    for first, end, table in tables:
        yield Chunk(
            table=table,
            batch_id=given.batch_id,
            key=chunk_key(segment.id, first, end),
            segment_id=segment.id,
            rows=range(first, end),
            position=Position(slot, given.batch_id, end, segment.id),
            term=given.term.number,
        )


@dataclass(slots=True)
class _Run:
    """Mutable state of one order under way."""

    order: Order
    rows: int = 0
    chunks: int = 0
    failure: Failure | None = None

    def __post_init__(self) -> None:
        self.rows = self.order.start

    def outcome(self) -> Outcome:
        return Outcome(self.order.ordinal, self.rows, self.chunks, self.failure)


def _remember_last(chunks: Iterator[Chunk], last: list[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        last[:] = [chunk]
        yield chunk


def kind_of(error: WalSinkError) -> FailureKind:
    if isinstance(error, FencedError):
        return FailureKind.FENCED
    if isinstance(error, CorruptError):
        return FailureKind.CORRUPT
    if isinstance(error, HistoryError):
        return FailureKind.HISTORY
    if isinstance(error, (StoreError, OutcomeUnknownError)):
        return FailureKind.UNKNOWN
    return FailureKind.PERMANENT


def failure_error(failure: Failure, what: str) -> WalSinkError:
    """The exception a committer raises for a failure it cannot retry."""
    errors: dict[FailureKind, type[WalSinkError]] = {
        FailureKind.FENCED: FencedError,
        FailureKind.CORRUPT: CorruptError,
        FailureKind.HISTORY: HistoryError,
    }
    return errors.get(failure.kind, DeliveryError)(f"{what}: {failure.message}")

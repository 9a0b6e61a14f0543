"""Delivering one segment to a sink, chunk by chunk. The same code runs on executors and in the driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from wal_sink.dead_letters.files import keep_unknown
from wal_sink.dead_letters.rejections import Rejections
from wal_sink.delivery.positions import Positions
from wal_sink.delivery.recording import Looks, Records
from wal_sink.errors import WalSinkError
from wal_sink.messages import DeliveryContext, SegmentResult, SegmentTask, failed_as_a_whole
from wal_sink.reporting.logs import logging_about
from wal_sink.reporting.texts import name_of
from wal_sink.runtime.rate_limit import RowRate
from wal_sink.sinks.base import Lookup, Rejected, SegmentSink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.sinks.failures import Failure, FailureKind, SinkFailedError, failure_of
from wal_sink.sinks.positions import slot_name
from wal_sink.sinks.session import SinkSession, ask_applied, check_returned, handed, rejected_of
from wal_sink.telemetry.measures import Histogram
from wal_sink.two_phase.commit import SegmentCommit
from wal_sink.wal.log import Log
from wal_sink.wal.records import SegmentRef
from wal_sink.wal.segment_reader import SegmentReader, load_segment, read_chunks, read_parquet

T = TypeVar("T")

_KEEP_REFUSED = "Correct the rows in the query, or keep them as dead letters: Delivery(…, on_rejected='dead_letter')"


class SegmentDelivery:
    """Carries out the tasks of one delivery context on one sink session."""

    def __init__(
        self,
        delivery_context: DeliveryContext,
        session: SinkSession,
        log: Log,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        looked_s: float = -math.inf,
        host: str = "",
    ) -> None:
        """`looked_s`: time of the last look at the term, by the monotonic clock of this process. `host`: name of the
        executor's host; empty in the committer's process.
        """
        self._host = host
        self._given = delivery_context
        self._session = session
        self._log = log
        self._should_stop = should_stop
        self._rate = RowRate(delivery_context.rows_per_s, log.runtime)
        self._looks = Looks(delivery_context, log, looked_s=looked_s)
        self._records = Records(delivery_context, log)
        self._times: Histogram | None = None

    def deliver(self, task: SegmentTask) -> SegmentResult:
        """Deliver one segment from `task.start` on. Errors of the sink, the store and the history are in the result."""
        given, wal = self._given, self._log.store.root
        with logging_about(wal=wal, sink=given.sink, batch=given.batch_id, segment=task.segment.id):
            if not given.measured:
                return self._deliver(task)
            self._times = Histogram()
            return replace(self._deliver(task), chunk_times=self._times.times())

    def _deliver(self, task: SegmentTask) -> SegmentResult:
        run = _Run(task, self._log.runtime.monotonic_s)
        try:
            if isinstance(self._session.sink, TwoPhaseSink):
                self._session.open()
                self._commit(run, self._session.sink)
                return run.result(self._host)
            data = self._load(task)
            run.note_fetched()
            self._session.open()
            if isinstance(self._session.sink, SegmentSink):
                self._whole_segment(run, data, self._session.sink)
            else:
                self._chunk_by_chunk(run, data)
        except (SinkFailedError, WalSinkError) as error:
            run.failure = failure_of(error)
            self._record_what_is_known(run)
        return run.result(self._host)

    def _load(self, task: SegmentTask) -> bytes:
        """The bytes of a segment. A look at the term that its first chunk needs is taken at the same time, where looks
        go by time.
        """
        if not self._looks.is_due(task):
            return load_segment(self._log.store, task.segment)
        loaded: list[bytes] = []

        def load() -> None:
            loaded.append(load_segment(self._log.store, task.segment))

        # The look comes first: its error says more than that of a segment that a newer run has collected.
        both: Sequence[Callable[[], None]] = (self._looks.look_now, load)
        self._log.runtime.side_by_side(lambda request: request(), both)
        return loaded[0]

    def confirm(self, segments: Sequence[SegmentRef]) -> list[SegmentResult]:
        """Ask a transactional target what it has of the batch, once all segments are delivered: one result per segment,
        or a single one of ordinal `NO_SEGMENT` if it gives no answer. No result for any other sink.
        """
        sink = self._session.sink
        if not isinstance(sink, TransactionalSink):
            return []
        try:
            self._session.open()
            return Positions(self._given, self._session, sink).confirm(segments)
        except (SinkFailedError, WalSinkError) as error:
            return [failed_as_a_whole(failure_of(error))]

    def _commit(self, run: _Run, sink: TwoPhaseSink) -> None:
        segment_commit = SegmentCommit(
            self._given,
            self._session,
            sink,
            self._log,
            read=self._kept_chunks,
            refuse_stopped=self._refuse_stopped,
        )
        segment_commit.commit(run.task)
        rows = run.task.segment.rows
        if self._given.segments > 1:
            self._records.create(run.task, rows)
        run.rows = rows
        run.note_sent(recorded=1)

    def _kept_chunks(self, task: SegmentTask) -> Iterator[Chunk]:
        return self._chunks(task, load_segment(self._log.store, task.segment), 0)

    def _chunk_by_chunk(self, run: _Run, data: bytes) -> None:
        sink = self._session.sink
        follows = None  # only the ledger of a transactional target compares it
        if isinstance(sink, TransactionalSink):
            positions = Positions(self._given, self._session, sink)
            follows, run.rows = positions.begin(run.task)
        self._records.begin()
        for chunk in self._chunks(run.task, data, run.rows, follows):
            self._refuse_stopped()
            self._rate.wait(self._sleep_s)
            self._rate.take(chunk.num_rows, since_s=self._rate.now_s())
            if self._given.at_most_once:
                self._send_at_most_once(run, chunk)
            else:
                self._send(run, chunk)

    def _refuse_stopped(self) -> None:
        if self._should_stop():
            raise SinkFailedError(FailureKind.STOPPED, "the run is ending")

    def _sleep_s(self, seconds: float) -> None:
        self._log.runtime.sleep_s(seconds)
        self._refuse_stopped()

    def _send(self, run: _Run, chunk: Chunk) -> None:
        """Send, then record."""
        self._looks.look(run.task, is_first=run.sent == 0)
        doubtful = (run.task.maybe_sent and run.sent == 0) or chunk.start < run.task.sent_through
        if isinstance(self._session.sink, TransactionalSink):
            self._send_in_transaction(run, chunk, doubtful=doubtful)
            run.rows = chunk.position.rows
            run.note_sent(recorded=1)
            return
        if not (doubtful and self._was_answered(run, chunk)):
            self._write(run, chunk)
        if self._given.records_by_time:
            run.rows = chunk.position.rows
            run.note_sent(recorded=0)
            run.recorded += self._records.note(run.task, chunk.position.rows)
            return
        if not self._records.marker_follows(run.task, chunk.position.rows):
            self._records.create(run.task, chunk.position.rows)
        run.rows = chunk.position.rows
        run.note_sent(recorded=1)

    def _record_what_is_known(self, run: _Run) -> None:
        """After a failure: record what the sink has, so that it counts as progress, and is not sent again.

        A failure of the record changes nothing: these chunks are then sent again under their keys. A superseded process
        records nothing.
        """
        if run.failure is None or run.failure.kind is FailureKind.FENCED:
            return
        with suppress(SinkFailedError, WalSinkError):
            run.recorded += self._records.create_due()

    def _send_in_transaction(self, run: _Run, chunk: Chunk, *, doubtful: bool) -> None:
        """Send rows and position in one transaction. Refused rows are kept first, then the others are sent again."""
        rejections = self._rejections(run, chunk)
        rest = chunk
        if doubtful and (self._given.keeps_rejected or rejections.is_kept()):
            rest = rejections.take_over()
        while (rejected := self._call_write(rest)) is not None:
            rejections.keep(rest, rejected, answered=False)
            run.rejected += len(rejected.reasons)
            rest = rest.without(rejected.reasons)
            self._refuse_stopped()
            self._given.term.check(self._log.store)

    def _send_at_most_once(self, run: _Run, chunk: Chunk) -> None:
        """Record, then send. Whatever goes wrong during the send, this chunk is never sent again.

        The term is checked in between: a newer process may have created the same record and collected it, so that
        creating it here proves nothing.
        """
        self._records.create(run.task, chunk.position.rows)
        self._given.term.check(self._log.store)
        try:
            self._write(run, chunk)
        except SinkFailedError as error:
            # It counts as done only once it is kept: if that fails, the record tells the next attempt to keep it.
            keep_unknown(self._log, self._given.sink, run.task.ordinal, chunk, reason=str(error))
            run.rows = chunk.position.rows
            raise
        run.rows = chunk.position.rows
        run.note_sent(recorded=1)

    def _whole_segment(self, run: _Run, data: bytes, sink: SegmentSink) -> None:
        self._looks.look(run.task, is_first=run.sent == 0)
        last: list[Chunk] = []
        chunks = _remember_last(self._chunks(run.task, data, 0), last)
        returned = self._timed_call(
            self._what(run.task), sink.write_segment, run.task.ordinal, self._given.batch_id, chunks
        )
        check_returned(self._what(run.task), returned)
        if self._given.segments > 1 and last:
            self._records.create(run.task, last[0].position.rows)
        run.rows = run.task.segment.rows
        run.note_sent(recorded=1)

    def _was_answered(self, run: _Run, chunk: Chunk) -> bool:
        """Whether the sink has taken before all that it takes of this chunk."""
        if self._rejections(run, chunk).is_answered():  # whatever policy it was sent under
            return True
        sink = self._session.sink
        if not isinstance(sink, Lookup):
            return False
        return ask_applied(self._session, sink, chunk.key)

    def _write(self, run: _Run, chunk: Chunk) -> None:
        """Send a chunk to a sink that takes the other rows when it refuses some."""
        rejected = self._call_write(chunk)
        if rejected is not None:
            self._rejections(run, chunk).keep(chunk, rejected, answered=True)
            run.rejected += len(rejected.reasons)

    def _call_write(self, chunk: Chunk) -> Rejected | None:
        """The rows that the sink refused, if they may be kept. Raises `SinkFailedError`."""
        what = f"batch {chunk.batch_id}, chunk {chunk.key}: {name_of(self._session.sink)}"
        returned = self._timed_call(what, self._session.sink.write, handed(chunk))
        if not self._given.keeps_rejected:
            check_returned(what, returned, _KEEP_REFUSED)
        return rejected_of(what, returned, chunk.num_rows)

    def _timed_call(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Send rows by a call of the sink, and count its time if times are measured."""
        if self._times is None:
            return self._session.call(what, function, *args)
        began_s = self._log.runtime.monotonic_s()
        try:
            return self._session.call(what, function, *args)
        finally:
            self._times.add(self._log.runtime.monotonic_s() - began_s)

    def _rejections(self, run: _Run, chunk: Chunk) -> Rejections:
        return Rejections(self._log, self._given.sink, run.task.ordinal, chunk)

    def _chunks(self, task: SegmentTask, data: bytes, start: int, follows: Position | None = None) -> Iterator[Chunk]:
        where = self._log.store.url_of(task.segment.path)
        reader = self._log.segment_reader
        given, segment = self._given, task.segment
        return chunks_of(given, task.ordinal, segment, data, start, where=where, reader=reader, follows=follows)

    def _what(self, task: SegmentTask) -> str:
        return f"batch {self._given.batch_id}, segment {task.segment.id}: {name_of(self._session.sink)}"


def chunks_of(
    given: DeliveryContext,
    ordinal: int,
    segment: SegmentRef,
    data: bytes,
    start: int,
    *,
    where: str,
    reader: SegmentReader = read_parquet,
    follows: Position | None = None,
) -> Iterator[Chunk]:
    """The chunks of a loaded segment from row `start` on, where a chunk must begin. Raises `CorruptError`."""
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
            start=first,
            follows=follows,
        )


@dataclass(slots=True)
class _Run:
    """Mutable state of the task that is being carried out."""

    task: SegmentTask
    now_s: Callable[[], float]
    rows: int = 0
    sent: int = 0
    """Chunks that the sink has taken in this attempt."""
    recorded: int = 0
    """Of these, and of earlier segments of the task, those that the log recorded in the meantime."""
    rejected: int = 0
    failure: Failure | None = None
    began_s: float = 0.0
    fetch_s: float = 0.0

    def note_fetched(self) -> None:
        self.fetch_s = self.now_s() - self.began_s

    def note_sent(self, *, recorded: int) -> None:
        self.sent += 1
        self.recorded += recorded

    def __post_init__(self) -> None:
        self.rows = self.task.start
        self.began_s = self.now_s()

    def result(self, host: str) -> SegmentResult:
        send_s = self.now_s() - self.began_s - self.fetch_s
        return SegmentResult(
            self.task.ordinal, self.rows, self.recorded, self.failure, self.rejected, self.fetch_s, send_s, host
        )


def _remember_last(chunks: Iterator[Chunk], last: list[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        last[:] = [chunk]
        yield chunk

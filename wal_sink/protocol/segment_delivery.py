"""Delivering one segment to a sink, chunk by chunk. The same code runs on executors and in the driver.

Between two chunks come a look at the term and a record of progress:

| sink | look at the term | record of progress |
|---|---|---|
| plain | before every chunk | after every chunk |
| at most once | before every chunk, and after its record | before every chunk |
| idempotent | once a second | once a second |
| transactional | once a second | none: the position goes with the rows |
| two-phase, a writer of segments | once a segment | once a segment |
| commit | before the commit of the batch | none: the position goes with the rows |

The marker stands for the last chunk of a batch with one segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from wal_sink.errors import WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Progress, SegmentRef
from wal_sink.log.segment_reader import SegmentReader, load_segment, read_chunks, read_parquet
from wal_sink.protocol.letters import Rejections, keep_unknown
from wal_sink.protocol.messages import DeliveryContext, SegmentResult, SegmentTask, failed_as_a_whole
from wal_sink.protocol.positions import Positions
from wal_sink.protocol.two_phase import SegmentCommit, checked_handle
from wal_sink.sinks.base import (
    CommitSink,
    Lookup,
    Rejected,
    SegmentSink,
    StagedSegment,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.calls import SinkSession, ask_applied, check_returned
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.sinks.failures import Failure, FailureKind, SinkFailedError, failure_of
from wal_sink.sinks.ledger import slot_name
from wal_sink.support.clock import host_name
from wal_sink.support.limits import RowRate
from wal_sink.support.logs import logging_about
from wal_sink.support.measures import Histogram
from wal_sink.support.texts import name_of

LOOK_S = 1.0
"""How long a look at the term is good, by the monotonic clock. Never for ever: a process that slept for days must not
send a segment to a target that has forgotten its keys.
"""
RECORD_S = 1.0
"""Least time between two records of one task, where they go by time."""
_KEEP_REFUSED = (
    "Correct the table; or keep the refused rows as dead letters: Delivery(…, on_rejected='dead_letter'); or skip "
    "the batch: wal-sink skip"
)


class SegmentDelivery:
    """Carries out the tasks of one delivery context on one sink session."""

    def __init__(
        self,
        delivery_context: DeliveryContext,
        session: SinkSession,
        log: Log,
        *,
        should_stop: Callable[[], bool],
        on_executor: bool,
    ) -> None:
        self._host = host_name() if on_executor else ""
        self._given = delivery_context
        self._session = session
        self._log = log
        self._should_stop = should_stop
        self._rate = RowRate(delivery_context.rows_per_s, log.runtime)
        self._looks = Looks(delivery_context, log, on_executor=on_executor)
        self._records = Records(delivery_context, log)

    def deliver(self, task: SegmentTask) -> SegmentResult:
        """Deliver one segment from `task.start` on. Errors of the sink, the store and the history are in the result."""
        given, sink = self._given, self._session.sink
        run = _Run(task, self._log.runtime.monotonic_s, Histogram() if given.measured else None)
        with logging_about(wal=self._log.store.root, sink=given.sink, batch=given.batch_id, segment=task.segment.id):
            try:
                if isinstance(sink, TwoPhaseSink):
                    self._commit(run, sink)
                elif isinstance(sink, CommitSink):
                    self._prepare(run, sink)
                elif isinstance(sink, SegmentSink):
                    self._whole_segment(run, sink)
                else:
                    self._chunk_by_chunk(run)
            except (SinkFailedError, WalSinkError) as error:
                run.failure = failure_of(error)
                if run.failure.kind is not FailureKind.FENCED:  # a superseded process records nothing
                    self._record_what_is_known(run)
            return run.result(self._host)

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
        self._session.open()
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
        self._records.create_unless_marker_follows(run.task, rows)
        run.note_sent(rows)

    def _prepare(self, run: _Run, sink: CommitSink) -> None:
        """Let the sink write the rows where nobody sees them. The dispatcher commits them, with those of the batch."""
        task = run.task
        data = load_segment(self._log.store, task.segment)
        run.note_fetched()
        self._session.open()
        self._refuse_stopped()
        what = f"batch {self._given.batch_id}, segment {task.segment.id}: {name_of(sink)}: prepare"
        segment = StagedSegment(task.segment.id, task.segment.rows, data, self._chunks(task, data, 0))
        with self._timed(run):
            returned = self._session.call(what, sink.prepare, segment, nothing_sent=True)
        run.handle = checked_handle(what, returned)

    def _kept_chunks(self, task: SegmentTask) -> Iterator[Chunk]:
        return self._chunks(task, load_segment(self._log.store, task.segment), 0)

    def _whole_segment(self, run: _Run, sink: SegmentSink) -> None:
        data = self._fetched(run)
        self._looks.look(run.task, is_first=not run.has_sent)
        last: list[Chunk] = []
        chunks = map(self._session.handed, _remember_last(self._chunks(run.task, data, 0), last))
        batch_id, segment_id = self._given.batch_id, run.task.segment.id
        what = f"batch {batch_id}, segment {segment_id}: {name_of(sink)}"
        with self._timed(run):
            returned = self._session.call(what, sink.write_segment, run.task.ordinal, batch_id, chunks)
        check_returned(what, returned)
        if self._given.segments > 1 and last:
            self._records.create(run.task, last[0].position.rows)
        run.note_sent(run.task.segment.rows)

    def _chunk_by_chunk(self, run: _Run) -> None:
        data = self._fetched(run)
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

    def _fetched(self, run: _Run) -> bytes:
        """The bytes of a segment; the sink is open then. Where looks go by time, a look at the term that the first
        chunk needs is taken while the segment is read.
        """
        task = run.task
        if not self._looks.is_due(task):
            data = load_segment(self._log.store, task.segment)
        else:
            loaded: list[bytes] = []

            def load() -> None:
                loaded.append(load_segment(self._log.store, task.segment))

            # The look comes first: its error says more than that of a segment that a newer run has collected.
            both: Sequence[Callable[[], None]] = (self._looks.look_now, load)
            self._log.runtime.side_by_side(lambda request: request(), both)
            (data,) = loaded
        run.note_fetched()
        self._session.open()
        return data

    def _chunks(self, task: SegmentTask, data: bytes, start: int, follows: Position | None = None) -> Iterator[Chunk]:
        where = self._log.store.url_of(task.segment.path)
        reader = self._log.segment_reader
        given, segment = self._given, task.segment
        return chunks_of(given, task.ordinal, segment, data, start, where=where, reader=reader, follows=follows)

    def _refuse_stopped(self) -> None:
        if self._should_stop():
            raise SinkFailedError(FailureKind.STOPPED, "the run is ending")

    def _sleep_s(self, seconds: float) -> None:
        self._log.runtime.sleep_s(seconds)
        self._refuse_stopped()

    def _send(self, run: _Run, chunk: Chunk) -> None:
        """Send, then record."""
        self._looks.look(run.task, is_first=not run.has_sent)
        doubtful = (run.task.maybe_sent and not run.has_sent) or chunk.start < run.task.sent_through
        rows = chunk.position.rows
        if isinstance(self._session.sink, TransactionalSink):
            self._send_in_transaction(run, chunk, doubtful=doubtful)
            run.note_sent(rows)
            return
        if not (doubtful and self._was_answered(run, chunk)):
            self._keep_refused(run, chunk, self._write(run, chunk))
        if self._given.by_time is not None and self._given.by_time.records:
            run.note_sent(rows, recorded=0)
            run.recorded += self._records.note(run.task, rows)
            return
        self._records.create_unless_marker_follows(run.task, rows)
        run.note_sent(rows)

    def _send_in_transaction(self, run: _Run, chunk: Chunk, *, doubtful: bool) -> None:
        """Send rows and position in one transaction. Refused rows are kept first, then the others are sent again."""
        rejections = self._rejections(run, chunk)
        rest = chunk
        if doubtful and (self._given.keeps_rejected or rejections.is_kept()):
            rest = rejections.take_over()
        for refused in rejections.each_refusal(rest, partial(self._write, run)):
            run.rejected += refused
            self._refuse_stopped()
            self._given.term.check(self._log.store)

    def _send_at_most_once(self, run: _Run, chunk: Chunk) -> None:
        """Record, then send. Whatever goes wrong during the send, this chunk is never sent again.

        The term is checked in between: a newer process may have created the same record and collected it, so that
        creating it here proves nothing.
        """
        rows = chunk.position.rows
        self._records.create(run.task, rows)
        self._given.term.check(self._log.store)
        try:
            self._keep_refused(run, chunk, self._write(run, chunk))
        except SinkFailedError as error:
            # It counts as done only once it is kept: if that fails, the record tells the next attempt to keep it.
            keep_unknown(self._log, self._given.sink, run.task.ordinal, chunk, reason=str(error))
            run.rows = rows
            raise
        run.note_sent(rows)

    def _write(self, run: _Run, chunk: Chunk) -> Rejected | None:
        """Send a chunk. Returns the rows that the sink refused, if they may be kept. Raises `SinkFailedError`."""
        what = f"batch {chunk.batch_id}, chunk {chunk.key}: {name_of(self._session.sink)}"
        with self._timed(run):
            rejected = self._session.write(what, chunk)
        if not self._given.keeps_rejected:
            check_returned(what, rejected, _KEEP_REFUSED)
        return rejected

    @contextmanager
    def _timed(self, run: _Run) -> Iterator[None]:
        """Count the time of a call that sends rows, if times are measured."""
        if run.times is None:
            yield
            return
        began_s = run.now_s()
        try:
            yield
        finally:
            run.times.add(run.now_s() - began_s)

    def _keep_refused(self, run: _Run, chunk: Chunk, rejected: Rejected | None) -> None:
        """Keep the rows that a sink refused which took all others."""
        if rejected is not None:
            self._rejections(run, chunk).keep(chunk, rejected, answered=True)
            run.rejected += len(rejected.reasons)

    def _was_answered(self, run: _Run, chunk: Chunk) -> bool:
        """Whether the sink has taken before all that it takes of this chunk."""
        if self._rejections(run, chunk).is_answered():  # whatever policy it was sent under
            return True
        sink = self._session.sink
        return isinstance(sink, Lookup) and ask_applied(self._session, sink, chunk.key)

    def _rejections(self, run: _Run, chunk: Chunk) -> Rejections:
        return Rejections(self._log, self._given.sink, run.task.ordinal, chunk)

    def _record_what_is_known(self, run: _Run) -> None:
        """After a failure: record what the sink has, so that it counts as progress, and is not sent again.

        A failure of the record changes nothing: these chunks are then sent again under their keys.
        """
        with suppress(SinkFailedError, WalSinkError):
            run.recorded += self._records.create_due()


class Looks:
    """The looks at the term. One delivery task has one, in the driver or on an executor."""

    def __init__(self, given: DeliveryContext, log: Log, *, on_executor: bool) -> None:
        self._given = given
        self._log = log
        # The clock of another process tells nothing about a look of the committer.
        self._looked_s = -math.inf if on_executor or given.by_time is None else given.by_time.looked_s

    def is_due(self, task: SegmentTask) -> bool:
        """Whether the first chunk of a task will need a look that may be taken some time before it."""
        return not (self._given.by_time is None or task.term_checked or self._is_good())

    def look(self, task: SegmentTask, *, is_first: bool) -> None:
        """Read the next term before a send, unless a look is good. `is_first`: the task has sent nothing yet.

        So a superseded process repeats only the chunk in hand; by time, what it sends within the second. One read.
        """
        if task.term_checked and is_first:
            return
        if self._given.by_time is None or not self._is_good():
            self.look_now()

    def look_now(self) -> None:
        """Read the next term. Raises `FencedError` if it was claimed."""
        now_s = self._log.runtime.monotonic_s()
        self._given.term.check(self._log.store)
        self._looked_s = now_s

    def _is_good(self) -> bool:
        return self._log.runtime.monotonic_s() - self._looked_s < LOOK_S


class Records:
    """The progress records of one delivery task."""

    def __init__(self, given: DeliveryContext, log: Log) -> None:
        self._given = given
        self._log = log
        self._due: dict[int, tuple[SegmentTask, int]] = {}
        self._chunks_due = 0
        self._recorded_s = -math.inf

    def begin(self) -> None:
        """Count the time from now on: the first chunk is about to be sent."""
        if self._recorded_s == -math.inf:
            self._recorded_s = self._log.runtime.monotonic_s()

    def note(self, task: SegmentTask, rows: int) -> int:
        """Note that the sink has a segment up to `rows`. Once a second, record that of every segment of the task.

        Return the number of chunks that became recorded. Raises as `create` does.
        """
        self._due[task.ordinal] = task, rows
        self._chunks_due += 1
        if self._log.runtime.monotonic_s() - self._recorded_s < RECORD_S:
            return 0
        return self.create_due()

    def create_due(self) -> int:
        """Record all that was noted. Return the number of chunks that became recorded."""
        while self._due:
            ordinal = next(iter(self._due))
            task, rows = self._due[ordinal]
            self.create_unless_marker_follows(task, rows)
            del self._due[ordinal]
        self._recorded_s = self._log.runtime.monotonic_s()
        recorded, self._chunks_due = self._chunks_due, 0
        return recorded

    def create_unless_marker_follows(self, task: SegmentTask, rows: int) -> None:
        """Create the record, unless the marker makes it needless."""
        if not self.marker_follows(task, rows):
            self.create(task, rows)

    def create(self, task: SegmentTask, rows: int) -> None:
        """Create the record. If it exists, another process delivers the segment, and this one stops."""
        given = self._given
        path = paths.progress(given.sink, given.batch_id, task.ordinal, rows)
        record = Progress(
            batch_id=given.batch_id,
            ordinal=task.ordinal,
            rows=rows,
            segment_id=task.segment.id,
            term=given.term.number,
            run_id=self._log.run_id,
            **self._log.stamp(),
        )
        if self._log.create(path, record):
            return
        given.term.check(self._log.store)
        raise SinkFailedError(
            FailureKind.UNKNOWN, f"{self._log.store.url_of(path)} was written by another attempt at the same segment"
        )

    def marker_follows(self, task: SegmentTask, rows: int) -> bool:
        """Whether the marker makes a record needless: these are all rows of the batch's only segment."""
        return self._given.segments == 1 and rows == task.segment.rows


@dataclass(slots=True)
class _Run:
    """Mutable state of the task that is being carried out."""

    task: SegmentTask
    now_s: Callable[[], float]
    times: Histogram | None
    """Times of the calls that send rows, if they are measured."""
    rows: int = 0
    has_sent: bool = False
    """Whether the sink has taken a chunk in this attempt."""
    recorded: int = 0
    """Chunks that the sink has taken and the log recorded, of earlier segments of the task too."""
    rejected: int = 0
    failure: Failure | None = None
    began_s: float = 0.0
    fetch_s: float = 0.0
    handle: str = ""

    def __post_init__(self) -> None:
        self.rows = self.task.start
        self.began_s = self.now_s()

    def note_fetched(self) -> None:
        self.fetch_s = self.now_s() - self.began_s

    def note_sent(self, rows: int, *, recorded: int = 1) -> None:
        """Note that the sink has the segment up to `rows`."""
        self.rows = rows
        self.has_sent = True
        self.recorded += recorded

    def result(self, host: str) -> SegmentResult:
        return SegmentResult(
            self.task.ordinal,
            self.rows,
            chunks=self.recorded,
            failure=self.failure,
            handle=self.handle,
            rejected=self.rejected,
            fetch_s=self.fetch_s,
            send_s=self.now_s() - self.began_s - self.fetch_s,
            host=host,
            chunk_times=None if self.times is None else self.times.times(),
        )


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


def _remember_last(chunks: Iterator[Chunk], last: list[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        last[:] = [chunk]
        yield chunk

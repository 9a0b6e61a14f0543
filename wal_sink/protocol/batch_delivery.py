"""Delivering one released batch to one sink: tasks, attempts, budgets, and the rows that are known to have arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from wal_sink.errors import DeliveryError
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import DeliveryTiming, Manifest, Marker, SegmentTiming, rounded
from wal_sink.log.segment_reader import chunk_ends
from wal_sink.log.terms import Term
from wal_sink.protocol.dispatch import DispatcherLostError, ServedSink
from wal_sink.protocol.letters import Kept, count_rows
from wal_sink.protocol.messages import (
    NO_SEGMENT,
    ByTime,
    DeliveryContext,
    LastDelivered,
    SegmentResult,
    SegmentTask,
    failed_as_a_whole,
)
from wal_sink.protocol.progress import check_recorded, keep_last_recorded, recorded_rows
from wal_sink.protocol.retry import AttemptFailedError, Budget, OnFailure, all_told, failure_teller, tell_nobody
from wal_sink.sinks.failures import Failure, FailureKind, failure_error
from wal_sink.sinks.guarantees import Ability
from wal_sink.sinks.renaming import Renaming
from wal_sink.support.clock import Runtime, StoppedError, epoch_s
from wal_sink.support.events import Events, Rejected, Released, Sent
from wal_sink.support.limits import RowRate
from wal_sink.support.texts import said_once

_WORST_FIRST = (
    FailureKind.FENCED,
    FailureKind.HISTORY,
    FailureKind.CORRUPT,
    FailureKind.PERMANENT,
    FailureKind.STOPPED,
    FailureKind.FORGOTTEN,
    FailureKind.LOST,
    FailureKind.UNKNOWN,
    FailureKind.RETRIABLE,
)


_MAY_PASS = {FailureKind.RETRIABLE, FailureKind.UNKNOWN, FailureKind.LOST, FailureKind.FORGOTTEN}


class _TryAgainError(AttemptFailedError):
    """One attempt failed, and a later one may succeed."""


class BatchDelivery:
    """The delivery of one batch to one sink. Lives in the committer's process until the sink has every row.

    `sleep` waits so many seconds. It raises `StoppedError` if the run is ending.
    """

    def __init__(
        self,
        served_sink: ServedSink,
        log: Log,
        sleep: Callable[[float], None],
        manifest: Manifest,
        term: Term,
        *,
        wal_id: str,
        before: Marker | None,
        taken_over: bool,
        rate: RowRate,
        ignores_repeats: bool,
        looked_s: float = -math.inf,
        on_failure: OnFailure = tell_nobody,
    ) -> None:
        """`ignores_repeats`: the target does, and so does every other that the sink's name may get.
        `looked_s`: the time of the last look at the term, by the monotonic clock. `on_failure` learns of attempts that
        are repeated.
        """
        self._served_sink = served_sink
        self._log = log
        self._sleep = sleep
        self._manifest = manifest
        self._rate = rate
        self._on_failure = on_failure
        self._stopwatch = _Stopwatch(log.runtime)
        self._maybe_sent = taken_over
        self._left_behind = False  # whether tasks of an earlier attempt may still be sending
        self._is_unreachable = False  # whether the target took nothing in the last attempt
        self._has_rejected = False
        self._rows = [0] * len(manifest.segments)
        """For each segment, the number of rows that count as delivered. For a transactional target this is only a hint:
        its positions are read before the marker is created.
        """
        self._sent_through = [0] * len(manifest.segments)
        """For each segment, the row before which every chunk may have been sent, if `_is_sent_ahead`."""
        self._furthest = 0
        self._outrun_by = 0  # the higher term that a transactional target knows
        self._asks_first = False  # whether the target forgot something, so that it has to tell what it has
        self.seen_term = 0
        """The highest term that another run's progress of the batch names."""
        self._ignores_repeats = ignores_repeats
        # In total order each segment is a separate task. Short ones would all end before their first second.
        self._records_by_time = ignores_repeats and (
            served_sink.delivery.max_concurrency != 1 or len(manifest.segments) == 1
        )
        self._delivery_context = self._context(wal_id, term, before, looked_s)

    def run(self, renew_term: Callable[[int], Term]) -> None:
        """Deliver until the sink has every row. Raises what `Committer.deliver_with_retries` raises.

        `renew_term` claims the next term, or one above the term that it is given. The first is needed after tasks were
        left behind, the second if a transactional target knows a higher term.
        """
        self._asks_first = self._asks_first or self._is_unconfirmed  # an earlier call could not create the marker
        with self._budget() as budget:
            attempt = partial(self._attempt, budget, renew_term)
            budget.call(attempt, _TryAgainError, sleep=self._sleep, what=self._what())

    def ask(self) -> None:
        """Make sure that a transactional target has what the marker before this batch stands for, and what this batch
        has of it. Sends nothing. Raises what `run` raises.
        """
        with self._budget() as budget:
            budget.call(self._ask, _TryAgainError, sleep=self._sleep, what=self._what())

    @contextmanager
    def _budget(self) -> Iterator[Budget]:
        """The budget of a call. Its end is a `DeliveryError`."""
        tell = failure_teller(self._log.events, self._served_sink, lambda: self._manifest.batch_id)
        budget = Budget.of(self._served_sink.delivery.retry, self._log.runtime, all_told(tell, self._on_failure))
        try:
            yield budget
        except _TryAgainError as error:
            gave_up = (
                f"{self._what()}: delivery stopped after {budget.failures} attempts in {budget.spent_s():.1f} s "
                "without "
            )
            last = said_once(f"{gave_up}progress; the last failure: {error}")
            raise DeliveryError(
                f"{last}. The WAL {self._log.store.root} keeps the rows. Repair the target, then start the query or "
                "command again"
            ) from None  # the error's text is in this one

    def go_on_under(self, term: Term) -> None:
        """From now on deliver under another term of the same role."""
        by_time = self._delivery_context.by_time
        by_time = by_time and replace(by_time, looked_s=-math.inf)
        self._delivery_context = replace(self._delivery_context, term=term, by_time=by_time)

    def reload_progress(self) -> None:
        """Read the progress records. Rows that an at-most-once delivery may have lost become dead letters."""
        if not self._served_sink.promise.records_progress:
            return
        log, sink = self._log, self._served_sink.name
        known = dict(enumerate(self._rows))
        recorded = recorded_rows(log.store, sink, self._manifest).items()
        further = [(ordinal, rows) for ordinal, rows in recorded if rows > known.get(ordinal, 0)]
        records = log.runtime.side_by_side(lambda each: check_recorded(log, sink, self._manifest, *each), further)
        for (ordinal, rows), record in zip(further, records, strict=True):
            if record.run_id != log.run_id:
                self.seen_term = max(self.seen_term, record.term)
            if self._served_sink.promise.at_most_once:
                keep_last_recorded(self._delivery_context, ordinal, self._manifest.segments[ordinal], rows, log)
            self._rows[ordinal] = rows

    def take_over(self) -> None:
        """Read from the store how far another process came. It may have sent every chunk after that, and may go on
        until its next look at the term. A transactional target may have forgotten chunks since.
        """
        self.reload_progress()
        if self._is_sent_ahead:
            self._sent_through = [segment.rows for segment in self._manifest.segments]

    def kept_rows(self) -> Mapping[Kept, int]:
        """Rows that became dead letters so far, in older processes too. No request where there can be none."""
        if not (self._maybe_sent or self._has_rejected):  # an older process may have had another policy
            return {}
        return count_rows(self._log.store, self._served_sink.name, self._manifest.batch_id)

    @property
    def took_s(self) -> float:
        """Seconds since the delivery was made."""
        return self._stopwatch.took_s

    def timing(self, due: str) -> DeliveryTiming:
        """How long the delivery took so far. `due`: when the batch was the sink's next one."""
        return self._stopwatch.timing(self._manifest.batch_id, due)

    def _attempt(self, budget: Budget, renew_term: Callable[[int], Term]) -> None:
        self._stopwatch.attempts += 1
        if self._left_behind or self._outrun_by > self._delivery_context.term.number:
            self._leave_behind(renew_term(self._outrun_by))
        failures, took_some = self._asked_first(), False
        for tasks in () if failures else self._rounds():
            before = sum(self._rows)
            results = self._dispatch(tasks, confirm=self._is_confirmed_after(tasks))
            if any(result.chunks for result in results):
                if self._has_come_further():
                    budget.note_progress()
                    took_some = True
                self._note_furthest()
            elif self._records_by_time and sum(self._rows) > before:
                took_some = True  # though only recorded progress refills the budget
            failures = [result.failure for result in results if result.failure]
            if failures:
                break
        may_be_unreachable = bool(failures) and not took_some
        if not failures and (left := self._open_tasks()):
            self._note_sent(left)
            message = f"{len(left)} of {len(self._manifest.segments)} segments came back without a result"
            failures = [Failure(FailureKind.UNKNOWN, message)]
        if failures:
            forgot = any(each.kind is FailureKind.FORGOTTEN for each in failures)
            self._asks_first = self._asks_first or forgot or self._is_unconfirmed  # the last look gave no answer
            self._left_behind = any(failure.kind is FailureKind.LOST for failure in failures)
            worst = min(failures, key=lambda failure: _WORST_FIRST.index(failure.kind))
            asked_s = max(failure.retry_after_s for failure in failures)
            self._fail(replace(worst, retry_after_s=asked_s), budget, may_be_unreachable=may_be_unreachable)

    @property
    def _is_unconfirmed(self) -> bool:
        """Whether a transactional target has acknowledged every row. No task is left then, so no further attempt would
        read its positions before the marker. They must be read first.
        """
        return self._is_transactional and bool(self._manifest.segments) and not self._open_tasks()

    def _asked_first(self) -> list[Failure]:
        """Ask a target that forgot something for its rows of every segment, finished ones too.

        Returns the failures that keep it from answering. Missing rows are an answer.
        """
        if not self._asks_first:
            return []
        failures = [result.failure for result in self._dispatch([], confirm=True) if result.failure]
        failures = [failure for failure in failures if failure.kind is not FailureKind.FORGOTTEN]
        self._asks_first = bool(failures)
        return failures

    def _ask(self) -> None:
        results = self._dispatch([], confirm=True)
        if failure := next((result.failure for result in results if result.failure), None):
            self._refuse_final(failure)
            raise _TryAgainError(failure.message, retry_after_s=failure.retry_after_s, kind=failure.kind)

    def _has_come_further(self) -> bool:
        """Whether more is delivered than ever before. A target that forgets may take the same rows for ever."""
        return sum(self._rows) > self._furthest or not self._is_transactional

    def _note_furthest(self) -> None:
        self._furthest = max(sum(self._rows), self._furthest)

    def _leave_behind(self, term: Term) -> None:
        """Go on under this next term, so that a task of a lost attempt that wakes up finds itself superseded.

        Progress is read after that, since such a task may have recorded more meanwhile.
        """
        self.go_on_under(term)
        self._left_behind = False
        self.reload_progress()

    def _refuse_final(self, failure: Failure) -> None:
        """Raise what ends the delivery, unless a later attempt may succeed."""
        if failure.kind is FailureKind.STOPPED:
            raise StoppedError(failure.message)
        if failure.kind is FailureKind.FENCED and failure.term and not self._outrun_by:
            self._outrun_by = failure.term  # once: a second time shows a rival that the WAL does not know
        elif failure.kind not in _MAY_PASS:
            raise failure_error(failure, self._what())

    def _fail(self, failure: Failure, budget: Budget, *, may_be_unreachable: bool) -> None:
        self._refuse_final(failure)
        self._maybe_sent = True
        known = sum(self._rows)
        self.reload_progress()
        if came_further := sum(self._rows) > known:  # though the attempt could not report that
            budget.note_progress()
        self._is_unreachable = may_be_unreachable and not came_further and failure.kind is not FailureKind.LOST
        raise _TryAgainError(failure.message, retry_after_s=failure.retry_after_s, kind=failure.kind)

    def _rounds(self) -> Iterator[list[SegmentTask]]:
        """The tasks that the dispatcher gets at a time. A target that was unreachable gets one segment at first."""
        tasks = self._open_tasks()
        if self._served_sink.dispatcher.whole_batch:
            if tasks or not self._manifest.segments:
                yield tasks
        elif self._served_sink.delivery.max_concurrency == 1:
            yield from ([task] for task in tasks)
        elif self._is_unreachable and len(tasks) > 1:
            yield tasks[:1]
            yield self._open_tasks()
        elif tasks:
            yield tasks

    def _open_tasks(self) -> list[SegmentTask]:
        # With several segments, the first chunk of each would go unchecked. With a rate, the look may be too old.
        is_paced = self._served_sink.delivery.rows_per_s is not None
        term_checked = len(self._manifest.segments) == 1 and not self._maybe_sent and not is_paced
        handles = self._manifest.prepared.get(self._served_sink.name)
        return [
            SegmentTask(
                ordinal,
                segment,
                self._rows[ordinal],
                maybe_sent=self._maybe_sent,
                sent_through=self._sent_through[ordinal],
                term_checked=term_checked,
                handle=handles[ordinal] if handles else None,
            )
            for ordinal, segment in enumerate(self._manifest.segments)
            if self._rows[ordinal] < segment.rows
        ]

    @property
    def _is_transactional(self) -> bool:
        return self._served_sink.promise.ability is Ability.TRANSACTIONAL

    @property
    def _is_sent_ahead(self) -> bool:
        """Whether more chunks may have been sent than the one after the last record: the target keeps its own position,
        or ignores repeats. A superseded process goes on until its next look, which goes by time.
        """
        return self._is_transactional or self._ignores_repeats

    def _is_confirmed_after(self, tasks: Sequence[SegmentTask]) -> bool:
        """Whether the dispatcher reads the target's rows of the whole batch after these tasks: no others are left."""
        return self._is_transactional and len(tasks) == len(self._open_tasks())

    def _dispatch(self, tasks: list[SegmentTask], *, confirm: bool) -> list[SegmentResult]:
        self._rate.wait(self._sleep)
        began_s = self._rate.now_s()
        before = sum(self._rows)
        try:
            results = self._served_sink.dispatcher.deliver(
                self._delivery_context, self._manifest, tasks, confirm=confirm
            )
        except DispatcherLostError as error:
            results = [failed_as_a_whole(Failure(FailureKind.LOST, str(error)))]
            self._note_sent(tasks)
        self._settle(results)
        self._stopwatch.take(results)
        rows = sum(self._rows) - before
        self._rate.take(rows, since_s=began_s)
        sink, batch = self._served_sink.name, self._manifest.batch_id
        tell_sent(self._log.events, sink, batch, results, rows=rows, took_s=self._rate.now_s() - began_s)
        return results

    def _settle(self, results: list[SegmentResult]) -> None:
        for result in results:
            if result.ordinal != NO_SEGMENT:
                self._settle_segment(result)
            self._has_rejected = self._has_rejected or result.rejected > 0

    def _settle_segment(self, result: SegmentResult) -> None:
        """Note the rows of a segment. For a transactional target its last answer counts, whatever was known before."""
        ordinal = result.ordinal
        self._rows[ordinal] = result.rows if self._is_transactional else max(result.rows, self._rows[ordinal])
        if self._is_sent_ahead:
            self._sent_through[ordinal] = max(self._sent_through[ordinal], self._maybe_through(result))

    def _maybe_through(self, result: SegmentResult) -> int:
        """The row up to which a segment may have been sent: after a failure the chunk in hand may have been, too.

        A lost task may have sent all: the result is that of its copy, which knows nothing of it.
        """
        if result.failure is None:
            return result.rows
        segment = self._manifest.segments[result.ordinal]
        if result.failure.kind is FailureKind.LOST:
            return segment.rows
        ends = chunk_ends(segment, self._manifest.chunk_rows)
        return next((end for end in ends if end > result.rows), segment.rows)

    def _note_sent(self, tasks: Sequence[SegmentTask]) -> None:
        """Note that every row of these tasks may have been sent: nobody knows how far a lost job came.

        For targets with a record for each chunk the records tell how far it was.
        """
        for task in tasks if self._is_sent_ahead else ():
            self._sent_through[task.ordinal] = task.segment.rows

    def _context(self, wal_id: str, term: Term, before: Marker | None, looked_s: float) -> DeliveryContext:
        return DeliveryContext(
            wal_id=wal_id,
            sink=self._served_sink.name,
            term=term,
            batch_id=self._manifest.batch_id,
            columns=self._manifest.columns,
            spark_schema=self._manifest.spark_schema,
            time_zone=self._manifest.time_zone,
            chunk_rows=self._manifest.chunk_rows,
            segments=len(self._manifest.segments),
            at_most_once=self._served_sink.promise.at_most_once,
            keeps_rejected=self._served_sink.delivery.on_rejected == "dead_letter",
            attempt_timeout_s=self._served_sink.delivery.retry.attempt_timeout_s,
            rows_per_s=self._served_sink.delivery.rows_per_s,
            prepares_again=self._served_sink.prepares_again,
            last_delivered=LastDelivered.of(before),
            marked_through=before.batch_id if before else NOTHING,
            by_time=ByTime(looked_s, self._records_by_time) if self._is_sent_ahead else None,
            measured=self._log.events.measures,
            renaming=Renaming.of(self._served_sink.delivery.columns),
        )

    def _what(self) -> str:
        return f"batch {self._manifest.batch_id}, sink {self._served_sink.shown or self._served_sink.name!r}"


class _Stopwatch:
    """Measures the delivery of one batch, from its making on, over all attempts: also which segment was the slowest."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._began = runtime.timestamp()
        self._began_s = runtime.monotonic_s()
        self._fetch_s = self._send_s = 0.0
        self._slowest: SegmentResult | None = None
        self.attempts = 0

    def take(self, results: Iterable[SegmentResult]) -> None:
        """Add the times of an attempt's segments."""
        for result in results:
            if result.ordinal == NO_SEGMENT:
                continue
            self._fetch_s += result.fetch_s
            self._send_s += result.send_s
            if self._slowest is None or result.took_s > self._slowest.took_s:
                self._slowest = result

    @property
    def took_s(self) -> float:
        return self._runtime.monotonic_s() - self._began_s

    def timing(self, batch_id: int, due: str) -> DeliveryTiming:
        """The timing of a batch whose rows the sink has. `due`: when it was the sink's next one."""
        return DeliveryTiming(
            batch_id=batch_id,
            due=due,
            began=self._began,
            seconds=rounded(self.took_s),
            attempts=max(1, self.attempts),
            fetch_seconds=rounded(self._fetch_s),
            send_seconds=rounded(self._send_s),
            slowest=None if self._slowest is None else _segment(self._slowest),
        )


def _segment(result: SegmentResult) -> SegmentTiming:
    return SegmentTiming(
        ordinal=result.ordinal,
        fetch_seconds=rounded(result.fetch_s),
        send_seconds=rounded(result.send_s),
        host=result.host,
    )


def tell_released(events: Events, sink: str, manifest: Manifest, *, complete_through: int) -> None:
    """Tell that the delivery of a batch begins."""
    events.tell(
        Released,
        sink=sink,
        batch=manifest.batch_id,
        rows=manifest.rows,
        bytes=manifest.bytes,
        staged_at=epoch_s(manifest.created),
        complete_through=complete_through,
    )


def tell_sent(
    events: Events, sink: str, batch: int, results: Sequence[SegmentResult], *, rows: int, took_s: float
) -> None:
    """Tell what became of the tasks of one dispatch. `rows`: how many more rows are known to have arrived."""
    events.tell(
        Sent,
        sink=sink,
        batch=batch,
        segments=len({result.ordinal for result in results if result.ordinal >= 0}),
        rows=max(0, rows),
        chunks=sum(result.chunks for result in results),
        took_s=took_s,
        failure=next((result.failure.kind.value for result in results if result.failure), ""),
        chunk_times=tuple(result.chunk_times for result in results if result.chunk_times),
        requests=tuple(request for result in results for request in result.requests),
    )
    if rejected := sum(result.rejected for result in results):
        events.tell(Rejected, sink=sink, batch=batch, rows=rejected)

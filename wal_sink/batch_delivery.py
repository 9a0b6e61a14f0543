"""Delivering one released batch to one sink: orders, attempts, budgets, and what is known to have arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from wal_sink.dead_letters import Kept, count_rows
from wal_sink.errors import DeliveryError
from wal_sink.guarantees import Ability
from wal_sink.orders import Assignment, Failure, FailureKind, Order, Outcome, Witness, failure_error
from wal_sink.progress import check_recorded, keep_last_recorded, recorded_rows
from wal_sink.rates import RowRate
from wal_sink.records import Manifest, Marker
from wal_sink.retries import AttemptFailedError, Budget
from wal_sink.serving import CarrierLostError, Serving, StoppedError, Surroundings
from wal_sink.terms import Term

_WORST_FIRST = (
    FailureKind.FENCED,
    FailureKind.HISTORY,
    FailureKind.CORRUPT,
    FailureKind.PERMANENT,
    FailureKind.STOPPED,
    FailureKind.LOST,
    FailureKind.UNKNOWN,
    FailureKind.RETRIABLE,
)


class _TryAgainError(AttemptFailedError):
    """An attempt failed in a way that a later one may not."""


class BatchDelivery:
    """One batch on its way to one sink. Lives in the committer's process, for as long as it takes."""

    def __init__(
        self,
        serving: Serving,
        shared: Surroundings,
        manifest: Manifest,
        term: Term,
        *,
        wal_id: str,
        before: Marker | None,
        taken_over: bool,
        rate: RowRate,
    ) -> None:
        self._serving = serving
        self._shared = shared
        self._manifest = manifest
        self._rate = rate
        self._maybe_sent = taken_over
        self._left_behind = False  # whether tasks of an earlier attempt may still be sending
        self._is_away = False  # whether the target took nothing in the last attempt
        self._has_rejected = False
        self._rows = [0] * len(manifest.segments)
        self.seen_term = 0
        """The highest term that another run's progress of the batch names."""
        self._assignment = self._assign(wal_id, term, before)

    def run(self, renew_term: Callable[[], Term]) -> None:
        """Deliver until the sink has every row. Raises what `Committer.deliver_next` raises.

        `renew_term` claims the next term, under which a delivery goes on that left tasks behind.
        """
        budget = Budget.of(self._serving.delivery, self._shared.log.runtime)
        sleep = self._shared.sleep_s
        try:
            budget.call(lambda: self._attempt(budget, renew_term), _TryAgainError, sleep=sleep, what=self._what())
        except _TryAgainError as error:
            raise DeliveryError(
                f"{self._what()}: gave up after {budget.failures} attempts in {budget.spent_s():.1f} s without "
                f"progress; the last failure: {error}. The rows are kept in {self._shared.log.store.root}; mend "
                "the target, then start again"
            ) from error

    def go_on_under(self, term: Term) -> None:
        """From now on deliver under another term of the same role."""
        self._assignment = replace(self._assignment, term=term)

    def reload_progress(self) -> None:
        """Let the records on the store speak; what an at-most-once delivery may have lost becomes dead letters."""
        if self._serving.promise.ability in {Ability.STORE_POSITION, Ability.BATCH_WRITER}:
            return
        log = self._shared.log
        known = dict(enumerate(self._rows))
        for ordinal, rows in recorded_rows(log.store, self._serving.name, self._manifest).items():
            if rows > known.get(ordinal, 0):
                record = check_recorded(log, self._serving.name, self._manifest, ordinal, rows)
                if record.run_id != log.run_id:
                    self.seen_term = max(self.seen_term, record.term)
                if self._serving.promise.at_most_once:
                    keep_last_recorded(self._assignment, ordinal, self._manifest.segments[ordinal], rows, log)
                self._rows[ordinal] = rows

    def kept_rows(self) -> Mapping[Kept, int]:
        """Rows that became dead letters so far, predecessors included. No request where there can be none."""
        if not (self._maybe_sent or self._has_rejected):  # a predecessor may have had another policy
            return {}
        return count_rows(self._shared.log.store, self._serving.name, self._manifest.batch_id)

    def _attempt(self, budget: Budget, renew_term: Callable[[], Term]) -> None:
        if self._left_behind:
            self._leave_behind(renew_term())
        failures: list[Failure] = []
        took_some = False
        for orders in self._rounds():
            outcomes = self._carry(orders)
            if any(outcome.chunks for outcome in outcomes):
                budget.note_progress()
                took_some = True
            failures = [outcome.failure for outcome in outcomes if outcome.failure]
            if failures:
                break
        may_be_away = bool(failures) and not took_some
        if not failures and (left := self._open_orders()):
            message = f"{len(left)} of {len(self._manifest.segments)} segments came back without an outcome"
            failures = [Failure(FailureKind.UNKNOWN, message)]
        if failures:
            self._left_behind = any(failure.kind is FailureKind.LOST for failure in failures)
            worst = min(failures, key=lambda failure: _WORST_FIRST.index(failure.kind))
            asked_s = max(failure.retry_after_s for failure in failures)
            self._fail(replace(worst, retry_after_s=asked_s), budget, may_be_away=may_be_away)

    def _leave_behind(self, term: Term) -> None:
        """Go on under this next term, so that a task of a lost attempt that wakes up finds itself succeeded.

        Progress is read after that: such a task may have recorded more meanwhile.
        """
        self.go_on_under(term)
        self._left_behind = False
        self.reload_progress()

    def _fail(self, failure: Failure, budget: Budget, *, may_be_away: bool) -> None:
        if failure.kind is FailureKind.STOPPED:
            raise StoppedError(failure.message)
        if failure.kind not in {FailureKind.RETRIABLE, FailureKind.UNKNOWN, FailureKind.LOST}:
            raise failure_error(failure, self._what())
        self._maybe_sent = True
        known = sum(self._rows)
        self.reload_progress()
        if sum(self._rows) > known:  # an attempt that could not tell of it came further all the same
            budget.note_progress()
            may_be_away = False
        self._is_away = may_be_away and failure.kind is not FailureKind.LOST
        raise _TryAgainError(failure.message, retry_after_s=failure.retry_after_s)

    def _rounds(self) -> Iterator[list[Order]]:
        """What is handed to the carrier at a time. A target that was away gets one segment to see if it is back."""
        orders = self._open_orders()
        if self._serving.carrier.whole_batch:
            if orders or not self._manifest.segments:
                yield orders
        elif self._serving.delivery.order == "total":
            yield from ([order] for order in orders)
        elif self._is_away and len(orders) > 1:
            yield orders[:1]
            yield self._open_orders()
        elif orders:
            yield orders

    def _open_orders(self) -> list[Order]:
        # With several segments, their single chunks would all go unchecked; and a rate may have been waited for.
        is_paced = self._serving.delivery.rows_per_s is not None
        term_checked = len(self._manifest.segments) == 1 and not self._maybe_sent and not is_paced
        handles = self._manifest.prepared.get(self._serving.name)
        return [
            Order(
                ordinal,
                segment,
                self._rows[ordinal],
                maybe_sent=self._maybe_sent,
                term_checked=term_checked,
                handle=handles[ordinal] if handles else None,
            )
            for ordinal, segment in enumerate(self._manifest.segments)
            if self._rows[ordinal] < segment.rows
        ]

    def _carry(self, orders: list[Order]) -> list[Outcome]:
        self._rate.wait(self._shared.sleep_s)
        began_s = self._rate.now_s()
        before = sum(self._rows)
        try:
            outcomes = self._serving.carrier.deliver(self._assignment, self._manifest, orders)
        except CarrierLostError as error:
            outcomes = [Outcome(ordinal=-1, rows=0, failure=Failure(FailureKind.LOST, str(error)))]
        self._settle(outcomes)
        self._rate.take(sum(self._rows) - before, since_s=began_s)
        return outcomes

    def _settle(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.ordinal >= 0:
                self._rows[outcome.ordinal] = max(outcome.rows, self._rows[outcome.ordinal])
            self._has_rejected = self._has_rejected or outcome.rejected > 0

    def _assign(self, wal_id: str, term: Term, before: Marker | None) -> Assignment:
        return Assignment(
            wal_id=wal_id,
            sink=self._serving.name,
            term=term,
            batch_id=self._manifest.batch_id,
            columns=self._manifest.columns,
            spark_schema=self._manifest.spark_schema,
            chunk_rows=self._manifest.chunk_rows,
            segments=len(self._manifest.segments),
            at_most_once=self._serving.promise.at_most_once,
            keeps_rejected=self._serving.delivery.on_rejected == "dead_letter",
            attempt_timeout_s=self._serving.delivery.attempt_timeout_s,
            rows_per_s=self._serving.delivery.rows_per_s,
            prepares_again=self._serving.delivery.on_gone == "prepare_again",
            witness=Witness(before.witness_batch, before.witness_rows) if before and before.witness_rows else None,
            spread=self._manifest.spread,
        )

    def _what(self) -> str:
        return f"batch {self._manifest.batch_id}, sink {self._serving.name!r}"

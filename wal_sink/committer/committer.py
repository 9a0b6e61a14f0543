"""The committer of one sink: gate, release, deliver, mark, in batch order. Runs in the driver or a draining process.

Nothing here waits for a gate or knows Spark. `deliver_next` does all that can be done now, and its caller decides when
to call it again.

An idempotent sink that is behind is served in groups of batches, see `group`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import msgspec

from wal_sink.committer.context import CommitContext
from wal_sink.committer.group import Group
from wal_sink.committer.last_error import LastError
from wal_sink.committer.markers import (
    MarkedSlots,
    find_marker,
    first_due,
    last_delivered_through,
    new_marker,
    read_marked,
    tell_marked,
)
from wal_sink.committer.states import ENDS, NEXT, DueBatch, Seen, State
from wal_sink.dead_letters.files import Kept
from wal_sink.delivery.batch import BatchDelivery, tell_released
from wal_sink.delivery.dispatch import ServedSink
from wal_sink.delivery.progress import recorded_chunks
from wal_sink.delivery.retry import Budget, all_told, failure_teller
from wal_sink.errors import CorruptError, DeliveryError, FencedError, HistoryError, OutcomeUnknownError, StoreError
from wal_sink.recovery.inventory import check_marked_batch, check_marker, check_not_marked, newest_marker
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.rate_limit import RowRate
from wal_sink.runtime.stopped import StoppedError
from wal_sink.sinks.guarantees import Ability
from wal_sink.telemetry.events import Delivered, FoundDelivered
from wal_sink.two_phase.commit import ABORT_EVERY_BATCHES, abort_abandoned
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term, claim_above_seen, renew
from wal_sink.wal.log import NOTHING
from wal_sink.wal.records import Manifest, Marker, SinkRecord

RELEASE_S = 5.0
"""How long a look at the term is valid while a batch is released: a newer process collects no batch so soon."""

_logger = logger_of(__name__)


class Committer:
    """Delivers the batches of a WAL to one sink, strictly in order. Not shared between threads."""

    def __init__(self, served_sink: ServedSink, shared: CommitContext, term: Term, sink: SinkRecord) -> None:
        self._served_sink = served_sink
        self._shared = shared
        self._log = shared.log
        self._last_error = LastError(shared.log, served_sink.name)
        self._sink = sink
        self._first_batch = sink.first_batch
        # A name whose first sink was not idempotent may get such a sink again, which needs a marker for every batch.
        self._ignores_repeats = (
            served_sink.promise.ignores_repeats and sink.sink_kind == served_sink.promise.ability.value
        )
        self._marker: Marker | None = None
        self._group = Group(shared, is_allowed=self._ignores_repeats)
        self._due = (NOTHING, "")  # the batch that is next, and since when
        self._underway: BatchDelivery | None = None  # a delivery that an earlier call began and did not finish
        self._has_delivered = False  # if so, no process began the next batch before
        self._tidied_through: int | None = None
        self._marked_manifest: Manifest | None = None  # of the newest marked batch, without its segments
        self._state = State.UNCONFIRMED
        self._began_s = -math.inf  # when the delivery that is underway began, by the monotonic clock
        self._rate = RowRate(served_sink.delivery.rows_per_s, shared.log.runtime)
        self.term = term

    @property
    def served_sink(self) -> ServedSink:
        return self._served_sink

    @property
    def name(self) -> str:
        return self._served_sink.name

    @property
    def shown(self) -> str:
        """The sink's name for people."""
        return self._served_sink.shown or self.name

    @property
    def marked_through(self) -> int:
        """The newest batch that a marker stands for; -1 if none."""
        return self._marker.batch_id if self._marker else NOTHING

    @property
    def through(self) -> int | None:
        """The last batch that the sink gets, by its registration; None if it has none."""
        return self._sink.through

    @property
    def is_complete(self) -> bool:
        """Whether the sink has the last batch that it gets, with a marker."""
        return self._sink.through is not None and self.marked_through >= self._sink.through

    @property
    def has_unmarked(self) -> bool:
        """Whether the sink has batches for which there is no marker yet."""
        return bool(self._group.batches)

    @property
    def _delivered_through(self) -> int:
        return self._group.batches[-1].batch_id if self._group.batches else self.marked_through

    def load(self) -> None:
        """Find the newest marker, from which this sink goes on. Without one it begins at its first batch.

        If that batch was collected during the sink's registration, it begins at the oldest batch the WAL still holds.
        """
        self._marker = newest_marker(self._log, self.name)
        self._check_marker()
        if self._marker is None:
            self._first_batch = first_due(self._log, self._sink)

    def _check_marker(self) -> None:
        """Compare the newest marker with all else that is known of the sink. No request, if nothing was lost."""
        history, through = self._shared.history, self.marked_through
        check_marker(self._log, self.name, through, history.low_water)
        check_marked_batch(self._log, self.name, through, history.newest_known)
        history.note_marked(through)
        if self._marker is not None:
            self.term = claim_above_seen(
                self._log, self.term, self._marker.term, paths.marker(self.name, self._marker.batch_id)
            )

    def next_batch(self) -> int | None:
        """The batch to deliver next, whether it exists yet or not; None while the WAL has no batch at all."""
        wal = self._shared.history.wal
        if wal is None:
            return None
        return max(self._delivered_through + 1, wal.first_batch, self._first_batch)

    def deliver_next(self, *, search: bool) -> bool:
        """Deliver the next batch if it can be released; False if there is nothing to do now.

        With `search`, the gate also looks for later entries of the checkpoint, since Spark deletes old ones.
        Raises `DeliveryError` or `StoreError` when a budget is spent, `HistoryError`, `CorruptError` or `FencedError`
        when going on would be wrong, `StoppedError` when the run ends.
        """
        with self._noting():
            return self._deliver_within_budget(search=search)

    def _deliver_within_budget(self, *, search: bool) -> bool:
        tell = failure_teller(self._log.events, self._served_sink, self.next_batch)
        budget = Budget.of(self._served_sink.delivery.retry, self._log.runtime, all_told(tell, self._attempt_failed))
        sleep = self._shared.sleep_s
        what = f"sink {self.shown!r}"
        try:
            delivered = budget.call(
                lambda: self._deliver_next(search=search), StoreError, OutcomeUnknownError, sleep=sleep, what=what
            )
        except (HistoryError, CorruptError):
            # To a superseded process, objects that the newer one made or collected look like damage: say that instead.
            self.term.check(self._log.store)
            self.mark_delivered()
            marker = self._marker_of_missing()
            if marker is None:
                raise
            self._go_on_from(marker)
            self._underway = None
            return True
        except (DeliveryError, StoppedError):
            self.mark_delivered()
            raise
        return delivered

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Leave the error that ends the delivery where `wal-sink status` finds it."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:
            if (batch_id := self.next_batch()) is not None:  # else there may be no `wal.json`, which is made first
                self._last_error.gave_up(error, batch_id=batch_id, term=self.term.number)
            raise

    def _failed_again(self, attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        """Note a failure that is repeated; the last one of a budget is noted by `_noting`."""
        # An attempt without an error has nothing to note: the log has the failure itself.
        if error is not None and next_in_s is not None and (batch_id := self.next_batch()) is not None:
            self._last_error.retried(error, batch_id=batch_id, attempts=attempt, term=self.term.number)

    def _attempt_failed(self, attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        """Mark the group at the first failure of its next batch: attempts may go on for long."""
        if attempt == 1:
            self.mark_delivered()
        self._failed_again(attempt, next_in_s, error)

    def confirm_marked(self) -> None:
        """Confirm that a transactional target still has the rows that the newest marker stands for. Called at the start
        and at the end of a run. No request without such a marker, or for another kind of target.

        Raises the errors of `deliver_next`: `HistoryError` if the target lost rows, `DeliveryError` if it gives no
        answer.
        """
        with self._noting():
            self._confirm_marked()

    def _confirm_marked(self) -> None:
        marker = self._marker
        if (
            marker is None
            or not marker.last_delivered_rows
            or self._served_sink.promise.ability is not Ability.TRANSACTIONAL
        ):
            return  # no batch with rows was marked, or the target keeps no positions to compare
        if self._marked_manifest is None:
            self._marked_manifest = read_marked(self._log, self.name, marker)
        self._marked_manifest = msgspec.structs.replace(self._marked_manifest, segments=(), prepared={})
        self._delivery(self._marked_manifest, taken_over=False).ask()

    def mark_delivered(self) -> None:
        """Mark the batches of the group, if the store permits it. Batches without a marker are sent again."""
        try:
            if self._group.batches:
                self._mark(self._group.batches, {})
        except (StoreError, OutcomeUnknownError, CorruptError, FencedError) as error:
            _logger.warning(
                "sink %s: the markers of %d delivered batches were not written: %s",
                self.shown,
                len(self._group.batches),
                error,
            )

    def abort_abandoned(self) -> None:
        """Abort transactions that a two-phase sink began and that no process will commit: at the start, then once every
        few batches. A failure is only logged as a warning, since they are found again.
        """
        if self._tidied_through is not None and self.marked_through < self._tidied_through + ABORT_EVERY_BATCHES:
            return
        self._tidied_through = self.marked_through
        make_sink, limit_s = self._served_sink.make_sink, self._served_sink.delivery.retry.attempt_timeout_s
        if make_sink is None:
            return  # it is no two-phase sink, so it begins no transactions
        try:
            abort_abandoned(
                self._log, self.name, make_sink, self.term.number, through=self.marked_through, limit_s=limit_s
            )
        except (StoreError, OutcomeUnknownError, CorruptError) as error:
            _logger.warning("sink %s: aborting abandoned transactions failed: %s", self.shown, error)

    def _deliver_next(self, *, search: bool) -> bool:
        """Walk the table of `states` to one of its ends."""
        if self._state is not State.UNCONFIRMED:
            self._state = State.READY  # the walk before this one came to an end, or an error ended it
        due = DueBatch(search)
        while self._state not in ENDS:
            self._state = NEXT[self._state][self._ACTIONS[self._state](self, due)]
        return self._state is State.DELIVERED

    def _confirm(self, _: DueBatch) -> Literal[Seen.CONFIRMED]:
        self._confirm_marked()
        return Seen.CONFIRMED

    def _ask_gate(self, due: DueBatch) -> Literal[Seen.GATE_OPEN, Seen.GATE_CLOSED]:
        if due.search:
            self._shared.history.load_owner()
            self._shared.gate.search()
        batch_id = self.next_batch()
        if batch_id is None or (self._sink.through is not None and batch_id > self._sink.through):
            return Seen.GATE_CLOSED
        due.batch_id = batch_id
        if batch_id != self._due[0]:
            self._due = (batch_id, self._log.runtime.timestamp())
        due.staged = self._shared.history.staged(batch_id)
        self._group.learn_of_backlog(batch_id)
        # A checkpoint that was rolled back must complete the batch again, though it may be released.
        return Seen.GATE_OPEN if self._shared.gate.is_open(batch_id) else Seen.GATE_CLOSED

    def _check_term(self, due: DueBatch) -> Literal[Seen.NOT_SUPERSEDED]:
        """Read the next term, since a superseded process must not decide which attempt is delivered.

        One read; none within a group, since its target ignores rows that it has.
        """
        if not self._group.covers(due.batch_id):
            self._look_at_term()
        return Seen.NOT_SUPERSEDED

    def _release(self, due: DueBatch) -> Literal[Seen.RELEASE_HOLDS, Seen.RELEASE_IN_DOUBT, Seen.GATE_CLOSED]:
        released = self._shared.releaser.release(due.batch_id, due.staged, sink=self.name)
        if released is None:
            return Seen.GATE_CLOSED
        due.released = released
        # This process may have slept since: a newer one may have delivered another attempt and collected its release.
        holds = released.is_present_plan and self._group.is_in_time(RELEASE_S)
        return Seen.RELEASE_HOLDS if holds else Seen.RELEASE_IN_DOUBT

    def _check_term_again(self, _: DueBatch) -> Literal[Seen.NOT_SUPERSEDED]:
        self._look_at_term()
        return Seen.NOT_SUPERSEDED

    def _begin(self, due: DueBatch) -> Literal[Seen.NEW, Seen.MAYBE_BEGUN]:
        due.is_begun = self._may_be_begun(due)
        if self._group.must_end_before(due.released.manifest):
            self._mark(self._group.batches, {})
        if self._underway is None:
            self._underway = self._delivery(due.released.manifest, taken_over=due.is_begun)
            self._began_s = self._log.runtime.monotonic_s()
            known = self._shared.gate.known_through
            tell_released(self._log.events, self.name, due.released.manifest, complete_through=known)
        due.delivery = self._underway
        return Seen.MAYBE_BEGUN if due.is_begun else Seen.NEW

    def _read_progress(self, due: DueBatch) -> Literal[Seen.PROGRESS_READ]:
        due.delivery.take_over()
        seen_in = f"progress of batch {due.batch_id}"
        self.term = claim_above_seen(self._log, self.term, due.delivery.seen_term, seen_in)
        due.delivery.go_on_under(self.term)
        return Seen.PROGRESS_READ

    def _read_markers(self, due: DueBatch) -> Literal[Seen.MARKER_FOUND, Seen.NO_MARKER]:
        if (marker := find_marker(self._log, self.name, due.batch_id)) is not None:
            self._go_on_from(marker)
            return Seen.MARKER_FOUND
        if not (self._has_delivered or self._ignores_repeats):
            check_not_marked(self._log, self.name, due.batch_id)
        return Seen.NO_MARKER

    def _send(self, due: DueBatch) -> Literal[Seen.ALL_SENT]:
        manifest = due.released.manifest
        if not manifest.passed_over:  # Spark called no sink for such a batch either
            due.delivery.run(self._renew_term)
            self._group.timings[due.batch_id] = due.delivery.timing(self._due[1])
        took_s = self._log.runtime.monotonic_s() - self._began_s
        paced_s = manifest.rows / (self._served_sink.delivery.rows_per_s or math.inf)  # the next batch waits for it
        self._group.note_pace(manifest, max(took_s, paced_s))
        self._log.events.tell(Delivered, sink=self.name, batch=manifest.batch_id, rows=manifest.rows, took_s=took_s)
        return Seen.ALL_SENT

    def _choose_marker(self, due: DueBatch) -> Literal[Seen.MARKER_SHARED, Seen.MARKER_DUE]:
        due.kept = due.delivery.kept_rows()
        shares_marker = not (due.is_begun or due.kept) and self._group.may_take(due.batch_id)
        return Seen.MARKER_SHARED if shares_marker else Seen.MARKER_DUE

    def _join_group(self, due: DueBatch) -> Literal[Seen.JOINED]:
        self._group.batches.append(due.released.manifest)
        return Seen.JOINED

    def _mark_batch(self, due: DueBatch) -> Literal[Seen.MARKED]:
        self._mark([*self._group.batches, due.released.manifest], due.kept)
        return Seen.MARKED

    def _forget_delivery(self, _: DueBatch) -> Literal[Seen.FORGOTTEN]:
        self._underway = None
        self._has_delivered = True
        return Seen.FORGOTTEN

    def _close_group(self, _: DueBatch) -> Literal[Seen.MARKED, Seen.NO_GROUP]:
        if not self._group.batches:
            return Seen.NO_GROUP
        self._mark(self._group.batches, {})
        return Seen.MARKED

    _ACTIONS: ClassVar[dict[State, Callable[[Committer, DueBatch], Seen]]] = {
        State.UNCONFIRMED: _confirm,
        State.READY: _ask_gate,
        State.COMPLETE: _check_term,
        State.ENTITLED: _release,
        State.DOUBTFUL: _check_term_again,
        State.RELEASED: _begin,
        State.BEGUN: _read_progress,
        State.INFORMED: _read_markers,
        State.UNSENT: _send,
        State.SENT: _choose_marker,
        State.SHARING: _join_group,
        State.MARKABLE: _mark_batch,
        State.SETTLED: _forget_delivery,
        State.CLOSED: _close_group,
    }
    """The action of each state; `states.NEXT` says which state follows its observation."""

    def _may_be_begun(self, due: DueBatch) -> bool:
        """Whether an earlier call or another process may have begun the delivery."""
        if self._underway is not None or due.released.run_id != self._log.run_id:
            return True
        if due.staged is not None or self._has_delivered:
            return False
        return self._has_progress(due.released.manifest)  # if it has, its release was lost

    def _has_progress(self, manifest: Manifest) -> bool:
        """Whether the sink has some rows of the batch. One listing, or none where progress is kept elsewhere."""
        if self._served_sink.promise.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}:
            return False
        return bool(recorded_chunks(self._log.store, self.name, manifest))

    def _look_at_term(self) -> None:
        self._group.look(lambda: self.term.check(self._log.store))

    def _marker_of_missing(self) -> Marker | None:
        """The marker to go on from, if an object is missing because it was collected: an older process that woke up had
        marked the batch or a later one.
        """
        batch_id = self.next_batch()
        return None if batch_id is None else find_marker(self._log, self.name, batch_id)

    def _go_on_from(self, marker: Marker) -> None:
        self._marker = marker
        self._marked_manifest = None
        self._group.clear()
        self._log.events.tell(FoundDelivered, sink=self.name, batch=marker.batch_id)

    def _renew_term(self, above: int) -> Term:
        """Claim a new term. Tasks that still deliver under the present one are then those of a superseded process.

        `above`: the higher term that a transactional target knows. If the WAL knows no newer process, its terms were
        lost, and the new term is above the target's. Otherwise raises `FencedError`.
        """
        if above <= self.term.number:
            self.term = renew(self._log, self.term)
            return self.term
        self.term = claim_above_seen(self._log, self.term, above, f"the target of sink {self.shown!r}")
        return self.term

    def _delivery(self, manifest: Manifest, *, taken_over: bool) -> BatchDelivery:
        return BatchDelivery(
            self._served_sink,
            self._log,
            self._shared.sleep_s,
            manifest,
            self.term,
            wal_id=self._shared.history.require_wal().wal_id,
            before=self._marker,
            taken_over=taken_over,
            rate=self._rate,
            ignores_repeats=self._ignores_repeats,
            looked_s=self._group.looked_s,
            on_failure=self._attempt_failed,
        )

    def _mark(self, group: Sequence[Manifest], kept: Mapping[Kept, int]) -> None:
        manifest = group[-1]
        last_delivered: MarkedSlots = (NOTHING, (), ())
        if self._served_sink.promise.ability is Ability.TRANSACTIONAL:
            last_delivered = last_delivered_through(manifest, self._marker)
        marker = new_marker(
            self._log, self.term, group, kept=kept, last_delivered=last_delivered, timings=self._group.timings
        )
        if not self._log.create(paths.marker(self.name, manifest.batch_id), marker):
            # Another process created it. Its marker is as true as ours, but that process may have superseded this one.
            self.term.check(self._log.store)
        self._marker = marker
        self._marked_manifest = manifest
        self._shared.history.note_marked(marker.batch_id)
        tell_marked(self._log, self.name, group, marker)
        self._group.clear()

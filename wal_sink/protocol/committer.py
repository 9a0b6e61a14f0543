"""The committer of one sink: gate, release, deliver, mark, in batch order. Runs in the driver or a draining process.

`Committer.deliver_next` is the protocol, from top to bottom. Nothing here waits for a gate or knows Spark: all that can
be done now is done, and the caller decides when to call again. The last step, collection, is `Run.advance`.

An idempotent sink that is behind shares markers among batches, see `progress.Group`. A sink with `roll_s` gets
rolls of batches, see `rolling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from wal_sink.errors import CorruptError, DeliveryError, FencedError, HistoryError, OutcomeUnknownError, StoreError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.log.records import Manifest, Marker, SinkRecord
from wal_sink.log.terms import Term, claim_above_seen, renew
from wal_sink.protocol.batch_delivery import BatchDelivery, tell_released
from wal_sink.protocol.dispatch import ServedSink
from wal_sink.protocol.inventory import check_marked_batch, check_marker, check_not_marked, newest_marker
from wal_sink.protocol.letters import Kept
from wal_sink.protocol.progress import (
    Group,
    MarkedSlots,
    find_marker,
    first_due,
    last_delivered_through,
    new_marker,
    read_marked,
    recorded_chunks,
    tell_marked,
)
from wal_sink.protocol.release import CommitContext, Released
from wal_sink.protocol.retry import Budget, LastError, all_told, failure_teller
from wal_sink.protocol.rolling import Rolling
from wal_sink.protocol.two_phase import Abandoned
from wal_sink.support.clock import StoppedError
from wal_sink.support.events import Delivered, FoundDelivered
from wal_sink.support.limits import RowRate
from wal_sink.support.logs import logger_of

RELEASE_S = 5.0
"""How long a look at the term is valid while a batch is released: a newer process collects no batch so soon."""

_logger = logger_of(__name__)


@dataclass(slots=True)
class _InHand:
    """The batch that is next. It lasts over failed attempts, until the sink has the batch."""

    batch_id: int
    since: str
    """When it became the next one, ISO 8601, UTC."""
    delivery: BatchDelivery | None = None
    """None until an attempt begins to deliver. It knows the rows that the sink has."""
    is_staged_here: bool = False
    """Whether this run has staged it."""


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
        self._rolling = Rolling(shared.log, served_sink)
        self._in_hand: _InHand | None = None
        self._has_delivered = False  # if so, no process began the next batch before
        self._abandoned = Abandoned(
            shared.log, served_sink.name, served_sink.make_sink, served_sink.delivery.retry.attempt_timeout_s
        )
        self._marked_manifest: Manifest | None = None  # of the newest marked batch, without its segments
        self._is_confirmed = False  # whether step 0 of this run is done
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
    def rolls_in_s(self) -> float | None:
        """Seconds until the roll of batches that waits for others is delivered; None if there is none."""
        return self._rolling.wait_s()

    @property
    def _taken_through(self) -> int:
        """The newest batch that the sink has, or that waits in a roll."""
        batches = self._group.batches or self._rolling.batches
        return batches[-1].batch_id if batches else self.marked_through

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
        return max(self._taken_through + 1, wal.first_batch, self._first_batch)

    def _due_batch(self) -> int | None:
        """The batch that the sink lacks next, which may wait in a roll."""
        return self._rolling.batches[0].batch_id if self._rolling.batches else self.next_batch()

    def deliver_with_retries(self, *, search: bool, closes: bool = True) -> bool:
        """Call `deliver_next`, and again after a failure that may pass, within the budget.

        Raises `DeliveryError` or `StoreError` when a budget is spent, `HistoryError`, `CorruptError` or `FencedError`
        when going on would be wrong, `StoppedError` when the run ends.
        """
        with self._noting():
            try:
                return self._within_budget(search=search, closes=closes)
            except (HistoryError, CorruptError):
                # To a superseded process, objects that the newer one made or collected look like damage: say that.
                self.term.check(self._log.store)
                self.mark_delivered()
                marker = self._marker_of_missing()
                if marker is None:
                    raise
                self._go_on_from(marker)
                self._in_hand = None
                return True
            except (DeliveryError, StoppedError):
                self.mark_delivered()
                raise

    def _within_budget(self, *, search: bool, closes: bool) -> bool:
        tell = failure_teller(self._log.events, self._served_sink, self._due_batch)
        budget = Budget.of(self._served_sink.delivery.retry, self._log.runtime, all_told(tell, self._attempt_failed))
        return budget.call(
            lambda: self.deliver_next(search=search, closes=closes),
            StoreError,
            OutcomeUnknownError,
            sleep=self._shared.sleep_s,
            what=f"sink {self.shown!r}",
        )

    def deliver_next(self, *, search: bool, closes: bool = True) -> bool:
        """Deliver the next batch if it can be released, or let it join a roll; False if there is nothing to do now.

        With `search`, the gate also looks for later entries of the checkpoint, since Spark deletes old ones. With
        `closes`, a roll of batches waits for no later ones. The steps have the numbers of docs/ARCHITECTURE.md. An
        error may end any of them: the next attempt begins anew, and `_in_hand` says how far the delivery came. Raises
        what `deliver_with_retries` raises.
        """
        # 0. Confirm, once a run: the target has what the newest marker stands for.
        if not self._is_confirmed:
            self._confirm_marked()
            self._is_confirmed = True

        # 1. Gate: go on once Spark has completed the batch.
        # 2. Release. A superseded process must not decide which attempt is delivered, so the next term is read first.
        #    Not within a group, since its target ignores rows that it has.
        try:
            taken = self._release_next(search=search)
        except (HistoryError, CorruptError):
            if not self._rolling.may_close():
                raise
            return self._deliver_roll()  # the batches before the broken one; the next call meets it again
        if taken is None:
            return self._close_group(closes=closes)
        hand, released = taken
        if self._rolling.is_on:
            return self._add_to_roll(released.manifest)

        # 3. Deliver. Another process or attempt may have begun: its progress is read, and the markers after that. For
        #    progress may be absent because the batch was collected.
        is_begun = self._may_be_begun(hand, released)
        delivery = self._begin(hand, released.manifest, is_begun=is_begun)
        if is_begun:
            self._read_progress(delivery, hand.batch_id)
        if is_begun and self._find_marked(hand.batch_id):
            return self._end_batch()
        self._send(hand, delivery, released.manifest)

        # 4. Mark the batch and its group, unless a later batch shares the marker.
        kept = delivery.kept_rows()
        if not (is_begun or kept) and self._group.may_take(hand.batch_id):
            self._group.batches.append(released.manifest)
        else:
            self._mark([*self._group.batches, released.manifest], kept)
        # 5. Collect: see `Run.advance`.
        return self._end_batch()

    def _release_next(self, *, search: bool) -> tuple[_InHand, Released] | None:
        """Steps 1 and 2. None if no batch can be released now."""
        hand = self._take_next(search=search)
        if hand is None:
            return None
        batch_id, staged = hand.batch_id, self._shared.history.staged(hand.batch_id)  # before the gate is read
        hand.is_staged_here = staged is not None
        self._group.learn_of_backlog(batch_id)
        # A checkpoint that was rolled back must complete the batch again, though it may be released.
        if not self._shared.gate.is_open(batch_id):
            return None

        if not self._group.covers(batch_id):
            self._look_at_term()
        released = self._shared.releaser.release(batch_id, staged, sink=self.name)
        # This process may have slept since: a newer one may have delivered another attempt and collected its release.
        if released and not (released.is_present_plan and self._group.is_in_time(RELEASE_S)):
            self._look_at_term()
        return None if released is None else (hand, released)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Leave the error that ends the delivery where `wal-sink status` finds it."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:
            if (batch_id := self._due_batch()) is not None:  # else there may be no `wal.json`, which is made first
                self._last_error.gave_up(error, batch_id=batch_id, term=self.term.number)
            raise

    def _failed_again(self, attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        """Note a failure that is repeated; the last one of a budget is noted by `_noting`."""
        # An attempt without an error has nothing to note: the log has the failure itself.
        if error is not None and next_in_s is not None and (batch_id := self._due_batch()) is not None:
            self._last_error.retried(error, batch_id=batch_id, attempts=attempt, term=self.term.number)

    def _attempt_failed(self, attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        """Mark the group at the first failure of its next batch: attempts may go on for long."""
        if attempt == 1:
            self.mark_delivered()
        self._failed_again(attempt, next_in_s, error)

    def confirm_marked(self) -> None:
        """Confirm that a transactional target still has the rows that the newest marker stands for. Called at the start
        and at the end of a run. No request without such a marker, or for another kind of target.

        Raises what `deliver_with_retries` raises: `HistoryError` if the target lost rows, `DeliveryError` if it gives
        no answer.
        """
        with self._noting():
            self._confirm_marked()

    def _confirm_marked(self) -> None:
        marker = self._marker
        if marker is None or not (marker.last_delivered_rows and self._served_sink.promise.is_positioned):
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
        """Abort transactions that a two-phase sink began and that no process will commit. See `two_phase.Abandoned`."""
        self._abandoned.abort(self.term.number, through=self.marked_through)

    def _take_next(self, *, search: bool) -> _InHand | None:
        """The next batch, as an earlier attempt left it; None if the sink gets no batch now."""
        if search:
            self._shared.history.load_owner()
            self._shared.gate.search()
        batch_id = self.next_batch()
        if batch_id is None or (self._sink.through is not None and batch_id > self._sink.through):
            return None
        if self._in_hand is None or self._in_hand.batch_id != batch_id:
            self._in_hand = _InHand(batch_id, self._log.runtime.timestamp())
        return self._in_hand

    def _begin(self, hand: _InHand, manifest: Manifest, *, is_begun: bool) -> BatchDelivery:
        """The delivery of the batch. A group that must not wait for it gets its marker first."""
        if self._group.must_end_before(manifest):
            self._mark(self._group.batches, {})
        if hand.delivery is None:
            hand.delivery = self._delivery(manifest, taken_over=is_begun)
            known = self._shared.gate.known_through
            tell_released(self._log.events, self.name, manifest, complete_through=known)
        return hand.delivery

    def _read_progress(self, delivery: BatchDelivery, batch_id: int) -> None:
        delivery.take_over()
        self.term = claim_above_seen(self._log, self.term, delivery.seen_term, f"progress of batch {batch_id}")
        delivery.go_on_under(self.term)

    def _find_marked(self, batch_id: int) -> bool:
        """Whether another process has marked the batch, or a later one. Then this one goes on from there."""
        if (marker := find_marker(self._log, self.name, batch_id)) is not None:
            self._go_on_from(marker)
            return True
        if not (self._has_delivered or self._ignores_repeats or self._rolling.is_on):
            check_not_marked(self._log, self.name, batch_id)
        return False

    def _send(self, hand: _InHand, delivery: BatchDelivery, manifest: Manifest) -> None:
        if not manifest.passed_over:  # Spark called no sink for such a batch either
            delivery.run(self._renew_term)
            self._group.timings[hand.batch_id] = delivery.timing(hand.since)
        took_s = delivery.took_s
        paced_s = manifest.rows / (self._served_sink.delivery.rows_per_s or math.inf)  # the next batch waits for it
        self._group.note_pace(manifest, max(took_s, paced_s))
        self._log.events.tell(Delivered, sink=self.name, batch=manifest.batch_id, rows=manifest.rows, took_s=took_s)

    def _end_batch(self) -> bool:
        """Forget the delivery, so that the next batch is a new one."""
        self._in_hand = None
        self._has_delivered = True
        return True

    def _close_group(self, *, closes: bool) -> bool:
        """Create the marker of the group, or deliver the roll that is due, since no batch can be released now. False
        if there is none.
        """
        if self._group.batches:
            self._mark(self._group.batches, {})
            return True
        if self._rolling.is_due() or (closes and self._rolling.may_close()):
            return self._deliver_roll()
        return False

    def _add_to_roll(self, manifest: Manifest) -> bool:
        """Let a released batch join the roll, which is delivered first if the batch does not fit, or else once it is
        full.
        """
        if not self._rolling.fits(manifest):
            return self._deliver_roll()
        self._rolling.take(manifest)
        self._in_hand = None
        tell_released(self._log.events, self.name, manifest, complete_through=self._shared.gate.known_through)
        return self._deliver_roll() if self._rolling.is_due() else True

    def _deliver_roll(self) -> bool:
        """Steps 3 and 4 for a roll: decide it, deliver its rows as one batch, and create one marker."""
        rolling, first = self._rolling, self._rolling.batches[0].batch_id
        self._look_at_term()
        manifest = rolling.decide(self.term.number)
        if manifest is None:
            return True  # another process decided for more batches
        is_begun = rolling.delivery is not None or rolling.is_of_another
        hand = _InHand(manifest.batch_id, self._log.runtime.timestamp())
        if rolling.delivery is None:
            rolling.delivery = self._delivery(manifest, taken_over=is_begun)
        if is_begun:
            self._read_progress(rolling.delivery, manifest.batch_id)
            if self._find_marked(first):
                return self._end_batch()
        self._send(hand, rolling.delivery, manifest)
        self._mark(rolling.batches, {}, shown=manifest)
        return self._end_batch()

    def _may_be_begun(self, hand: _InHand, released: Released) -> bool:
        """Whether an earlier attempt or another process may have begun the delivery."""
        if hand.delivery is not None or released.run_id != self._log.run_id:
            return True
        if hand.is_staged_here or self._has_delivered:
            return False
        return self._has_progress(released.manifest)  # if it has, its release was lost

    def _has_progress(self, manifest: Manifest) -> bool:
        """Whether the sink has some rows of the batch. One listing, or none where progress is kept elsewhere."""
        if not self._served_sink.promise.records_progress:
            return False
        return bool(recorded_chunks(self._log.store, self.name, manifest))

    def _look_at_term(self) -> None:
        self._group.look(lambda: self.term.check(self._log.store))

    def _marker_of_missing(self) -> Marker | None:
        """The marker to go on from, if an object is missing because it was collected: an older process that woke up had
        marked the batch or a later one.
        """
        batch_id = self._due_batch()
        return None if batch_id is None else find_marker(self._log, self.name, batch_id)

    def _go_on_from(self, marker: Marker) -> None:
        self._marker = marker
        self._marked_manifest = None
        self._group.clear()
        self._rolling.clear()
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

    def _mark(self, group: Sequence[Manifest], kept: Mapping[Kept, int], *, shown: Manifest | None = None) -> None:
        """Create the marker of a group. `shown`: what its rows were delivered as, if that is not its last batch."""
        manifest = group[-1]
        last_delivered: MarkedSlots = (NOTHING, (), ())
        if self._served_sink.promise.is_positioned:
            last_delivered = last_delivered_through(shown or manifest, self._marker)
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
        self._rolling.clear()

"""The committer of one sink: gate, release, deliver, mark, in batch order. Runs in the driver or a draining process.

Nothing here waits for a gate or knows Spark: `deliver_next` does what can be done now, and whoever drives it decides
when to ask again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from wal_sink import paths
from wal_sink.abandoned import ABORT_EVERY_BATCHES, abort_abandoned
from wal_sink.batch_delivery import BatchDelivery
from wal_sink.dead_letters import Kept
from wal_sink.errors import CorruptError, HistoryError, OutcomeUnknownError, StoreError
from wal_sink.guarantees import Ability
from wal_sink.log import NOTHING
from wal_sink.rates import RowRate
from wal_sink.records import Manifest, Marker, SinkRecord
from wal_sink.retries import Budget
from wal_sink.serving import Serving, Surroundings
from wal_sink.terms import Term, renew

_logger = logging.getLogger(__name__)


class Committer:
    """Delivers the batches of a WAL to one sink, strictly in order. Not shared between threads."""

    def __init__(self, serving: Serving, shared: Surroundings, term: Term, sink: SinkRecord) -> None:
        self._serving = serving
        self._shared = shared
        self._log = shared.log
        self._first_batch = sink.first_batch
        self._marker: Marker | None = None
        self._underway: BatchDelivery | None = None  # what an earlier call began and did not finish
        self._recovering = True
        self._tidied_through: int | None = None
        self._rate = RowRate(serving.delivery.rows_per_s, shared.log.runtime)
        self.term = term

    @property
    def serving(self) -> Serving:
        return self._serving

    @property
    def name(self) -> str:
        return self._serving.name

    @property
    def marked_through(self) -> int:
        """The newest batch the sink has; -1 if none."""
        return self._marker.batch_id if self._marker else NOTHING

    def load(self) -> None:
        """Find the newest marker: where this sink is. Without one it begins at its first batch.

        Where that was collected while the sink was being registered, it begins at the oldest batch the WAL still holds.
        """
        self._marker = newest_marker(self._shared, self.name)
        if self._marker is None and self._first_batch <= (low_water := self._log.low_water()):
            held = self._log.numbers(paths.BATCHES, after=self._first_batch - 1)
            self._first_batch = min(held, default=low_water + 1)

    def next_batch(self) -> int | None:
        """The batch to deliver next, whether it exists yet or not; None while the WAL has no batch at all."""
        wal = self._shared.history.wal
        if wal is None:
            return None
        return max(self.marked_through + 1, wal.first_batch, self._first_batch)

    def deliver_next(self, *, search: bool) -> bool:
        """Deliver the next batch if it can be released; False if there is nothing to do now.

        With `search`, the gate also looks for later entries of the checkpoint, since Spark deletes old ones.
        Raises `DeliveryError` or `StoreError` when a budget is spent, `HistoryError`, `CorruptError` or `FencedError`
        when going on would be wrong, `StoppedError` when the run ends.
        """
        budget = Budget.of(self._serving.delivery, self._log.runtime)
        sleep = self._shared.sleep_s
        retrying = budget.retrying(StoreError, OutcomeUnknownError, sleep=sleep, what=f"sink {self.name!r}")
        try:
            delivered = retrying(lambda: self._deliver_next(search=search))
        except (HistoryError, CorruptError):
            # What a successor did or collected looks like damage to whom it succeeded: then that is what to say.
            self.term.check(self._log.store)
            raise
        return delivered

    def abort_abandoned(self) -> None:
        """Abort what a two-phase sink began and nobody will publish: at the start, then once every few batches.

        A warning is all that comes of a failure: what is left is found again.
        """
        if self._tidied_through is not None and self.marked_through < self._tidied_through + ABORT_EVERY_BATCHES:
            return
        self._tidied_through = self.marked_through
        try:
            abort_abandoned(self._log, self._serving, self.term.number, through=self.marked_through)
        except (StoreError, OutcomeUnknownError, CorruptError) as error:
            _logger.warning("sink %s: aborting what was abandoned failed: %s", self.name, error)

    def _deliver_next(self, *, search: bool) -> bool:
        if search:
            self._shared.history.load_owner()
            self._shared.gate.search()
        batch_id = self.next_batch()
        staged = None if batch_id is None else self._shared.history.staged(batch_id)
        if batch_id is None or not self._may_release(batch_id):
            self._recovering = False
            return False
        self.term.check(self._log.store)  # a succeeded process must not decide which attempt is delivered
        released = self._shared.releaser.release(batch_id, staged)
        if released is None:
            return False
        delivery = self._underway
        begun = delivery is not None or released.run_id != self._log.run_id
        if delivery is None:
            delivery = self._underway = self._delivery(released.manifest, taken_over=begun)
        if not (begun and self._is_done_after_all(delivery, batch_id)):
            delivery.run()
            self._mark(released.manifest, delivery.kept_rows())
        self._underway = None
        return True

    def _may_release(self, batch_id: int) -> bool:
        if self._shared.gate.is_open(batch_id):
            return True
        # What is released had its gate open once, even if the checkpoint was rolled back since.
        return self._recovering and self._shared.releaser.is_released(batch_id)

    def _is_done_after_all(self, delivery: BatchDelivery, batch_id: int) -> bool:
        """Progress first, then marker and low water: absent progress may mean "not begun" or "done and collected"."""
        delivery.reload_progress()
        marker = self._log.find(Marker, paths.marker(self.name, batch_id))
        if marker is None and batch_id <= self._log.low_water():
            marker = newest_marker(self._shared, self.name)
        if marker is None or marker.batch_id < batch_id:
            return False
        self._marker = marker
        return True

    def _renew_term(self) -> Term:
        """What was sent out under the present term may still be under way: from now on it is a succeeded one's."""
        self.term = renew(self._log, self.term)
        return self.term

    def _delivery(self, manifest: Manifest, *, taken_over: bool) -> BatchDelivery:
        wal = self._shared.history.wal
        return BatchDelivery(
            self._serving,
            self._shared,
            manifest,
            self.term,
            wal_id=wal.wal_id if wal else "",
            before=self._marker,
            taken_over=taken_over,
            rate=self._rate,
            renew_term=self._renew_term,
        )

    def _mark(self, manifest: Manifest, kept: Mapping[Kept, int]) -> None:
        witness_batch, witness_rows = self._witness(manifest)
        marker = Marker(
            batch_id=manifest.batch_id,
            term=self.term.number,
            run_id=self._log.run_id,
            rows=manifest.rows,
            rejected=kept.get("rejected", 0),
            unknown=kept.get("unknown", 0),
            witness_batch=witness_batch,
            witness_rows=witness_rows,
            **self._log.stamp(),
        )
        if not self._log.create(paths.marker(self.name, manifest.batch_id), marker):
            # Another's marker is as true as ours, but its writer may have succeeded us.
            self.term.check(self._log.store)
        self._marker = marker

    def _witness(self, manifest: Manifest) -> tuple[int, tuple[int, ...]]:
        """The newest batch that had rows, and how many in each segment: what a transactional target must remember."""
        if self._serving.promise.ability is not Ability.STORE_POSITION:
            return NOTHING, ()
        if manifest.segments:
            return manifest.batch_id, tuple(segment.rows for segment in manifest.segments)
        before = self._marker
        return (before.witness_batch, before.witness_rows) if before else (NOTHING, ())


def newest_marker(shared: Surroundings, sink: str) -> Marker | None:
    """The newest marker of a sink, this run's or not. One listing and one read."""
    newest = max(shared.log.numbers(paths.markers(sink)), default=None)
    return None if newest is None else shared.log.find(Marker, paths.marker(sink, newest))

"""Bugs to plant. Each removes or reverses a step that the protocol needs. A simulation must report every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import wal_sink.committer.collection
import wal_sink.committer.committer
import wal_sink.delivery.batch
import wal_sink.lifecycle.run
import wal_sink.recovery.inventory
import wal_sink.recovery.registration
import wal_sink.wal.fencing
import wal_sink.wal.log
from wal_sink.checkpoint.reader import Gate
from wal_sink.committer.collection import Collector
from wal_sink.committer.committer import Committer
from wal_sink.committer.release import Released, Releaser
from wal_sink.committer.states import DueBatch, Seen, State
from wal_sink.delivery.batch import BatchDelivery
from wal_sink.delivery.segment import SegmentDelivery
from wal_sink.errors import StoreError
from wal_sink.recovery.inventory import newest_marker
from wal_sink.runtime.clock import Runtime
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.guarantees import Promise
from wal_sink.staging.stager import Stager
from wal_sink.stores.base import Store
from wal_sink.two_phase.commit import SegmentCommit
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, PreparedRecord, Record

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def marker_before_delivery(patch: Patch) -> None:
    def early(self: Committer, manifest: Manifest, *, taken_over: bool) -> BatchDelivery:
        delivery = made(self, manifest, taken_over=taken_over)
        self._mark([manifest], {})
        return delivery

    made = Committer._delivery
    patch.setattr(Committer, "_delivery", early)


def no_progress_reload_at_takeover(patch: Patch) -> None:
    patch.setattr(BatchDelivery, "reload_progress", lambda _: None)


def gate_ignored(patch: Patch) -> None:
    def is_open(self: Gate, batch_id: int) -> bool:
        return bool(self._checkpoint.offsets(batch_id))

    patch.setattr(Gate, "is_open", is_open)


def release_not_pinned(patch: Patch) -> None:
    def decide(self: Releaser, batch_id: int, staged: Manifest | None, sink: str) -> Released:  # noqa: ARG001
        return Released(staged or self._highest_manifest(batch_id), "somebody")

    patch.setattr(Releaser, "_decide", decide)


def no_lookup(patch: Patch) -> None:
    patch.setattr(SegmentDelivery, "_was_answered", lambda *_: False)


def record_skipped(patch: Patch) -> None:
    patch.setattr(SegmentDelivery, "_record", lambda *_: None)


def record_before_sending(patch: Patch) -> None:
    def send(self: SegmentDelivery, run: Any, chunk: Any) -> None:
        self._record(run.task, chunk.position.rows)
        self._write(run, chunk)
        run.rows = chunk.position.rows
        run.chunks += 1

    patch.setattr(SegmentDelivery, "_send", send)


def low_water_after_deletion(patch: Patch) -> None:
    raise_low_water, delete_through = Log.raise_low_water, Collector._delete_through
    targets: list[int] = []
    patch.setattr(Log, "raise_low_water", lambda _, batch_id, __: targets.append(batch_id))

    def delete_first(self: Collector, batch_id: int) -> None:
        delete_through(self, batch_id)
        raise_low_water(self._log, targets[-1])

    patch.setattr(Collector, "_delete_through", delete_first)


def retention_ignores_what_is_undelivered(patch: Patch) -> None:
    patch.setattr(Collector, "_delivered_everywhere", lambda self: self._shared.gate.search() + 2)


def term_not_checked(patch: Patch) -> None:
    patch.setattr(Term, "check", lambda *_: None)


def replay_restaged(patch: Patch) -> None:
    patch.setattr(Stager, "_is_replay", lambda *_: False)


def highest_manifest_not_chosen(patch: Patch) -> None:
    def lowest(self: Releaser, batch_id: int) -> Manifest:
        names = [paths.parse_manifest(name) for name in self._log.store.list(paths.batch(batch_id))]
        first = min(name for name in names if name is not None)
        found = self._log.find(Manifest, paths.manifest(batch_id, first.term, first.attempt))
        assert found is not None
        return found

    patch.setattr(Releaser, "_highest_manifest", lowest)


def dead_letters_not_kept_at_takeover(patch: Patch) -> None:
    patch.setattr(wal_sink.delivery.batch, "keep_last_recorded", lambda *_: None)


def no_second_read_at_takeover(patch: Patch) -> None:
    def progress_alone(_: Committer, due: DueBatch) -> Seen:
        due.delivery.reload_progress()
        return Seen.PROGRESS_READ

    patch.setitem(Committer._ACTIONS, State.BEGUN, progress_alone)
    patch.setitem(Committer._ACTIONS, State.INFORMED, lambda *_: Seen.NO_MARKER)


def batches_start_at_the_newest(patch: Patch) -> None:
    def newest(self: Committer) -> int | None:
        return None if self._shared.history.wal is None else max(self._shared.gate.search(), self.marked_through + 1)

    patch.setattr(Committer, "next_batch", newest)


def failures_counted_as_done(patch: Patch) -> None:
    """A failed send counts as done, as in Flink's sink when a send answers False."""
    real = SegmentDelivery._write

    def write(self: SegmentDelivery, *args: Any) -> Any:
        try:
            return real(self, *args)
        except SinkFailedError:
            return None

    patch.setattr(SegmentDelivery, "_write", write)


def marker_skipped(patch: Patch) -> None:
    patch.setattr(Committer, "_mark", lambda self, group, _: setattr(self, "_marker", _FakeMarker(group[-1].batch_id)))


class _FakeMarker:
    last_delivered_batch, last_delivered_rows = -1, ()

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id


# Bugs that only whole histories show.


def release_not_confirmed(patch: Patch) -> None:
    patch.setattr(Releaser, "_confirmed", lambda _, released: replace(released, is_present_plan=True))


def ambiguous_answer_taken_for_success(patch: Patch) -> None:
    def create(store: Store, path: str, data: bytes, *, runtime: Runtime) -> bool:  # noqa: ARG001
        try:
            store.create(path, data)
        except StoreError:
            return True
        return True

    patch.setattr(wal_sink.wal.log, "create_once", create)


def ambiguous_answer_taken_for_failure(patch: Patch) -> None:
    def create(store: Store, path: str, data: bytes, *, runtime: Runtime) -> bool:  # noqa: ARG001
        try:
            store.create(path, data)
        except StoreError:
            return False
        return True

    patch.setattr(wal_sink.wal.log, "create_once", create)


def term_not_renewed_after_a_lost_job(patch: Patch) -> None:
    patch.setattr(wal_sink.committer.committer, "renew", lambda _, term: term)


def term_not_checked_after_the_record(patch: Patch) -> None:
    """An at-most-once delivery checks its term before the record and not after it, as other kinds do."""

    def send(self: SegmentDelivery, run: Any, chunk: Any) -> None:
        self._given.term.check(self._log.store)
        self._record(run.task, chunk.position.rows)
        self._write(run, chunk)
        run.rows = chunk.position.rows
        run.chunks += 1

    patch.setattr(SegmentDelivery, "_send_at_most_once", send)


def retention_ignores_absent_sinks(patch: Patch) -> None:
    def delivered(self: Collector) -> int:
        marker = newest_marker(self._log, "default")
        return marker.batch_id if marker else -1

    patch.setattr(Collector, "_delivered_everywhere", delivered)


def known_batch_taken_for_a_replay(patch: Patch) -> None:
    """A known batch is a replay, even if it was not released and reads other input now."""

    def is_replay(self: Stager, batch_id: int, _: object) -> bool:
        return self._log.store.list(paths.batch(batch_id)) != []

    patch.setattr(Stager, "_is_replay", is_replay)


def doubtful_chunk_not_looked_up(patch: Patch) -> None:
    """The attempt after a failed send does not know that its first chunk may have arrived."""
    fail = BatchDelivery._fail

    def forgetful(self: BatchDelivery, *args: Any, may_be_unreachable: bool) -> None:
        try:
            fail(self, *args, may_be_unreachable=may_be_unreachable)
        finally:
            self._maybe_sent = False

    patch.setattr(BatchDelivery, "_fail", forgetful)


def highest_manifest_by_attempt_alone(patch: Patch) -> None:
    def highest(self: Releaser, batch_id: int) -> Manifest:
        names = [paths.parse_manifest(name) for name in self._log.store.list(paths.batch(batch_id))]
        last = max((name for name in names if name is not None), key=lambda name: (name.attempt, -name.term))
        found = self._log.find(Manifest, paths.manifest(batch_id, last.term, last.attempt))
        assert found is not None
        return found

    patch.setattr(Releaser, "_highest_manifest", highest)


def what_is_gone_taken_for_committed(patch: Patch) -> None:
    commit = SegmentCommit._commit

    def careless(self: SegmentCommit, task: Any, prepared: Any, *, term_checked: bool) -> None:
        try:
            commit(self, task, prepared, term_checked=term_checked)
        except SinkFailedError as error:
            if error.failure.kind is not FailureKind.NEVER_COMMITTED:
                raise

    patch.setattr(SegmentCommit, "_commit", careless)


def preparation_not_recorded(patch: Patch) -> None:
    """A transaction that is prepared at delivery is committed without a record, as if no other process could do so."""

    def create(self: Log, path: str, record: Record) -> bool:
        return True if isinstance(record, PreparedRecord) else real(self, path, record)

    real = Log.create
    patch.setattr(Log, "create", create)


def what_was_committed_is_not_remembered(patch: Patch) -> None:
    """A commit without an answer counts as none: its rows are prepared and committed a second time."""
    commit = SegmentCommit._commit

    def again(self: SegmentCommit, task: Any, prepared: Any, *, term_checked: bool) -> None:
        if task.maybe_sent and prepared.number == 0:
            raise SinkFailedError(FailureKind.NEVER_COMMITTED, "planted")
        commit(self, task, prepared, term_checked=term_checked)

    patch.setattr(SegmentCommit, "_commit", again)


def every_sink_served_in_groups(patch: Patch) -> None:
    patch.setattr(Promise, "ignores_repeats", property(lambda promise: not promise.at_most_once))


# Bugs that lost objects show.


def absence_of_the_record_means_a_new_wal(patch: Patch) -> None:
    patch.setattr(wal_sink.recovery.inventory, "_explained_wal", lambda *_: None)


def absence_of_a_registration_means_a_new_sink(patch: Patch) -> None:
    patch.setattr(wal_sink.recovery.registration, "find_new_sink", lambda *_: None)
    patch.setattr(wal_sink.lifecycle.run, "check_unserved_sinks", lambda *_: list[str]())
    patch.setattr(Collector, "expect", lambda *_, **__: None)


def a_claim_goes_by_the_terms_alone(patch: Patch) -> None:
    def from_the_listing(log: Log, role: str, *, was_held: bool, **others: Any) -> Term:  # noqa: ARG001
        return claim(log, role, **others)

    claim = wal_sink.wal.fencing.claim
    patch.setattr(wal_sink.lifecycle.run, "claim", from_the_listing)
    for module in (wal_sink.lifecycle.run, wal_sink.committer.committer):
        patch.setattr(module, "claim_above_seen", lambda _, term, *__: term)


def a_claim_that_jumps_fences_nobody(patch: Patch) -> None:
    patch.setattr(wal_sink.wal.fencing, "_missing", lambda *_: [])


def absence_of_a_marker_means_that_nothing_was_delivered(patch: Patch) -> None:
    for name in ("check_marker", "check_not_marked", "check_marked_batch"):
        patch.setattr(wal_sink.committer.committer, name, lambda *_: None)

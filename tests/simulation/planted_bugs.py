"""Bugs to plant. Each removes or reverses a step that the protocol needs. A simulation must report every one.

A bug is a function that gets a `MonkeyPatch`. `instead` and `around` make one of the wrong function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import pytest

import wal_sink.log.log
import wal_sink.log.terms
import wal_sink.protocol.batch_delivery
import wal_sink.protocol.collect
import wal_sink.protocol.committer
import wal_sink.protocol.dispatch
import wal_sink.protocol.inventory
import wal_sink.protocol.positions
import wal_sink.protocol.registration
import wal_sink.protocol.run
from tests.house.log import Log, Manifest, PreparedRecord, Record, SegmentRef, Term, paths
from tests.house.protocol import Collector, Committer, Gate, Rejections, SegmentDelivery, SegmentResult, SegmentTask
from tests.house.sinks import Chunk, CommitPosition, FailureKind, LedgerEntry, SinkFailedError
from tests.house.stores import Store
from wal_sink.errors import StoreError
from wal_sink.protocol.batch_delivery import BatchDelivery
from wal_sink.protocol.inventory import newest_marker
from wal_sink.protocol.positions import Positions, position_of
from wal_sink.protocol.release import Released, Releaser
from wal_sink.protocol.segment_delivery import Records
from wal_sink.protocol.stage import Stager
from wal_sink.protocol.two_phase import SegmentCommit
from wal_sink.sinks.guarantees import Promise

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def instead(owner: object, name: str) -> Callable[[Callable[..., Any]], Plant]:
    """Decorate a wrong function: the bug puts it in the place of the function with this name in a class or module."""

    def made(wrong: Callable[..., Any]) -> Plant:
        @wraps(wrong)
        def plant(patch: Patch) -> None:
            patch.setattr(owner, name, wrong)

        return plant

    return made


def around(owner: object, name: str) -> Callable[[Callable[..., Any]], Plant]:
    """Decorate a wrong function that gets the right one as its first argument. Otherwise as `instead`."""

    def made(wrong: Callable[..., Any]) -> Plant:
        @wraps(wrong)
        def plant(patch: Patch) -> None:
            right = getattr(owner, name)
            patch.setattr(owner, name, lambda *args, **keywords: wrong(right, *args, **keywords))

        return plant

    return made


@around(Committer, "_delivery")
def marker_before_delivery(right: Any, self: Committer, manifest: Manifest, *, taken_over: bool) -> BatchDelivery:
    delivery: BatchDelivery = right(self, manifest, taken_over=taken_over)
    self._mark([manifest], {})
    return delivery


def no_progress_reload_at_takeover(patch: Patch) -> None:
    patch.setattr(BatchDelivery, "reload_progress", lambda _: None)


@instead(Gate, "is_open")
def gate_ignored(self: Gate, batch_id: int) -> bool:
    return bool(self._checkpoint.offsets(batch_id))


@instead(Releaser, "_decide")
def release_not_pinned(self: Releaser, batch_id: int, staged: Manifest | None, sink: str) -> Released:  # noqa: ARG001
    return Released(staged or self._highest_manifest(batch_id), "somebody")


def no_lookup(patch: Patch) -> None:
    patch.setattr(SegmentDelivery, "_was_answered", lambda *_: False)


def record_skipped(patch: Patch) -> None:
    patch.setattr(Records, "create", lambda *_: None)


@instead(SegmentDelivery, "_send")
def record_before_sending(self: SegmentDelivery, run: Any, chunk: Any) -> None:
    self._records.create(run.task, chunk.position.rows)
    self._write(run, chunk)
    run.note_sent(chunk.position.rows, recorded=1)


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


@instead(Releaser, "_highest_manifest")
def highest_manifest_not_chosen(self: Releaser, batch_id: int) -> Manifest:
    return _manifest(self, batch_id, choose=min)


@instead(Releaser, "_highest_manifest")
def highest_manifest_by_attempt_alone(self: Releaser, batch_id: int) -> Manifest:
    return _manifest(self, batch_id, choose=partial(max, key=lambda name: (name.attempt, -name.term)))


def _manifest(releaser: Releaser, batch_id: int, *, choose: Callable[[Any], Any]) -> Manifest:
    names = [paths.parse_manifest(name) for name in releaser._log.store.list(paths.batch(batch_id))]
    chosen = choose([name for name in names if name is not None])
    found = releaser._log.find(Manifest, paths.manifest(batch_id, chosen.term, chosen.attempt))
    assert found is not None
    return found


def dead_letters_not_kept_at_takeover(patch: Patch) -> None:
    patch.setattr(wal_sink.protocol.batch_delivery, "keep_last_recorded", lambda *_: None)


def no_second_read_at_takeover(patch: Patch) -> None:
    patch.setattr(Committer, "_read_progress", lambda _, delivery, __: delivery.reload_progress())
    patch.setattr(Committer, "_find_marked", lambda *_: False)


@instead(Committer, "next_batch")
def batches_start_at_the_newest(self: Committer) -> int | None:
    return None if self._shared.history.wal is None else max(self._shared.gate.search(), self.marked_through + 1)


@around(SegmentDelivery, "_write")
def failures_counted_as_done(right: Any, *args: Any) -> Any:
    """A failed send counts as done, as in Flink's sink when a send answers False."""
    with suppress(SinkFailedError):
        return right(*args)


def marker_skipped(patch: Patch) -> None:
    patch.setattr(Committer, "_mark", lambda self, group, _: setattr(self, "_marker", _FakeMarker(group[-1].batch_id)))


class _FakeMarker:
    last_delivered_batch, last_delivered_rows = -1, ()

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id


# Bugs that only whole histories show.


def release_not_confirmed(patch: Patch) -> None:
    patch.setattr(Releaser, "_confirmed", lambda _, released: replace(released, is_present_plan=True))


@instead(wal_sink.log.log, "create_once")
def ambiguous_answer_taken_for_success(store: Store, path: str, data: bytes, **_: object) -> bool:
    with suppress(StoreError):
        store.create(path, data)
    return True


@instead(wal_sink.log.log, "create_once")
def ambiguous_answer_taken_for_failure(store: Store, path: str, data: bytes, **_: object) -> bool:
    try:
        store.create(path, data)
    except StoreError:
        return False
    return True


def term_not_renewed_after_a_lost_job(patch: Patch) -> None:
    patch.setattr(wal_sink.protocol.committer, "renew", lambda _, term: term)


@instead(SegmentDelivery, "_send_at_most_once")
def term_not_checked_after_the_record(self: SegmentDelivery, run: Any, chunk: Any) -> None:
    """An at-most-once delivery checks its term before the record and not after it, as other kinds do."""
    self._given.term.check(self._log.store)
    self._records.create(run.task, chunk.position.rows)
    self._write(run, chunk)
    run.note_sent(chunk.position.rows, recorded=1)


@instead(Collector, "_delivered_everywhere")
def retention_ignores_absent_sinks(self: Collector) -> int:
    marker = newest_marker(self._log, "default")
    return marker.batch_id if marker else -1


@instead(Stager, "_is_replay")
def known_batch_taken_for_a_replay(self: Stager, batch_id: int, _: object) -> bool:
    """A known batch is a replay, even if it was not released and reads other input now."""
    return self._log.store.list(paths.batch(batch_id)) != []


@around(BatchDelivery, "_fail")
def doubtful_chunk_not_looked_up(right: Any, self: BatchDelivery, *args: Any, **keywords: Any) -> None:
    """The attempt after a failed send does not know that its first chunk may have arrived."""
    try:
        right(self, *args, **keywords)
    finally:
        self._maybe_sent = False


@around(SegmentCommit, "_commit")
def what_is_gone_taken_for_committed(right: Any, *args: Any, **keywords: Any) -> None:
    try:
        right(*args, **keywords)
    except SinkFailedError as error:
        if error.failure.kind is not FailureKind.NEVER_COMMITTED:
            raise


@around(Log, "create")
def preparation_not_recorded(right: Any, self: Log, path: str, record: Record) -> bool:
    """A transaction that is prepared at delivery is committed without a record, as if no other process could do so."""
    return isinstance(record, PreparedRecord) or bool(right(self, path, record))


@around(SegmentCommit, "_commit")
def what_was_committed_is_not_remembered(right: Any, self: Any, task: Any, prepared: Any, **keywords: Any) -> None:
    """A commit without an answer counts as none: its rows are prepared and committed a second time."""
    if task.maybe_sent and prepared.number == 0:
        raise SinkFailedError(FailureKind.NEVER_COMMITTED, "planted")
    right(self, task, prepared, **keywords)


def every_sink_served_in_groups(patch: Patch) -> None:
    patch.setattr(Promise, "ignores_repeats", property(lambda promise: not promise.at_most_once))


# Bugs that lost objects show.


def absence_of_the_record_means_a_new_wal(patch: Patch) -> None:
    patch.setattr(wal_sink.protocol.inventory, "_explained_wal", lambda *_: None)


def absence_of_a_registration_means_a_new_sink(patch: Patch) -> None:
    patch.setattr(wal_sink.protocol.registration, "find_new_sink", lambda *_: None)
    patch.setattr(wal_sink.protocol.run, "check_unserved_sinks", lambda *_: list[str]())
    patch.setattr(Collector, "expect", lambda *_, **__: None)


def a_claim_goes_by_the_terms_alone(patch: Patch) -> None:
    def from_the_listing(*args: Any, was_held: bool, **others: Any) -> Term:  # noqa: ARG001
        return claim(*args, **others)

    claim = wal_sink.log.terms.claim
    patch.setattr(wal_sink.protocol.run, "claim", from_the_listing)
    for module in (wal_sink.protocol.run, wal_sink.protocol.committer):
        patch.setattr(module, "claim_above_seen", lambda _, term, *__: term)


def a_claim_that_jumps_fences_nobody(patch: Patch) -> None:
    patch.setattr(wal_sink.log.terms, "_missing", lambda *_: [])


def absence_of_a_marker_means_that_nothing_was_delivered(patch: Patch) -> None:
    for name in ("check_marker", "check_not_marked", "check_marked_batch"):
        patch.setattr(wal_sink.protocol.committer, name, lambda *_: None)


# Bugs that show where a target loses what it acknowledged.


@instead(BatchDelivery, "_settle_segment")
def memory_outranks_the_target(self: BatchDelivery, result: SegmentResult) -> None:
    self._rows[result.ordinal] = max(result.rows, self._rows[result.ordinal])


@instead(LedgerEntry, "is_known")
def a_gap_is_accepted(stored: LedgerEntry | None, chunk: Chunk, where: str) -> bool:
    """The ledger follows its earlier rule, which did not notice a gap."""
    if stored is None:
        return False
    stored.check_term(chunk, where)
    return stored.position >= chunk.position


@around(LedgerEntry, "is_known")
def what_a_segment_follows_is_ignored(right: Any, stored: LedgerEntry | None, chunk: Chunk, where: str) -> bool:
    """The first chunk of a segment is written at any position of the slot."""
    is_first = chunk.start == 0 and (stored is None or stored.position.batch_id < chunk.batch_id)
    return not is_first and bool(right(stored, chunk, where))


@around(BatchDelivery, "_settle_segment")
def finished_segments_not_asked_again(right: Any, self: BatchDelivery, result: SegmentResult) -> None:
    """Finished segments stay finished, even if the target reports fewer rows."""
    if self._rows[result.ordinal] < self._manifest.segments[result.ordinal].rows:
        right(self, result)


def no_question_before_the_marker(patch: Patch) -> None:
    """The target tells its rows only after a chunk showed that some were forgotten."""

    def confirm(self: SegmentDelivery, segments: Sequence[SegmentRef]) -> list[SegmentResult]:
        is_due = self._given.batch_id in told or not segments
        told.discard(self._given.batch_id)
        return real(self, segments) if is_due else []

    def fail(self: BatchDelivery, failure: Any, *args: Any, **keywords: Any) -> None:
        if self._asks_first:
            told.add(self._manifest.batch_id)
        real_fail(self, failure, *args, **keywords)

    told: set[int] = set()
    real, real_fail = SegmentDelivery.confirm, BatchDelivery._fail
    patch.setattr(SegmentDelivery, "confirm", confirm)
    patch.setattr(BatchDelivery, "_fail", fail)


@instead(Rejections, "take_over")
def dead_letters_kept_again(self: Rejections) -> Chunk:
    """A chunk that is sent again is rejected again, and its rows are kept under the next number."""
    self._next = sum(1 for _ in self.read())
    return self._chunk


def only_the_chunk_in_hand_may_have_been_sent(patch: Patch) -> None:
    """Earlier chunks that were sent and forgotten since count as new."""
    patch.setattr(BatchDelivery, "_maybe_through", lambda *_: 0)
    patch.setattr(BatchDelivery, "_note_sent", lambda *_: None)
    patch.setattr(BatchDelivery, "take_over", BatchDelivery.reload_progress)


@around(Committer, "__init__")
def last_delivered_not_read_at_the_start(right: Any, self: Committer, *args: Any) -> None:
    right(self, *args)
    self._is_confirmed = True


@around(Committer, "confirm_marked")
def last_delivered_not_read_at_the_end(right: Any, self: Committer) -> None:
    if not self._is_confirmed:
        right(self)


def last_delivered_not_compared(patch: Patch) -> None:
    patch.setattr(Positions, "_check_last_delivered", lambda *_: None)


@around(Positions, "begin")
def slots_not_read_before_their_segment(right: Any, self: Positions, task: SegmentTask) -> tuple[None, int]:
    """Each attempt assumes that its slots are empty."""
    right(self, task)
    return None, 0


# The same for commit sinks.


@instead(wal_sink.protocol.dispatch, "commit_position")
def commit_position_not_compared(_: Any, session: Any, sink: Any) -> CommitPosition | None:
    return position_of(session, sink, "planted")


@instead(wal_sink.protocol.positions, "held_through")
def a_commit_that_is_not_shown_counts(position: CommitPosition | None) -> int:
    return position.batch_id if position else -1


@around(wal_sink.protocol.dispatch, "is_committed")
def a_batch_that_was_rolled_back_counts_as_committed(
    right: Any, position: CommitPosition | None, *of: Any, **at: Any
) -> Any:
    return right(position and replace(position, is_shown=True), *of, **at)


def what_was_committed_is_committed_again(patch: Patch) -> None:
    patch.setattr(wal_sink.protocol.dispatch, "is_committed", lambda *_, **__: False)


@around(Committer, "_mark")
def what_a_roll_was_shown_as_is_not_marked(right: Any, self: Committer, *given: Any, shown: Any = None) -> None:  # noqa: ARG001
    """A roll whose last batch has no rows counts as a batch without rows."""
    right(self, *given)

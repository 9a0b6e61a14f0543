"""Bugs to plant where targets lose what they acknowledged. A simulation must report every one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from wal_sink.committer.committer import Committer
from wal_sink.committer.states import State
from wal_sink.dead_letters.rejections import Rejections
from wal_sink.delivery.batch import BatchDelivery
from wal_sink.delivery.positions import Positions
from wal_sink.delivery.segment import SegmentDelivery
from wal_sink.messages import SegmentResult, SegmentTask
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.wal.records import SegmentRef

Patch = pytest.MonkeyPatch


def memory_outranks_the_target(patch: Patch) -> None:
    def settle(self: BatchDelivery, result: SegmentResult) -> None:
        self._rows[result.ordinal] = max(result.rows, self._rows[result.ordinal])

    patch.setattr(BatchDelivery, "_settle_segment", settle)


def a_gap_is_accepted(patch: Patch) -> None:
    """The ledger follows its earlier rule, which did not notice a gap."""

    def is_known(stored: LedgerEntry | None, chunk: Chunk, where: str) -> bool:
        if stored is None:
            return False
        stored.check_term(chunk, where)
        return stored.position >= chunk.position

    patch.setattr(LedgerEntry, "is_known", staticmethod(is_known))


def what_a_segment_follows_is_ignored(patch: Patch) -> None:
    """The first chunk of a segment is written at any position of the slot."""

    def is_known(stored: LedgerEntry | None, chunk: Chunk, where: str) -> bool:
        is_first = chunk.start == 0 and (stored is None or stored.position.batch_id < chunk.batch_id)
        return False if is_first else real(stored, chunk, where)

    real = LedgerEntry.is_known
    patch.setattr(LedgerEntry, "is_known", staticmethod(is_known))


def finished_segments_not_asked_again(patch: Patch) -> None:
    """Finished segments stay finished, even if the target reports fewer rows."""

    def settle(self: BatchDelivery, result: SegmentResult) -> None:
        if self._rows[result.ordinal] < self._manifest.segments[result.ordinal].rows:
            real(self, result)

    real = BatchDelivery._settle_segment
    patch.setattr(BatchDelivery, "_settle_segment", settle)


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


def dead_letters_kept_again(patch: Patch) -> None:
    """A chunk that is sent again is rejected again, and its rows are kept under the next number."""

    def take_over(self: Rejections) -> Chunk:
        self._next = sum(1 for _ in self.read())
        return self._chunk

    patch.setattr(Rejections, "take_over", take_over)


def only_the_chunk_in_hand_may_have_been_sent(patch: Patch) -> None:
    """Earlier chunks that were sent and forgotten since count as new."""
    patch.setattr(BatchDelivery, "_maybe_through", lambda *_: 0)
    patch.setattr(BatchDelivery, "_note_sent", lambda *_: None)
    patch.setattr("wal_sink.delivery.batch.kept_through", lambda *_: {})


def last_delivered_not_read_at_the_start(patch: Patch) -> None:
    def made(self: Committer, *args: Any) -> None:
        real(self, *args)
        self._state = State.READY

    real = Committer.__init__
    patch.setattr(Committer, "__init__", made)


def last_delivered_not_read_at_the_end(patch: Patch) -> None:
    def confirm_marked(self: Committer) -> None:
        if self._state is State.UNCONFIRMED:
            real(self)

    real = Committer.confirm_marked
    patch.setattr(Committer, "confirm_marked", confirm_marked)


def last_delivered_not_compared(patch: Patch) -> None:
    patch.setattr(Positions, "_check_last_delivered", lambda *_: None)


def slots_not_read_before_their_segment(patch: Patch) -> None:
    """Each attempt assumes that its slots are empty."""

    def begin(self: Positions, task: SegmentTask) -> Any:
        real(self, task)
        return None

    real = Positions.begin
    patch.setattr(Positions, "begin", begin)

"""Bugs that are planted into inline rows and into records by time. A named test must fail for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.house.kit import stage_tables
from tests.house.log import SegmentRef, SegmentWriter
from tests.house.protocol import SegmentDelivery, StagingContext
from tests.simulation.planted_bugs import Plant, around, instead
from tests.spark import test_spark_assumptions as assumptions
from tests.support.one_segment import Stage
from tests.support.small_run import Place, Recorder, numbers
from tests.unit.protocol import test_partitions_inline as inline
from tests.unit.protocol import test_recording as recording
from wal_sink.errors import CorruptError, WalSinkError
from wal_sink.protocol import partitions as inline_rows
from wal_sink.protocol.batch_delivery import BatchDelivery
from wal_sink.protocol.segment_delivery import Looks

Law = Callable[[], object]


def rows_of_a_task_that_came_twice_are_packed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(assumptions, "_in_order", lambda rows, _: sorted(rows, key=lambda row: row.partition))


@around(SegmentWriter, "finish")
def rows_are_counted_from_another_partition(right: Any, self: SegmentWriter) -> list[SegmentRef]:
    refs: list[SegmentRef] = right(self)
    return [msgspec.structs.replace(ref, rows=ref.rows - 1, chunk_ends=None) for ref in refs]


@around(inline_rows, "_parts")
def parts_in_another_order(right: Any, rows: Any, *how: int) -> Any:
    return right(list(reversed(rows)), *how)


@instead(StagingContext, "inline_limit")
def inline_although_the_wal_keeps_nothing(self: StagingContext, partition: int) -> int:
    return inline_rows.inline_limit(self.inline_bytes, partition)


@instead(SegmentDelivery, "_send")
def progress_noted_before_the_send(self: SegmentDelivery, run: Any, chunk: Any) -> None:
    self._records.note(run.task, chunk.position.rows)
    self._records.create_due()
    self._write(run, chunk)
    run.note_sent(chunk.position.rows, recorded=1)


def only_the_chunk_after_the_record_is_doubtful(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchDelivery, "take_over", BatchDelivery.reload_progress)


@instead(Looks, "look")
def one_look_is_good_for_ever(self: Looks, task: Any, *, is_first: bool) -> None:  # noqa: ARG001
    if self._looked_s < 0:
        self._given.term.check(self._log.store)
        self._looked_s = 0.0


def _order() -> None:
    place = Place()
    inline.test_partitions_are_packed_in_their_order(place.open({"a": Recorder()}), place)


def _slept() -> None:
    recording.test_a_process_that_slept_looks_again(Stage(Place(rows=lambda _: [21])))


PLANTED: list[tuple[Plant, Law]] = [
    (
        rows_of_a_task_that_came_twice_are_packed,
        assumptions.test_a_partition_that_comes_twice_is_staged_by_nobody,
    ),
    (rows_are_counted_from_another_partition, _order),
    (parts_in_another_order, _order),
    (inline_although_the_wal_keeps_nothing, inline.test_no_rows_travel_that_the_wal_does_not_keep),
    (progress_noted_before_the_send, recording.test_a_newer_process_sends_everything_after_the_last_record_again),
    (
        only_the_chunk_after_the_record_is_doubtful,
        recording.test_every_chunk_after_the_last_record_is_doubtful,
    ),
    (one_look_is_good_for_ever, _slept),
]


@pytest.mark.no_cover
@pytest.mark.parametrize(("plant", "law"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(plant: Plant, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    law()  # it holds without the bug
    plant(monkeypatch)
    with pytest.raises((AssertionError, WalSinkError, pytest.fail.Exception)):
        law()


def test_no_manifest_names_a_segment_that_was_not_written() -> None:
    """The driver dies, or its store fails, while it packs."""
    place = Place()
    run = place.open({"a": Recorder()})
    query = place.query()
    query.start_batch(0, 0)
    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    segment = run.log.store.segment

    def refused(path: str) -> Any:
        stream = segment(path)
        stream.commit = lambda: _raise(CorruptError("the disk is gone"))  # type: ignore[method-assign]
        return stream

    run.log.store.segment = refused  # type: ignore[method-assign]
    with pytest.raises(CorruptError, match="the disk is gone"):
        run.end_staging(attempt, stage_tables(run, attempt, [numbers(0, 3)] * 4, inline_bytes=inline.BUDGET))
    assert not [name for name in place.wal.list("batches", recursive=True) if "manifest" in name]


def _raise(error: Exception) -> None:
    raise error

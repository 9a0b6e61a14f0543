"""One segment on its way to a target that can look keys up, stores its position, or takes segments whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.house.log import paths
from tests.house.protocol import SegmentResult
from tests.house.sinks import Chunk, FailureKind, Position, Sink, TransactionalSink
from tests.house.support import Event, Sent
from tests.support.one_segment import Stage, Whole, kind_of_failure, raising
from tests.support.small_run import Place
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import OutcomeUnknownError
from wal_sink.protocol.messages import LastDelivered

# Targets that answer look-ups.


class LookingSink(Sink):
    """Has some keys already. It notes the keys that are looked up."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = set(known)
        self.asked: list[str] = []
        self.written: list[str] = []

    def was_applied(self, key: str) -> bool:
        self.asked.append(key)
        return key in self.known

    def write(self, chunk: Chunk) -> None:
        self.written.append(chunk.key)


def test_only_the_first_chunk_that_may_have_been_sent_is_asked_for() -> None:
    stage = Stage()
    first, second = f"{stage.segment.id}-2-4", f"{stage.segment.id}-4-5"
    sink = LookingSink([first])

    result = stage.deliver(sink, task={"start": 2, "maybe_sent": True})

    assert (sink.asked, sink.written) == ([first], [second])
    assert result == SegmentResult(0, 5, chunks=2)
    assert stage.recorded == [4]


def test_a_chunk_that_the_target_does_not_have_is_sent() -> None:
    stage, sink = Stage(), LookingSink()

    stage.deliver(sink, task={"maybe_sent": True})

    assert len(sink.asked) == 1
    assert len(sink.written) == 3


def test_where_nothing_may_have_been_sent_nothing_is_asked() -> None:
    stage, sink = Stage(), LookingSink()

    stage.deliver(sink)

    assert sink.asked == []
    assert len(sink.written) == 3


def test_a_lookup_without_an_answer_is_a_retriable_failure_that_names_the_key() -> None:
    stage, sink = Stage(), LookingSink()
    sink.was_applied = raising(OutcomeUnknownError("no answer"))  # type: ignore[method-assign]

    result = stage.deliver(sink, task={"maybe_sent": True})

    assert kind_of_failure(result) is FailureKind.RETRIABLE
    assert result.failure is not None
    assert result.failure.message == f"was_applied('{stage.segment.id}-0-2'): no answer"


@pytest.mark.parametrize("answer", ["no", 1, 0, None, [], object()])
def test_a_lookup_that_answers_neither_true_nor_false_drops_nothing(answer: object) -> None:
    stage, sink = Stage(), LookingSink()
    sink.was_applied = lambda _key: answer  # type: ignore[method-assign, assignment, return-value]

    result = stage.deliver(sink, task={"maybe_sent": True})

    assert kind_of_failure(result) is FailureKind.PERMANENT
    assert result.failure is not None
    asked = f"was_applied('{stage.segment.id}-0-2') returned {answer!r}"
    assert result.failure.message == f"{asked}: expected True or False; nothing was sent"
    assert (sink.written, stage.recorded) == ([], [])


# Targets that store the position.


class Ledger(TransactionalSink):
    def __init__(self, **positions: Position | None) -> None:
        self.held = {slot.replace("_", "/"): position for slot, position in positions.items()}
        self.asked: list[str] = []
        self.written: list[int] = []

    def last(self, slot: str) -> Position | None:
        self.asked.append(slot)
        return self.held.get(slot)

    def write(self, chunk: Chunk) -> None:
        self.written.append(chunk.rows[0])


def test_a_target_that_has_nothing_gets_everything_and_no_record_is_made() -> None:
    stage, sink = Stage(), Ledger()

    result = stage.deliver(sink, segments=2)

    assert result == SegmentResult(0, 5, chunks=3)
    assert (sink.asked, sink.written, stage.recorded) == (["w/a/0"], [0, 2, 4], [])


def test_a_target_goes_on_where_it_says_it_is() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(2))

    assert stage.deliver(sink) == SegmentResult(0, 5, chunks=2)
    assert sink.written == [2, 4]


def test_a_target_that_has_the_whole_segment_gets_nothing() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(5))

    assert stage.deliver(sink) == SegmentResult(0, 5)
    assert sink.written == []


def test_what_the_target_has_of_an_earlier_batch_is_no_part_of_this_one() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(4, batch_id=6, segment_id="earlier"))

    assert stage.deliver(sink, batch_id=7) == SegmentResult(0, 5, chunks=3)


@pytest.mark.parametrize(("batch_id", "segment_id"), [(1, None), (0, "another"), (1, "another")])
def test_a_target_that_is_ahead_or_has_another_segment_is_refused(batch_id: int, segment_id: str | None) -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(2, batch_id=batch_id, segment_id=segment_id))

    result = stage.deliver(sink)

    assert kind_of_failure(result) is FailureKind.HISTORY
    assert result.failure is not None
    told = f"already holds batch {batch_id}, segment {segment_id or stage.segment.id}, in slot 'w/a/0'"
    assert told in result.failure.message
    assert (result.rows, sink.written) == (0, [])


def test_a_position_without_an_answer_is_a_retriable_failure_that_names_the_slot() -> None:
    stage, sink = Stage(), Ledger()
    sink.last = raising(OutcomeUnknownError("no answer"))  # type: ignore[method-assign]

    result = stage.deliver(sink)

    assert kind_of_failure(result) is FailureKind.RETRIABLE
    assert result.failure is not None
    assert result.failure.message == "last('w/a/0'): no answer"


# The batch before, which a target must remember.


def remembered(stage: Stage, *, found: Position | None) -> SegmentResult:
    """Deliver batch 7, where what was delivered last is batch 5 with four rows."""
    return stage.deliver(Ledger(w_a_0=found), batch_id=7, last_delivered=LastDelivered(((5, 4),)))


@pytest.mark.parametrize(("batch_id", "rows"), [(5, 4), (5, 9), (6, 0)])
def test_a_target_that_remembers_as_much_or_more_is_delivered_to(batch_id: int, rows: int) -> None:
    stage = Stage()

    assert remembered(stage, found=stage.position(rows, batch_id=batch_id)).failure is None


def test_a_target_that_owes_several_slots_goes_on_from_the_segments_own() -> None:
    stage = Stage()
    other = replace(stage.position(4, batch_id=5), slot="w/a/1")
    sink = Ledger(w_a_0=stage.position(2, batch_id=7), w_a_1=other)

    result = stage.deliver(sink, batch_id=7, last_delivered=LastDelivered(((5, 4), (5, 4))))

    assert (result.rows, result.chunks, result.failure) == (5, 2, None)


def test_a_target_that_owes_a_single_slot_is_asked_for_that_one_alone() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(4, batch_id=5))
    sink.positions = raising(ConnectionError("asked for several"))  # type: ignore[method-assign]

    result = stage.deliver(sink, batch_id=7, last_delivered=LastDelivered(((5, 4),)))

    assert (result.rows, result.failure) == (5, None)


@pytest.mark.parametrize(("batch_id", "rows"), [(5, 3), (4, 9)])
def test_a_target_that_remembers_less_was_restored_and_is_refused(batch_id: int, rows: int) -> None:
    stage = Stage()

    result = remembered(stage, found=stage.position(rows, batch_id=batch_id))

    assert kind_of_failure(result) is FailureKind.HISTORY
    assert result.failure is not None
    assert f"batch 5 was delivered and marked, but the target holds batch {batch_id}, row {rows} in slot 'w/a/0'" in (
        result.failure.message
    )


def test_the_segments_of_a_batch_share_the_slots_of_the_last_delivered() -> None:
    stage = Stage()
    positions = {f"w_a_{number}": stage.position(9, batch_id=5) for number in range(5)}
    first, second = Ledger(**positions), Ledger(**positions)

    stage.deliver(first, batch_id=7, segments=2, last_delivered=LastDelivered(((5, 1),) * 5))
    stage.deliver(second, batch_id=7, segments=2, last_delivered=LastDelivered(((5, 1),) * 5), task={"ordinal": 1})

    assert first.asked == ["w/a/0", "w/a/2", "w/a/4"]
    assert second.asked == ["w/a/1", "w/a/3"]


# Sinks of whole segments.


def test_a_segment_is_handed_over_whole_from_its_first_row_whatever_was_delivered_before() -> None:
    stage, sink = Stage(), Whole()

    result = stage.deliver(sink, task={"ordinal": 3, "start": 2}, batch_id=7)

    assert sink.calls == [(3, 7, [0, 2, 4])]
    assert result == SegmentResult(3, 5, chunks=1)


def test_of_several_whole_segments_each_is_recorded_once_it_arrived() -> None:
    stage = Stage()
    stage.deliver(Whole())
    assert stage.recorded == []

    stage.deliver(Whole(), segments=2)

    assert stage.recorded == [5]


def test_the_term_is_checked_before_a_whole_segment_unless_it_just_was() -> None:
    stage = Stage()
    stage.deliver(Whole())
    assert stage.checks == 1

    stage.deliver(Whole(), task={"term_checked": True})

    assert stage.checks == 0


def test_a_sink_of_segments_that_reads_none_of_its_chunks_has_them_all_the_same() -> None:
    class Reading(Whole):
        def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None: ...

    stage = Stage()

    assert stage.deliver(Reading(), segments=2) == SegmentResult(0, 5, chunks=1)
    assert stage.recorded == []


def test_a_whole_segment_that_was_not_taken_is_not_recorded() -> None:
    stage = Stage()

    result = stage.deliver(Whole(answer=False), segments=2)

    assert kind_of_failure(result) is FailureKind.PERMANENT
    assert result.failure is not None
    assert result.failure.message.startswith(f"batch 0, segment {stage.segment.id}: Whole returned False")
    assert (result.rows, result.chunks, stage.recorded) == (0, 0, [])


# Two-phase sinks.


@pytest.mark.parametrize(("rows", "recorded"), [([3], []), ([3, 2], [(0, 3), (1, 2)])])
def test_a_two_phase_sink_has_a_record_for_each_segment_unless_the_marker_follows(
    rows: list[int], recorded: list[tuple[int, int]]
) -> None:
    events: list[Event] = []
    place = Place(rows=lambda _: rows)

    place.stream(place.open({"a": VaultSink(Vault())}, on_event=events.append), 0)

    assert [paths.parse_progress(name) for name in place.wal.list(paths.progress_folder("a", 0))] == recorded
    assert [event.chunks for event in events if isinstance(event, Sent)] == [len(rows)]

"""One segment on its way to one sink: what is asked, checked, sent and recorded, in which order, from which row on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.simulation.small_run import Place, Recorder
from wal_sink import paths
from wal_sink.calls import DirectCaller
from wal_sink.chunk import Chunk, Position
from wal_sink.delivery import (
    Assignment,
    FailureKind,
    Order,
    Outcome,
    SegmentDelivery,
    SinkSession,
    Witness,
    slot_name,
)
from wal_sink.errors import OutcomeUnknownError, PermanentError, StoreError
from wal_sink.records import Progress, SegmentRef, decode, encode
from wal_sink.run import Run
from wal_sink.segments import Rows, read_parquet
from wal_sink.sink import SegmentSink, Sink, SinkContext, TransactionalSink, as_sink
from wal_sink.terms import Term


@dataclass
class Stage:
    """A staged batch of one segment of five rows in chunks of two, and who has it to deliver."""

    place: Place = field(default_factory=lambda: Place(rows=lambda _: [5]))
    should_stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.run: Run = self.place.open({"a": Recorder()})
        next(self.place.query().batches(self.run, 1))
        staged = self.run.history.staged(0)
        assert staged is not None
        self.segment = staged.segments[0]
        self.given = Assignment(
            wal_id="w",
            sink="a",
            term=Term("committer-a", 1),
            batch_id=0,
            columns=("batch", "row"),
            spark_schema="{}",
            chunk_rows=2,
            segments=1,
            at_most_once=False,
            attempt_timeout_s=10,
            witness=None,
        )
        self.order = Order(0, self.segment, 0, maybe_sent=False)

    def deliver(self, to: object, *, order: dict[str, Any] | None = None, **given: Any) -> Outcome:
        """Deliver once; `order` and `given` change what is handed over."""
        self.place.requests.clear()
        sink = as_sink(to)
        assert isinstance(sink, Sink)
        assignment = replace(self.given, **given)
        session = SinkSession(sink, DirectCaller(), assignment, on_executor=True)
        delivery = SegmentDelivery(assignment, session, self.run.log, should_stop=self.should_stop)
        return delivery.deliver(replace(self.order, **(order or {})))

    def position(self, rows: int, *, batch_id: int = 0, segment_id: str | None = None) -> Position:
        return Position(slot_name("w", "a", 0), batch_id, rows, segment_id or self.segment.id)

    @property
    def recorded(self) -> list[int]:
        names = self.place.wal.list(paths.progress_folder("a", 0))
        return [found.rows for name in names if (found := paths.parse_progress(name))]

    @property
    def checks(self) -> int:
        return self.place.requests.count(f"read {paths.term('committer-a', 2)}")


def kind_of_failure(outcome: Outcome) -> FailureKind | None:
    return outcome.failure.kind if outcome.failure else None


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> object:
        raise error

    return fail


# Chunk by chunk.


def test_a_segment_arrives_in_chunks_of_which_all_but_the_last_are_recorded_since_the_marker_follows() -> None:
    stage, sink = Stage(), Recorder()

    outcome = stage.deliver(sink)

    assert outcome == Outcome(0, 5, chunks=3)
    assert [list(chunk.rows) for chunk in sink.chunks] == [[0, 1], [2, 3], [4]]
    assert stage.recorded == [2, 4]


def test_of_several_segments_each_records_its_last_chunk_too() -> None:
    stage = Stage()

    stage.deliver(Recorder(), segments=2)

    assert stage.recorded == [2, 4, 5]


def test_delivery_goes_on_from_the_row_of_the_order() -> None:
    stage, sink = Stage(), Recorder()

    outcome = stage.deliver(sink, order={"start": 2})

    assert outcome == Outcome(0, 5, chunks=2)
    assert [chunk.rows[0] for chunk in sink.chunks] == [2, 4]


def test_a_chunk_tells_its_place_its_term_and_its_key() -> None:
    stage, sink = Stage(), Recorder()

    stage.deliver(sink)

    chunk = sink.chunks[1]
    assert (chunk.batch_id, chunk.segment_id, chunk.term) == (0, stage.segment.id, 1)
    assert chunk.key == f"{stage.segment.id}-2-4"
    assert chunk.position == Position("w/a/0", 0, 4, stage.segment.id)
    assert chunk.table.to_pydict() == {"batch": [0, 0], "row": [2, 3]}


def test_a_progress_record_says_who_brought_which_segment_how_far() -> None:
    stage = Stage()
    stage.deliver(Recorder())

    record = decode(Progress, stage.place.wal.read(paths.progress("a", 0, 0, 4)), "progress")

    assert (record.batch_id, record.ordinal, record.rows, record.segment_id) == (0, 0, 4, stage.segment.id)
    assert (record.term, record.run_id) == (1, stage.run.log.run_id)


def test_the_term_is_checked_before_each_chunk() -> None:
    stage = Stage()
    checks: list[int] = []

    stage.deliver(Recorder(lambda _: checks.append(stage.checks)))

    assert checks == [1, 2, 3]


def test_a_term_that_was_just_checked_is_not_checked_for_the_first_chunk() -> None:
    stage = Stage()
    checks: list[int] = []

    stage.deliver(Recorder(lambda _: checks.append(stage.checks)), order={"term_checked": True})

    assert checks == [0, 1, 2]


def test_who_was_succeeded_sends_nothing_more() -> None:
    stage = Stage()

    def overtaken(_: Chunk) -> None:
        stage.place.open({"a": Recorder()})

    sink = Recorder(overtaken)

    outcome = stage.deliver(sink)

    assert kind_of_failure(outcome) is FailureKind.FENCED
    assert (outcome.rows, outcome.chunks, sink.tries) == (2, 1, 1)


def test_a_run_that_ends_sends_nothing_more() -> None:
    stage, sink = Stage(), Recorder()
    stage.should_stop = lambda: bool(sink.chunks)

    outcome = stage.deliver(sink)

    assert kind_of_failure(outcome) is FailureKind.STOPPED
    assert outcome.failure is not None
    assert outcome.failure.message == "the run is ending"
    assert (outcome.rows, outcome.chunks, sink.tries) == (2, 1, 1)


def test_a_record_that_is_there_already_stops_the_delivery_whoever_made_it() -> None:
    stage, sink = Stage(), Recorder()
    stage.place.wal.create(paths.progress("a", 0, 0, 2), b"another attempt's")

    outcome = stage.deliver(sink)

    assert kind_of_failure(outcome) is FailureKind.UNKNOWN
    assert outcome.failure is not None
    assert "000000-000000000002.json was written by another attempt at the same segment" in outcome.failure.message
    assert (outcome.rows, outcome.chunks, sink.tries) == (0, 0, 1)


def test_a_record_that_a_successor_made_says_so() -> None:
    stage = Stage()

    def overtaken(_: Chunk) -> None:
        stage.place.open({"a": Recorder()})
        stage.place.wal.create(paths.progress("a", 0, 0, 2), b"the successor's")

    assert kind_of_failure(stage.deliver(Recorder(overtaken))) is FailureKind.FENCED


def test_a_damaged_segment_is_never_opened_for() -> None:
    stage, sink = Stage(), Noting()

    outcome = stage.deliver(sink, order={"segment": replace_crc(stage), "start": 2})

    assert kind_of_failure(outcome) is FailureKind.CORRUPT
    assert (outcome.rows, outcome.chunks, sink.contexts) == (2, 0, [])


def replace_crc(stage: Stage) -> Any:
    return msgspec.structs.replace(stage.segment, crc32=stage.segment.crc32 ^ 1)


# Opening.


class Noting(Sink):
    def __init__(self, *, open_error: Exception | None = None) -> None:
        self.contexts: list[SinkContext] = []
        self.open_error = open_error

    def open(self, context: SinkContext) -> None:
        self.contexts.append(context)
        if self.open_error is not None:
            raise self.open_error

    def write(self, chunk: Chunk) -> None: ...


def test_a_sink_is_told_all_about_its_batch() -> None:
    stage, sink = Stage(), Noting()

    stage.deliver(sink)

    assert sink.contexts == [
        SinkContext(
            wal_id="w", sink="a", term=1, batch_id=0, columns=("batch", "row"), on_executor=True, spark_schema="{}"
        )
    ]


def test_while_nothing_can_have_been_sent_an_unknown_outcome_is_a_retriable_one() -> None:
    outcome = Stage().deliver(Noting(open_error=OutcomeUnknownError("no answer")))

    assert kind_of_failure(outcome) is FailureKind.RETRIABLE
    assert outcome.failure is not None
    assert outcome.failure.message == "open: no answer"


def test_any_other_failure_to_open_stays_what_it_is() -> None:
    outcome = Stage().deliver(Noting(open_error=PermanentError("no such table")))

    assert kind_of_failure(outcome) is FailureKind.PERMANENT


def test_an_unknown_outcome_of_a_write_stays_unknown() -> None:
    assert kind_of_failure(Stage().deliver(raising(OutcomeUnknownError("x")))) is FailureKind.UNKNOWN


# Targets that can be asked.


class LookingSink(Sink):
    """Has some keys already; notes which it was asked for."""

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

    outcome = stage.deliver(sink, order={"start": 2, "maybe_sent": True})

    assert (sink.asked, sink.written) == ([first], [second])
    assert outcome == Outcome(0, 5, chunks=2)
    assert stage.recorded == [4]


def test_a_chunk_that_the_target_does_not_have_is_sent() -> None:
    stage, sink = Stage(), LookingSink()

    stage.deliver(sink, order={"maybe_sent": True})

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

    outcome = stage.deliver(sink, order={"maybe_sent": True})

    assert kind_of_failure(outcome) is FailureKind.RETRIABLE
    assert outcome.failure is not None
    assert outcome.failure.message == f"was_applied('{stage.segment.id}-0-2'): no answer"


# At most once.


def test_at_most_once_counts_only_what_the_sink_took_and_settles_what_it_did_not() -> None:
    stage = Stage()
    sink = Recorder(lambda chunk: raising(ConnectionError("half sent"))() if chunk.rows[0] == 2 else None)

    outcome = stage.deliver(sink, at_most_once=True)

    assert kind_of_failure(outcome) is FailureKind.RETRIABLE
    assert (outcome.rows, outcome.chunks, sink.tries) == (4, 1, 2)
    assert stage.recorded == [2, 4]
    assert [path.rpartition("/")[2] for path in stage.place.wal.list(paths.dead_letter_folder("a", 0))] == [
        "000000-000000000002-000000000004.parquet"
    ]


def test_at_most_once_records_every_chunk_the_last_of_a_lone_segment_too() -> None:
    stage, sink = Stage(), Recorder()

    outcome = stage.deliver(sink, at_most_once=True)

    assert outcome == Outcome(0, 5, chunks=3)
    assert stage.recorded == [2, 4, 5]


def test_at_most_once_what_could_not_be_kept_is_not_settled() -> None:
    stage = Stage()
    stage.place.wal.create = _fails_for("dead-letters", stage.place.wal.create)  # type: ignore[assignment,method-assign]

    outcome = stage.deliver(raising(ConnectionError("half sent")), at_most_once=True)

    assert (outcome.rows, outcome.chunks) == (0, 0)
    assert kind_of_failure(outcome) is FailureKind.UNKNOWN
    assert stage.recorded == [2]


def _fails_for(part: str, create: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
    def fail(path: str, data: bytes) -> None:
        if part in path:
            raise StoreError("disk full")
        create(path, data)

    return fail


# Targets that store the position.


class Ledger(TransactionalSink):
    def __init__(self, **positions: Position | None) -> None:
        self.positions = {slot.replace("_", "/"): position for slot, position in positions.items()}
        self.asked: list[str] = []
        self.written: list[int] = []

    def last(self, slot: str) -> Position | None:
        self.asked.append(slot)
        return self.positions.get(slot)

    def write(self, chunk: Chunk) -> None:
        self.written.append(chunk.rows[0])


def test_a_target_that_has_nothing_gets_everything_and_no_record_is_made() -> None:
    stage, sink = Stage(), Ledger()

    outcome = stage.deliver(sink, segments=2)

    assert outcome == Outcome(0, 5, chunks=3)
    assert (sink.asked, sink.written, stage.recorded) == (["w/a/0"], [0, 2, 4], [])


def test_a_target_goes_on_where_it_says_it_is() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(2))

    assert stage.deliver(sink) == Outcome(0, 5, chunks=2)
    assert sink.written == [2, 4]


def test_a_target_that_has_the_whole_segment_gets_nothing() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(5))

    assert stage.deliver(sink) == Outcome(0, 5)
    assert sink.written == []


def test_what_the_target_has_of_an_earlier_batch_is_no_part_of_this_one() -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(4, batch_id=6, segment_id="earlier"))

    assert stage.deliver(sink, batch_id=7) == Outcome(0, 5, chunks=3)


@pytest.mark.parametrize(("batch_id", "segment_id"), [(1, None), (0, "another"), (1, "another")])
def test_a_target_that_is_ahead_or_has_another_segment_is_refused(batch_id: int, segment_id: str | None) -> None:
    stage = Stage()
    sink = Ledger(w_a_0=stage.position(2, batch_id=batch_id, segment_id=segment_id))

    outcome = stage.deliver(sink)

    assert kind_of_failure(outcome) is FailureKind.HISTORY
    assert outcome.failure is not None
    assert f"already holds batch {batch_id}, segment {segment_id or stage.segment.id}" in outcome.failure.message
    assert (outcome.rows, sink.written) == (0, [])


def test_a_position_without_an_answer_is_a_retriable_failure_that_names_the_slot() -> None:
    stage, sink = Stage(), Ledger()
    sink.last = raising(OutcomeUnknownError("no answer"))  # type: ignore[method-assign]

    outcome = stage.deliver(sink)

    assert kind_of_failure(outcome) is FailureKind.RETRIABLE
    assert outcome.failure is not None
    assert outcome.failure.message == "last('w/a/0'): no answer"


# What a target must remember of the batch before.


def remembered(stage: Stage, *, found: Position | None) -> Outcome:
    """Deliver batch 7, where the witness is batch 5 with four rows."""
    return stage.deliver(Ledger(w_a_0=found), batch_id=7, witness=Witness(5, (4,)))


@pytest.mark.parametrize(("batch_id", "rows"), [(5, 4), (5, 9), (6, 0)])
def test_a_target_that_remembers_as_much_or_more_is_delivered_to(batch_id: int, rows: int) -> None:
    stage = Stage()

    assert remembered(stage, found=stage.position(rows, batch_id=batch_id)).failure is None


@pytest.mark.parametrize(("batch_id", "rows"), [(5, 3), (4, 9)])
def test_a_target_that_remembers_less_was_restored_and_is_refused(batch_id: int, rows: int) -> None:
    stage = Stage()

    outcome = remembered(stage, found=stage.position(rows, batch_id=batch_id))

    assert kind_of_failure(outcome) is FailureKind.HISTORY
    assert outcome.failure is not None
    assert (
        f"batch 5 was delivered and marked, but its target remembers batch {batch_id}, row {rows} in slot 'w/a/0'"
        in (outcome.failure.message)
    )


def test_a_target_that_remembers_nothing_was_restored_and_is_refused() -> None:
    outcome = remembered(Stage(), found=None)

    assert kind_of_failure(outcome) is FailureKind.HISTORY
    assert outcome.failure is not None
    assert "remembers nothing in slot 'w/a/0'" in outcome.failure.message


def test_the_segments_of_a_batch_share_the_slots_of_the_witness() -> None:
    stage = Stage()
    positions = {f"w_a_{number}": stage.position(9, batch_id=5) for number in range(5)}
    first, second = Ledger(**positions), Ledger(**positions)

    stage.deliver(first, batch_id=7, segments=2, witness=Witness(5, (1, 1, 1, 1, 1)))
    stage.deliver(second, batch_id=7, segments=2, witness=Witness(5, (1, 1, 1, 1, 1)), order={"ordinal": 1})

    assert first.asked == ["w/a/0", "w/a/2", "w/a/4"]
    assert second.asked == ["w/a/1", "w/a/3"]


# Sinks of whole segments.


class Whole(SegmentSink):
    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int, list[int]]] = []

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Any:
        self.calls.append((ordinal, batch_id, [chunk.rows[0] for chunk in chunks]))
        return self.answer


def test_a_segment_is_handed_over_whole_from_its_first_row_whatever_was_delivered_before() -> None:
    stage, sink = Stage(), Whole()

    outcome = stage.deliver(sink, order={"ordinal": 3, "start": 2}, batch_id=7)

    assert sink.calls == [(3, 7, [0, 2, 4])]
    assert outcome == Outcome(3, 5, chunks=1)


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

    stage.deliver(Whole(), order={"term_checked": True})

    assert stage.checks == 0


def test_a_sink_of_segments_that_reads_none_of_its_chunks_has_them_all_the_same() -> None:
    class Reading(Whole):
        def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None: ...

    stage = Stage()

    assert stage.deliver(Reading(), segments=2) == Outcome(0, 5, chunks=1)
    assert stage.recorded == []


def test_a_whole_segment_that_was_not_taken_is_not_recorded() -> None:
    stage = Stage()

    outcome = stage.deliver(Whole(answer=False), segments=2)

    assert kind_of_failure(outcome) is FailureKind.PERMANENT
    assert outcome.failure is not None
    assert outcome.failure.message.startswith(f"batch 0, segment {stage.segment.id}: Whole returned False")
    assert (outcome.rows, outcome.chunks, stage.recorded) == (0, 0, [])


def test_a_failure_to_send_names_batch_chunk_and_sink() -> None:
    stage = Stage()

    outcome = stage.deliver(Recorder(lambda _: 5))

    assert outcome.failure is not None
    assert outcome.failure.message.startswith(f"batch 0, chunk {stage.segment.id}-0-2: ")


def test_what_another_wrote_is_left_alone() -> None:
    stage = Stage()
    other = Progress(
        batch_id=0, ordinal=0, rows=2, segment_id="s", term=1, run_id="other", id="x", created="now"
    )  # fmt: skip
    stage.place.wal.create(paths.progress("a", 0, 0, 2), encode(other))

    stage.deliver(Recorder())

    assert decode(Progress, stage.place.wal.read(paths.progress("a", 0, 0, 2)), "progress") == other


# What a failure says.


@pytest.mark.parametrize("to", [Whole(), Noting()], ids=["segment", "chunk"])
def test_a_sink_that_raises_is_named_with_what_it_was_given(to: Whole | Noting) -> None:
    stage = Stage()
    method = "write_segment" if isinstance(to, Whole) else "write"
    setattr(to, method, raising(ConnectionError("down")))

    outcome = stage.deliver(to)

    given = f"segment {stage.segment.id}" if isinstance(to, Whole) else f"chunk {stage.segment.id}-0-2"
    assert outcome.failure is not None
    assert outcome.failure.message == f"batch 0, {given}: {type(to).__name__} raised ConnectionError: down"


def test_a_row_at_which_no_chunk_begins_is_told_with_the_address_of_the_segment() -> None:
    stage = Stage()

    outcome = stage.deliver(Recorder(), order={"start": 1})

    assert kind_of_failure(outcome) is FailureKind.CORRUPT
    assert outcome.failure is not None
    assert outcome.failure.message.startswith(f"{stage.place.wal.url_of(stage.segment.path)}: no chunk starts at row 1")


def test_a_segment_that_does_not_hold_its_rows_is_told_with_its_address() -> None:
    stage = Stage()
    more = msgspec.structs.replace(stage.segment, rows=6)

    outcome = stage.deliver(Recorder(), order={"segment": more})

    assert outcome.failure is not None
    assert outcome.failure.message.startswith(f"{stage.place.wal.url_of(more.path)}: expected 6 rows of 2 columns")


def test_a_dead_letter_says_why_it_is_there() -> None:
    stage = Stage()

    stage.deliver(raising(ConnectionError("half sent")), at_most_once=True)

    kept = stage.place.wal.read(paths.dead_letter("a", 0, 0, 0, 2))
    reason = pq.read_table(io.BytesIO(kept)).schema.metadata[b"wal_sink.reason"].decode()
    assert reason.endswith("raised ConnectionError: half sent")


def test_segments_are_read_by_the_reader_of_the_run() -> None:
    stage, starts = Stage(), list[int]()

    def reader(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Rows:
        starts.append(start)
        return read_parquet(data, ref, columns=columns, start=start, where=where)

    stage.run.log = replace(stage.run.log, segment_reader=reader)

    assert stage.deliver(Recorder(), order={"start": 2}) == Outcome(0, 5, chunks=2)
    assert starts == [2]

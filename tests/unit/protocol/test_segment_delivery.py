"""One segment on its way to one sink: look-ups, checks, sends and records, their order, and the first row of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from tests.house.log import Progress, decode, paths
from tests.house.protocol import RECORD_S, ByTime, SegmentResult, read_dead_letter
from tests.house.sinks import Chunk, Failure, FailureKind, Position, Rejected, SinkContext
from tests.house.support import host_name, logger_of
from tests.support.lake import Lake, LakeSink
from tests.support.one_segment import Noting, Stage, Whole, kind_of_failure, raising
from tests.support.small_run import Recorder
from wal_sink.errors import OutcomeUnknownError, PermanentError, StoreError

logger = logger_of(__name__)

# Chunk by chunk.


def test_a_segment_arrives_in_chunks_of_which_all_but_the_last_are_recorded_since_the_marker_follows() -> None:
    stage, sink = Stage(), Recorder()

    result = stage.deliver(sink)

    assert result == SegmentResult(0, 5, chunks=3)
    assert [list(chunk.rows) for chunk in sink.chunks] == [[0, 1], [2, 3], [4]]
    assert stage.recorded == [2, 4]


def test_of_several_segments_each_records_its_last_chunk_too() -> None:
    stage = Stage()

    stage.deliver(Recorder(), segments=2)

    assert stage.recorded == [2, 4, 5]


def test_delivery_goes_on_from_the_row_of_the_order() -> None:
    stage, sink = Stage(), Recorder()

    result = stage.deliver(sink, task={"start": 2})

    assert result == SegmentResult(0, 5, chunks=2)
    assert [chunk.rows[0] for chunk in sink.chunks] == [2, 4]


def test_a_chunk_tells_its_place_its_term_and_its_key() -> None:
    stage, sink = Stage(), Recorder()

    stage.deliver(sink)

    chunk = sink.chunks[1]
    assert (chunk.batch_id, chunk.segment_id, chunk.term) == (0, stage.segment.id, 1)
    assert chunk.key == f"{stage.segment.id}-2-4"
    assert chunk.position == Position("w/a/0", 0, 4, stage.segment.id)
    assert (chunk.start, chunk.follows) == (2, None)
    assert chunk.table.to_pydict() == {"batch": [0, 0], "row": [2, 3]}


def test_a_progress_record_says_who_brought_which_segment_how_far() -> None:
    stage = Stage()
    stage.deliver(Recorder())

    record = decode(Progress, stage.place.wal.read(paths.progress("a", 0, 0, 4)), "progress")

    assert (record.batch_id, record.ordinal, record.rows, record.segment_id) == (0, 0, 4, stage.segment.id)
    assert (record.term, record.run_id) == (1, stage.run.log.run_id)


def test_a_term_that_was_just_checked_is_not_checked_for_the_first_chunk() -> None:
    stage = Stage()
    checks: list[int] = []

    stage.deliver(Recorder(lambda _: checks.append(stage.checks)), task={"term_checked": True})

    assert checks == [0, 1, 2]


def test_a_superseded_process_sends_nothing_more() -> None:
    stage = Stage()

    def overtaken(_: Chunk) -> None:
        stage.place.open({"a": Recorder()})

    sink = Recorder(overtaken)

    result = stage.deliver(sink)

    assert kind_of_failure(result) is FailureKind.FENCED
    assert (result.rows, result.chunks, sink.tries) == (2, 1, 1)


def test_a_run_that_ends_sends_nothing_more() -> None:
    stage, sink = Stage(), Recorder()
    stage.should_stop = lambda: bool(sink.chunks)

    result = stage.deliver(sink)

    assert kind_of_failure(result) is FailureKind.STOPPED
    assert result.failure is not None
    assert result.failure.message == "the run is ending"
    assert (result.rows, result.chunks, sink.tries) == (2, 1, 1)


def test_a_record_that_is_there_already_stops_the_delivery() -> None:
    stage, sink = Stage(), Recorder()
    stage.place.wal.create(paths.progress("a", 0, 0, 2), b"another attempt's")

    result = stage.deliver(sink)

    assert kind_of_failure(result) is FailureKind.UNKNOWN
    assert result.failure is not None
    assert "000000-000000000002.json was written by another attempt at the same segment" in result.failure.message
    assert (result.rows, result.chunks, sink.tries) == (0, 0, 1)


def test_a_record_that_a_successor_made_says_so() -> None:
    stage = Stage()

    def overtaken(_: Chunk) -> None:
        stage.place.open({"a": Recorder()})
        stage.place.wal.create(paths.progress("a", 0, 0, 2), b"the newer one's")

    assert kind_of_failure(stage.deliver(Recorder(overtaken))) is FailureKind.FENCED


def test_a_damaged_segment_is_never_opened_for() -> None:
    stage, sink = Stage(), Noting()

    result = stage.deliver(sink, task={"segment": replace_crc(stage), "start": 2})

    assert kind_of_failure(result) is FailureKind.CORRUPT
    assert (result.rows, result.chunks, sink.contexts) == (2, 0, [])


def replace_crc(stage: Stage) -> Any:
    return msgspec.structs.replace(stage.segment, crc32=stage.segment.crc32 ^ 1)


def test_a_record_that_is_logged_on_an_executor_names_wal_sink_batch_and_segment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(on_executor=True)
    stage.deliver(Recorder(lambda _: logger.warning("from the sink")))

    record: Any = caplog.records[0]
    assert (record.wal, record.sink, record.batch, record.segment) == (stage.place.wal.root, "a", 0, stage.segment.id)


# By time.


def test_no_look_of_another_process_is_good_on_an_executor() -> None:
    """Its clock tells nothing there."""
    looked_s = {}
    for on_executor in (True, False):
        stage = Stage(on_executor=on_executor)
        now_s = stage.run.log.runtime.monotonic_s()
        stage.deliver(Recorder(), by_time=ByTime(looked_s=now_s))
        looked_s[on_executor] = stage.checks
    assert looked_s == {True: 1, False: 0}


@pytest.mark.parametrize(("each_s", "recorded"), [(RECORD_S - 0.1, [4]), (RECORD_S, [2, 4])])
def test_progress_by_time_is_recorded_once_a_second(each_s: float, recorded: list[int]) -> None:
    stage = Stage()
    stage.deliver(Recorder(lambda _: stage.run.log.runtime.sleep_s(each_s)), by_time=ByTime(records=True))
    assert stage.recorded == recorded


def test_a_result_tells_the_seconds_of_fetching_and_those_of_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    clock, read = stage.run.log.runtime, stage.place.wal.read
    clock.sleep_s(60)

    def slowly(path: str) -> bytes:
        clock.sleep_s(3 if path == stage.segment.path else 0)
        return read(path)

    monkeypatch.setattr(stage.place.wal, "read", slowly)
    result = stage.deliver(Recorder(lambda _: clock.sleep_s(0.5)))
    assert result.fetch_s == pytest.approx(3)
    assert result.send_s == pytest.approx(1.5)


def test_a_commit_sink_prepares_a_segment_and_what_it_answers_is_named_with_its_call() -> None:
    stage, sink = Stage(), cast("Any", LakeSink(Lake()))
    called = f"batch 0, segment {stage.segment.id}: LakeSink: prepare"
    sink.prepare = lambda segment: f"rows: {segment.rows}"
    assert stage.deliver(sink).handle == "rows: 5"
    for sink.prepare, kind, told in (
        (raising(OutcomeUnknownError("no answer")), FailureKind.RETRIABLE, ": no answer"),
        (lambda _: 1, FailureKind.PERMANENT, " returned a int: expected text of at most 4096 characters"),
    ):
        assert stage.deliver(sink).failure == Failure(kind, f"{called}{told}")


def test_rows_are_read_by_the_reader_of_the_log() -> None:
    stage, read = Stage(), list[str]()
    genuine = stage.run.log.segment_reader

    def noting(*given: Any, where: str, **more: Any) -> Any:
        read.append(where)
        return genuine(*given, where=where, **more)

    object.__setattr__(stage.run.log, "segment_reader", noting)
    stage.deliver(Recorder())
    assert read == [stage.place.wal.url_of(stage.segment.path)]


# Opening.


def test_a_sink_is_told_all_about_its_batch() -> None:
    stage, sink = Stage(), Noting()

    stage.deliver(sink, at_most_once=True, time_zone="Asia/Tokyo")

    assert sink.contexts == [
        SinkContext(
            wal_id="w",
            sink="a",
            term=1,
            batch_id=0,
            columns=("batch", "row"),
            on_executor=True,
            spark_schema="{}",
            time_zone="Asia/Tokyo",
            at_most_once=True,
        )
    ]


@pytest.mark.parametrize(("on_executor", "host"), [(True, host_name()), (False, "")])
def test_only_the_result_of_an_executor_names_its_host(on_executor: bool, host: str) -> None:
    assert Stage(on_executor=on_executor).deliver(Noting()).host == host


def test_while_nothing_can_have_been_sent_an_unknown_outcome_is_a_retriable_one() -> None:
    result = Stage().deliver(Noting(open_error=OutcomeUnknownError("no answer")))

    assert kind_of_failure(result) is FailureKind.RETRIABLE
    assert result.failure is not None
    assert result.failure.message == "open: no answer"


def test_any_other_failure_to_open_stays_what_it_is() -> None:
    result = Stage().deliver(Noting(open_error=PermanentError("no such table")))

    assert kind_of_failure(result) is FailureKind.PERMANENT


# At most once.


def test_at_most_once_counts_only_what_the_sink_took_and_settles_what_it_did_not() -> None:
    stage = Stage()
    sink = Recorder(lambda chunk: raising(ConnectionError("half sent"))() if chunk.rows[0] == 2 else None)

    result = stage.deliver(sink, at_most_once=True)

    assert kind_of_failure(result) is FailureKind.RETRIABLE
    assert (result.rows, result.chunks, sink.tries) == (4, 1, 2)
    assert stage.recorded == [2, 4]
    (name,) = stage.place.wal.list(paths.dead_letter_folder("a", 0))
    assert name == "000000-000000000002-000000000004.parquet"
    letter = read_dead_letter(stage.place.wal, f"{paths.dead_letter_folder('a', 0)}/{name}")
    assert [reason.endswith("raised ConnectionError: half sent") for reason in letter.reasons] == [True, True]


def test_at_most_once_what_could_not_be_kept_is_not_settled() -> None:
    stage = Stage()
    stage.place.wal.create = _fails_for("dead-letters", stage.place.wal.create)  # type: ignore[assignment,method-assign]

    result = stage.deliver(raising(ConnectionError("half sent")), at_most_once=True)

    assert (result.rows, result.chunks) == (0, 0)
    assert kind_of_failure(result) is FailureKind.UNKNOWN
    assert stage.recorded == [2]


def _fails_for(part: str, create: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
    def fail(path: str, data: bytes) -> None:
        if part in path:
            raise StoreError("disk full")
        create(path, data)

    return fail


# Messages of failures.


@pytest.mark.parametrize("to", [Whole(), Noting()], ids=["segment", "chunk"])
def test_a_sink_that_raises_is_named_with_what_it_was_given(to: Whole | Noting) -> None:
    stage = Stage()
    method = "write_segment" if isinstance(to, Whole) else "write"
    setattr(to, method, raising(ConnectionError("down")))

    result = stage.deliver(to)

    given = f"segment {stage.segment.id}" if isinstance(to, Whole) else f"chunk {stage.segment.id}-0-2"
    assert result.failure is not None
    assert result.failure.message == f"batch 0, {given}: {type(to).__name__} raised ConnectionError: down"


def test_a_sink_that_refuses_rows_which_are_not_to_be_kept_is_named_with_what_it_was_given() -> None:
    stage = Stage()

    result = stage.deliver(Recorder(lambda _: Rejected({0: "too long"})))

    assert kind_of_failure(result) is FailureKind.PERMANENT
    assert result.failure is not None
    given = f"batch 0, chunk {stage.segment.id}-0-2: "
    assert result.failure.message.startswith(given)
    assert "Recorder rejected 1 row; row 0 of the chunk: too long" in result.failure.message


def test_a_row_at_which_no_chunk_begins_is_told_with_the_address_of_the_segment() -> None:
    stage = Stage()

    result = stage.deliver(Recorder(), task={"start": 1})

    assert kind_of_failure(result) is FailureKind.CORRUPT
    assert result.failure is not None
    assert result.failure.message.startswith(f"{stage.place.wal.url_of(stage.segment.path)}: no chunk starts at row 1")

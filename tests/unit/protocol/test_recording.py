"""Looks and records by time: fewer requests, and the chunks that a newer process sends again."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.house.log import Manifest, paths
from tests.house.protocol import (
    RECORD_S,
    ByTime,
    Committer,
    DeliveryContext,
    DispatcherLostError,
    Run,
    SegmentResult,
    SegmentTask,
    read_dead_letter,
)
from tests.house.sinks import Chunk, Failure, FailureKind, Rejected
from tests.house.stores import Store
from tests.house.support import side_by_side
from tests.support.one_segment import Stage, kind_of_failure
from tests.support.small_run import Place, Recorder
from wal_sink import DeliveryError, Retry, Sink, idempotent
from wal_sink.errors import OutcomeUnknownError, StoreError
from wal_sink.protocol.dispatch import failed
from wal_sink.protocol.segment_delivery import LOOK_S
from wal_sink.testing import FaultyStore, simulated_runtime

Lose = Callable[[Sequence[SegmentTask]], list[SegmentResult]]

WAIT_S = 60
BY_TIME: dict[str, Any] = {"by_time": ByTime(records=True)}


class Slow(Recorder):
    """Each call takes some seconds of the simulated clock."""

    def __init__(self, sleep: Callable[[float], object], seconds: float, fail_at: Sequence[int] = ()) -> None:
        super().__init__()
        self._sleep = sleep
        self._seconds = seconds
        self.fail_at = list(fail_at)

    def __call__(self, chunk: Chunk) -> None:
        self._sleep(self._seconds)
        if chunk.rows[0] in self.fail_at:
            self.fail_at.remove(chunk.rows[0])
            raise ConnectionError("unreachable")
        super().__call__(chunk)


@pytest.fixture
def stage() -> Stage:
    """One segment of 21 rows in chunks of two."""
    return Stage(Place(rows=lambda _: [21]))


def slow(stage: Stage, seconds: float) -> Slow:
    return Slow(stage.run.log.runtime.sleep_s, seconds)


# One task.


def test_nothing_is_asked_or_recorded_within_a_second(stage: Stage) -> None:
    result = stage.deliver(slow(stage, 0.09), **BY_TIME, segments=2)
    assert (result.rows, result.chunks, stage.recorded, stage.checks) == (21, 0, [], 1)


def test_a_look_is_taken_while_the_segment_is_read(stage: Stage) -> None:
    """Each of the two requests waits for the other."""
    both = threading.Barrier(2)

    def wait(what: str, path: str) -> None:
        if what == "before read" and path.startswith(("terms/", "batches/")):
            both.wait(WAIT_S)

    given = with_log(stage, wait, side_by_side=side_by_side)
    assert given.deliver(Recorder(), **BY_TIME, segments=2).rows == 21


@pytest.mark.parametrize(
    ("fails", "told"), [(("terms/",), "terms/"), (("batches/",), "batches/"), (("b", "t"), "terms/")]
)
def test_the_error_of_either_is_the_result_and_that_of_the_look_comes_first(
    stage: Stage, fails: tuple[str, ...], told: str
) -> None:
    def fail(what: str, path: str) -> None:
        if what == "before read" and path.startswith(fails):
            raise StoreError(f"no answer about {path}")

    target = Recorder()
    result = with_log(stage, fail, side_by_side=side_by_side).deliver(target, **BY_TIME, segments=2)
    assert (kind_of_failure(result), target.chunks) == (FailureKind.UNKNOWN, [])
    assert f"no answer about {told}" in str(result.failure)


def with_log(stage: Stage, hook: Callable[[str, str], None], **runtime: Any) -> Stage:
    log = stage.run.log
    changed = dataclasses.replace(
        log, store=FaultyStore(log.store, hook), runtime=dataclasses.replace(log.runtime, **runtime)
    )
    stage.run = cast("Run", SimpleNamespace(log=changed))
    return stage


@pytest.mark.parametrize(("by_time", "first"), [({}, "read batches"), (BY_TIME, "read terms")])
def test_a_look_for_each_chunk_is_taken_right_before_it(stage: Stage, by_time: dict[str, Any], first: str) -> None:
    stage.deliver(Recorder(), **by_time, segments=2)
    assert stage.place.requests[0].startswith(first)


def test_progress_is_recorded_once_a_second(stage: Stage) -> None:
    result = stage.deliver(slow(stage, 0.3), **BY_TIME, segments=2)
    # Chunk 4 ends after 1.2 s, chunk 8 after 2.4 s, and 11 are sent.
    assert (result.rows, result.chunks, stage.recorded) == (21, 8, [8, 16])


@pytest.mark.parametrize(("seconds", "looks"), [(0.3, 3), (0.99, 6), (LOOK_S, 11)])  # 0.3: before chunks 1, 5 and 9
def test_the_term_is_looked_at_once_a_second(stage: Stage, seconds: float, looks: int) -> None:
    stage.deliver(slow(stage, seconds), **BY_TIME)
    assert stage.checks == looks


def test_without_either_every_chunk_is_recorded_and_looked_up(stage: Stage) -> None:
    result = stage.deliver(slow(stage, 0.01), segments=2)
    assert (result.chunks, len(stage.recorded), stage.checks) == (11, 11, 11)


def test_a_superseded_process_stops_within_a_second(stage: Stage) -> None:
    sink = slow(stage, 0.3)

    def overtaken(_: Chunk) -> None:
        if len(sink.chunks) == 1:
            stage.place.open({"a": Recorder()})

    sink.fail = overtaken
    result = stage.deliver(sink, **BY_TIME, segments=2)
    assert kind_of_failure(result) is FailureKind.FENCED
    assert len(sink.chunks) == 4  # all within the look of the beginning
    assert stage.recorded == [8]  # by time; nothing once it knows that it was superseded


def test_a_process_that_slept_looks_again(stage: Stage) -> None:
    sink = slow(stage, 0.0)

    def overtaken(chunk: Chunk) -> None:
        if chunk.rows[0] == 2:
            stage.place.open({"a": Recorder()})
            stage.run.log.runtime.sleep_s(86_400)

    sink.fail = overtaken
    result = stage.deliver(sink, **BY_TIME)
    assert kind_of_failure(result) is FailureKind.FENCED
    assert [chunk.rows[0] for chunk in sink.chunks] == [0, 2]


class Late(FaultyStore):
    """The first answer about a term reaches the process only after `then`."""

    def __init__(self, inner: Store, then: Callable[[], object]) -> None:
        super().__init__(inner, lambda *_: None)
        self._then = [then]

    def read(self, path: str) -> bytes:
        try:
            return super().read(path)
        finally:
            if path.startswith("terms/") and self._then:
                self._then.pop()()


def test_a_look_whose_answer_comes_late_is_old_when_it_comes() -> None:
    """The process sleeps inside the read of the term, and a newer one begins meanwhile."""
    stage = Stage(Place(rows=lambda _: [21]))
    log = stage.run.log

    def sleep() -> None:
        stage.place.open({"a": Recorder()})
        log.runtime.sleep_s(86_400)

    stage.run = cast("Any", SimpleNamespace(log=dataclasses.replace(log, store=Late(log.store, sleep))))
    sink = Recorder()
    result = stage.deliver(sink, by_time=ByTime(records=True), segments=2)
    assert kind_of_failure(result) is FailureKind.FENCED
    assert len(sink.chunks) <= 1


def test_what_the_target_has_is_recorded_when_a_chunk_fails(stage: Stage) -> None:
    sink = slow(stage, 0.01)
    sink.fail_at = [6]
    result = stage.deliver(sink, **BY_TIME)
    assert (result.rows, result.chunks, stage.recorded) == (6, 3, [6])


def test_a_record_that_fails_after_a_failure_changes_nothing(stage: Stage) -> None:
    sink = slow(stage, 0.01)
    sink.fail_at = [6]
    stage.place.wal.create(paths.progress("a", 0, 0, 6), b"another attempt's")
    result = stage.deliver(sink, **BY_TIME)
    assert kind_of_failure(result) is FailureKind.RETRIABLE
    assert result.failure is not None
    assert "unreachable" in result.failure.message
    assert (result.rows, result.chunks) == (6, 0)


@pytest.mark.parametrize(("on_executor", "looks"), [(True, 1), (False, 0)])
def test_an_executor_looks_itself_whatever_the_driver_saw(on_executor: bool, looks: int) -> None:
    stage = Stage(on_executor=on_executor)
    stage.deliver(Recorder(), by_time=ByTime(stage.run.log.runtime.monotonic_s(), records=True))
    assert stage.checks == looks


def test_a_look_of_the_driver_counts_only_in_the_driver() -> None:
    place, looks = Place(rows=lambda _: [4]), []

    @idempotent
    def sink(_: Chunk) -> None:
        looks.append(place.requests.count(f"read {paths.term('committer-a', 2)}"))

    place.stream(place.open({"a": sink}), 0)
    assert looks == [1, 1]  # the committer's own, before the release


# A whole delivery.


@idempotent
def ignored(_: Chunk) -> None:
    """A target that ignores repeats."""


def batch_of(place: Place, run: Run) -> Manifest:
    next(place.query().batches(run, 1))
    manifest = run.history.staged(0)
    assert manifest is not None
    return manifest


def marked(calls: Recorder) -> Callable[[Chunk], object]:
    @idempotent
    def sink(chunk: Chunk) -> object:
        return calls(chunk)

    return sink


def test_segments_that_end_between_two_records_are_recorded_together() -> None:
    place, runtime = Place(rows=lambda _: [2, 2, 2, 2]), simulated_runtime()
    sink = Slow(runtime.sleep_s, 0.4)
    run = place.open({"a": marked(sink)}, runtime=runtime)
    place.stream(run, 0)
    found = {paths.parse_progress(name) for name in place.wal.list(paths.progress_folder("a", 0))}
    assert found == {(0, 2), (1, 2), (2, 2)}  # after 1.2 s; the marker follows for the last


def newer_process(place: Place, sink: object, **delivery: Any) -> None:
    run = place.open({"a": sink}, **delivery)
    run.deliver_all()


def test_a_newer_process_sends_everything_after_the_last_record_again() -> None:
    place, runtime = Place(rows=lambda _: [12]), simulated_runtime()
    first = Slow(runtime.sleep_s, 0.4)
    first.fail = lambda chunk: _die() if chunk.rows[0] == 10 else None
    run = place.open({"a": marked(first)}, runtime=runtime)
    with pytest.raises(_Death):
        place.stream(run, 0)
    assert [chunk.rows[0] for chunk in first.chunks] == [0, 2, 4, 6, 8]

    second = Recorder()
    newer_process(place, marked(second))
    assert [chunk.rows[0] for chunk in second.chunks] == [6, 8, 10]  # recorded through 6, after 1.2 s
    assert set(second.keys) >= {chunk.key for chunk in first.chunks[3:]}


class _Death(BaseException):
    """The process dies."""


def _die() -> None:
    raise _Death


def test_every_chunk_after_the_last_record_is_doubtful() -> None:
    """The first process kept refusals of two chunks as dead letters, and recorded nothing. They are not sent again."""
    place = Place(rows=lambda _: [8])
    first = Recorder(lambda chunk: _die() if chunk.rows[0] == 6 else Rejected({0: "no"}) if chunk.rows[0] else None)
    run = place.open({"a": marked(first)}, on_rejected="dead_letter")
    with pytest.raises(_Death):
        place.stream(run, 0)
    assert not place.wal.list(paths.progress_folder("a", 0))

    second = Recorder()
    newer_process(place, marked(second), on_rejected="dead_letter")
    assert [chunk.rows[0] for chunk in second.chunks] == [0, 6]


def _lost_job(_: Sequence[SegmentTask]) -> list[SegmentResult]:
    raise DispatcherLostError("an executor was lost")


def _lost_tasks(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
    """The answer of the copy that Spark runs after a task was lost."""
    return failed(tasks, Failure(FailureKind.LOST, "Spark ran a delivery task again"))


def _no_result(_: Sequence[SegmentTask]) -> list[SegmentResult]:
    return []


each_loss = pytest.mark.parametrize("lose", [_lost_job, _lost_tasks, _no_result])


@each_loss
def test_a_row_that_a_lost_attempt_kept_as_a_dead_letter_is_not_sent(lose: Lose) -> None:
    """The target refuses a row of the third chunk, and would take it later. Then the attempt is lost."""
    place, calls = Place(rows=lambda _: [8]), Recorder()
    calls.fail = lambda chunk: Rejected({0: "no"}) if chunk.rows[0] == 4 and calls.tries == 3 else _die_at_6(calls)
    run = place.open({"a": marked(calls)}, on_rejected="dead_letter")
    dispatcher = _Losing(run, lose, begun=True)
    _through(run.committers[0], dispatcher)
    batch_of(place, run)
    run.deliver_all()
    assert _only_dead_letter(place) == {4}
    assert {row for chunk in calls.chunks for row in chunk.rows} == {0, 1, 2, 3, 6, 7}, "5 was taken with the refusal"


def _die_at_6(calls: Recorder) -> None:
    if calls.tries == 4:
        raise _Death


def _only_dead_letter(place: Place) -> set[int]:
    folder = paths.dead_letter_folder("a", 0)
    (name,) = place.wal.list(folder)
    return set(read_dead_letter(place.wal, f"{folder}/{name}").chunk.rows)


class _Losing:
    """Loses its first attempt, and carries out the second. `begun`: the first was carried out until it died."""

    whole_batch = False

    def __init__(self, run: Run, lose: Lose, *, begun: bool = False) -> None:
        self._right = run.committers[0].served_sink.dispatcher
        self._lose = lose
        self._begun = begun
        self.tasks: list[Sequence[SegmentTask]] = []

    def deliver(
        self, given: DeliveryContext, manifest: Manifest, tasks: Sequence[SegmentTask], *, confirm: bool
    ) -> list[SegmentResult]:
        self.tasks.append(tasks)
        if len(self.tasks) == 1:
            if self._begun:
                with suppress(_Death):
                    self._right.deliver(given, manifest, tasks, confirm=confirm)
            return self._lose(tasks)
        return self._right.deliver(given, manifest, tasks, confirm=confirm)


def _through(committer: Committer, dispatcher: _Losing) -> None:
    committer._served_sink = dataclasses.replace(committer.served_sink, dispatcher=dispatcher)


def test_only_recorded_progress_refills_the_budget() -> None:
    """Each attempt sends one more chunk, but no record can be created."""
    place = Place(rows=lambda _: [20])
    calls = Recorder()
    calls.fail = lambda _: _raise(OutcomeUnknownError("no answer")) if calls.tries % 2 == 0 else None
    run = place.open({"a": marked(calls)}, retry=Retry(attempts=3))
    _refuse_records(run)
    with pytest.raises(DeliveryError, match="delivery stopped after 3 attempts"):
        place.stream(run, 0)
    assert len(calls.chunks) == 3


@pytest.mark.parametrize("most", [None, 1])
def test_short_segments_one_after_the_other_are_recorded_too(most: int | None) -> None:
    place, runtime = Place(rows=lambda _: [2] * 20), simulated_runtime()
    calls = Slow(runtime.sleep_s, 0.9)
    calls.fail = lambda _: _die() if len(calls.chunks) == 19 else None
    run = place.open({"a": marked(calls)}, runtime=runtime, max_concurrency=most)
    with pytest.raises(_Death):
        place.stream(run, 0)
    second = Recorder()
    newer_process(place, marked(second), max_concurrency=most)
    assert len({chunk.key for chunk in calls.chunks} & set(second.keys)) <= 2


def test_recorded_progress_refills_the_budget() -> None:
    place = Place(rows=lambda _: [20])
    calls = Recorder()
    calls.fail = lambda _: _raise(OutcomeUnknownError("no answer")) if calls.tries % 2 == 0 else None
    place.stream(place.open({"a": marked(calls)}, retry=Retry(attempts=3)), 0)
    assert [chunk.rows[0] for chunk in calls.chunks] == list(range(0, 20, 2))


def _raise(error: Exception) -> None:
    raise error


def _refuse_records(run: Run) -> None:
    create = run.log.store.create

    def refusing(path: str, data: bytes) -> None:
        if "/progress/" in path:
            raise StoreError("no space")
        create(path, data)

    run.log.store.create = refusing  # type: ignore[method-assign]


class Plain(Sink):
    """A target that keeps every repeat."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def write(self, chunk: Chunk) -> None:
        self.rows.append(chunk.rows[0])


def test_a_name_that_began_with_another_sink_has_a_record_for_each_chunk() -> None:
    place = Place(rows=lambda _: [6])
    place.stream(place.open({"a": Plain()}), 0)
    run = place.open({"a": ignored})
    place.stream(run, 1)
    assert sorted(found.rows for found in _recorded(place, 1)) == [2, 4]


def _recorded(place: Place, batch_id: int) -> list[paths.ProgressName]:
    names = place.wal.list(paths.progress_folder("a", batch_id))
    return [found for name in names if (found := paths.parse_progress(name))]


@pytest.mark.parametrize("kind", ["plain", "at_most_once"])
def test_plain_and_at_most_once_sinks_are_recorded_chunk_by_chunk(kind: str) -> None:
    place, sink = Place(rows=lambda _: [6]), Plain() if kind == "plain" else ignored
    guarantee = "at_least_once" if kind == "plain" else "at_most_once"
    place.stream(place.open({"a": sink}, guarantee=guarantee), 0)
    assert len(_recorded(place, 0)) == (2 if kind == "plain" else 3)


def test_the_bound_of_a_second_is_that_of_the_docs() -> None:
    assert (LOOK_S, RECORD_S) == (1.0, 1.0)

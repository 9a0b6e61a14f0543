"""The events that a run tells: which, in which order, with which facts. A hook that fails changes nothing."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.house.protocol import CommitterPool, Run
from tests.house.sinks import Chunk
from tests.house.support import Began, Collected, Ended, Event, GaveUp, Marked, Replayed, Sent, Staged
from tests.simulation.histories.lives import lower_retention
from tests.support.lake import Lake, LakeSink
from tests.support.small_run import Place, Recorder
from wal_sink import Delivery, Rejected, Retry, RetryLaterError, StoreError, idempotent
from wal_sink.metrics.prometheus import Metrics
from wal_sink.support.texts import told
from wal_sink.telemetry import AttemptFailed, Delivered, FoundDelivered, Released, StreamHeld, StreamResumed
from wal_sink.telemetry import Rejected as RowsRejected
from wal_sink.testing import simulated_runtime


class Heard:
    """A hook that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_a_batch_is_told_from_its_staging_to_its_marker(heard: Heard) -> None:
    place = Place(rows=lambda _: [3, 2])
    run = place.open({"a": Recorder()}, on_event=heard)
    place.stream(run, 0)
    assert heard.kinds == ["Began", "Staged", "Released", "Sent", "Delivered", "Marked"]
    assert {event.wal for event in heard.events} == {run.log.store.root}
    (serving,), (staged,), (released,) = heard.of(Began), heard.of(Staged), heard.of(Released)
    assert (serving.sink, serving.next_batch, serving.newest_batch) == ("a", None, -1)
    assert (staged.batch, staged.attempt, staged.rows, staged.segments) == (0, 1, 5, 2)
    assert staged.bytes > 0
    assert staged.requests == ()
    assert (released.sink, released.batch, released.rows, released.complete_through) == ("a", 0, 5, 0)
    assert released.staged_at == staged.staged_at is not None
    (sent,), (delivered,), (marked,) = heard.of(Sent), heard.of(Delivered), heard.of(Marked)
    assert (sent.sink, sent.batch, sent.requests) == ("a", 0, ())
    assert (sent.segments, sent.rows, sent.chunks, sent.failure, sent.chunk_times) == (2, 5, 3, "", ())
    assert (delivered.sink, delivered.batch, delivered.rows) == ("a", 0, 5)
    assert released.bytes == staged.bytes
    assert (marked.sink, marked.batch, marked.batches, marked.rows) == ("a", 0, 1, 5)
    assert (marked.rejected, marked.unknown) == (0, 0)
    assert len(marked.delays_s) == 1


def test_a_batch_that_waits_in_a_roll_is_told_as_released(heard: Heard) -> None:
    place = Place()
    run = place.open({"a": Delivery(LakeSink(Lake()), roll_s=60.0)}, on_event=heard)
    place.stream(run, 0)
    assert [(each.sink, each.batch, each.complete_through) for each in heard.of(Released)] == [("a", 0, 0)]


def test_with_metrics_a_dispatch_tells_the_times_of_its_chunks(heard: Heard) -> None:
    place = Place(rows=lambda _: [3, 2])
    place.stream(place.open({"a": Recorder()}, on_event=heard, metrics=Metrics()), 0)
    (sent,) = heard.of(Sent)
    assert sum(times.count for times in sent.chunk_times) == sent.chunks == 3


def test_times_come_from_the_clocks(heard: Heard) -> None:
    clock = simulated_runtime(seed=1)
    place = Place()

    def slow(_: Chunk) -> None:
        clock.sleep_s(2.0)

    clock.sleep_s(60.0)
    place.stream(place.open({"a": slow}, on_event=heard, runtime=clock), 0)
    assert heard.of(Sent)[0].took_s == heard.of(Delivered)[0].took_s == pytest.approx(2.0)
    assert heard.of(Marked)[0].delays_s == (pytest.approx(2.0, abs=0.01),)


def test_a_replay_is_told(heard: Heard) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)
    run = place.open({"a": Recorder()}, on_event=heard)
    query = place.query()
    query.start_batch(0, 0)
    place.checkpoint.delete(["commits/0"])
    run.gate.close_from(0)
    assert run.begin_staging(0, planned_ms=query.planned_ms(0)) is None
    assert [event.batch for event in heard.of(Replayed)] == [0]
    assert [(event.next_batch, event.newest_batch) for event in heard.of(Began)] == [(1, 0)]


def test_failed_attempts_are_told_with_their_number_and_kind(heard: Heard) -> None:
    failures = [RetryLaterError("busy at https://u:secret@host/x"), ValueError("broken")]

    def fail(_: Chunk) -> None:
        if failures:
            raise failures.pop(0)

    place = Place()
    place.stream(place.open({"a": Recorder(fail)}, on_event=heard), 0)
    failed = [(each.sink, each.attempt, each.kind, each.batch, each.max_attempts) for each in heard.of(AttemptFailed)]
    assert failed == [("a", 1, "retriable", 0, 8), ("a", 2, "retriable", 0, 8)]
    assert all(each.next_in_s > 0 for each in heard.of(AttemptFailed))
    assert "busy" in heard.of(AttemptFailed)[0].error
    assert "secret" not in heard.of(AttemptFailed)[0].error
    assert [each.failure for each in heard.of(Sent)] == ["retriable", "retriable", ""]


def test_a_store_that_fails_is_told_as_a_failed_attempt(heard: Heard) -> None:
    place = Place()
    run = place.open({"a": Recorder()}, on_event=heard)
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.complete_batch(0)
    broken = [True]
    release = run.shared.releaser.release

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if broken:
            broken.clear()
            raise StoreError("no answer")
        return release(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.shared.releaser, "release", fail_once)
        run.deliver_all()
    assert [(each.kind, each.batch) for each in heard.of(AttemptFailed)] == [("StoreError", 0)]
    assert heard.of(Marked)


def test_rejected_rows_are_told(heard: Heard) -> None:
    place = Place(rows=lambda _: [4])
    sink = Recorder(lambda _: Rejected({0: "bad"}))
    place.stream(place.open({"a": sink}, on_event=heard, on_rejected="dead_letter"), 0)
    assert [(event.sink, event.batch, event.rows) for event in heard.of(RowsRejected)] == [("a", 0, 2)]
    assert [event.rejected for event in heard.of(Marked)] == [2]


def test_a_group_has_one_marker(heard: Heard) -> None:
    @idempotent
    def take(_: Chunk) -> None:
        return

    place = Place()
    run = place.open({"a": take}, on_event=heard)
    for _ in place.query().batches(run, 3):
        continue
    run.gate.search()
    run.deliver_all()
    assert sum(event.batches for event in heard.of(Marked)) == 3
    assert sum(len(event.delays_s) for event in heard.of(Marked)) == 3
    assert len(heard.of(Marked)) == 1
    assert len(heard.of(Delivered)) == 3


def test_a_marker_of_another_process_is_told(heard: Heard) -> None:
    place = Place()
    first = place.open({"a": Recorder()})
    for _ in place.query().batches(first, 1):
        continue
    second = place.open({"a": Recorder()}, on_event=heard)
    third = place.open({"a": Recorder()})
    third.deliver_all()
    committer = second.committers[0]
    committer.term = third.committers[0].term  # as if it had the term when it looked
    second.deliver_all()
    assert [(event.sink, event.batch) for event in heard.of(FoundDelivered)] == [("a", 0)]


def test_a_collection_is_told(heard: Heard) -> None:
    place = Place()
    run = place.open({"a": Recorder()}, on_event=heard, settings=lower_retention(4))
    place.stream(run, 24)
    assert [event.low_water for event in heard.of(Collected)] == [15]


def test_the_end_of_a_run_is_told_for_each_sink(heard: Heard) -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Recorder()}, on_event=heard)
    run.end()
    run.log.events.tell_queued()
    assert [event.sink for event in heard.of(Ended)] == ["a", "b"]


def pool_of(run: Run) -> CommitterPool:
    return CommitterPool(run, stopping=threading.Event(), on_failure=lambda: None)


def test_a_sink_that_gives_up_is_told(heard: Heard) -> None:
    def fail(_: Chunk) -> None:
        raise RetryLaterError("gone with token=abcdefgh")

    place = Place()
    run = place.open({"a": Recorder(fail)}, on_event=heard, retry=Retry(attempts=1), on_failure="park")
    for _ in place.query().batches(run, 1):
        continue
    run.gate.search()
    pool = pool_of(run)
    pool.start()
    pool.wait_caught_up()
    pool.stop(10)
    (event,) = heard.of(GaveUp)
    assert (event.sink, event.parked, event.kind) == ("a", True, "DeliveryError")
    assert event.error.startswith("batch 0: delivery stopped after 1 attempts"), "without the sink"
    assert "gone with" in event.error
    assert "abcdefgh" not in event.error


def test_a_waiting_stream_is_told_with_its_backlog(heard: Heard) -> None:
    place = Place()
    run = place.open({"a": Recorder()}, on_event=heard)
    for _ in place.query().batches(run, 2):
        continue
    with pool_of(run).told_to_wait(2):
        run.log.runtime.sleep_s(3.0)
        assert [(event.batch, event.pending_batches) for event in heard.of(StreamHeld)] == [(2, 2)]
        assert heard.of(StreamHeld)[0].pending_bytes > 0
    assert [event.waited_s for event in heard.of(StreamResumed)] == [pytest.approx(3.0)]


@pytest.mark.parametrize("error", [ValueError("planned"), SystemExit(1)])
def test_a_failing_hook_is_logged_once_and_harms_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    def hook(event: Event) -> None:
        heard(event)
        raise error

    place, sink = Place(), Recorder()
    with caplog.at_level(logging.WARNING):
        place.stream(place.open({"a": sink}, on_event=hook), 2)
    assert sink.batches == [0, 1, 2]
    assert len(heard.of(Marked)) == 3
    logged = [record.message for record in caplog.records if "on_event raised" in record.message]
    wanted = f"{place.wal.root}: on_event raised {told(error)} for Began. Delivery continues. "
    assert logged == [wanted + "This run does not log this again"]

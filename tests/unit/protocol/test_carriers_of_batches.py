"""The dispatcher of whole batches: one call for all segments, given up for good if it does not return in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.house.log import Manifest
from tests.house.protocol import DeliveryContext, Run, SegmentResult, SegmentTask
from tests.house.sinks import Failure, FailureKind
from tests.support.hanging_calls import Hangs
from tests.support.small_run import Place, Recorder, served_sink
from wal_sink.errors import DeliveryError, FencedError, PermanentError
from wal_sink.protocol.dispatch import WholeBatchDispatcher
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import simulated_runtime

LIMIT_S = 0.05


def _raise(error: BaseException) -> None:
    raise error


def with_writer(write: Callable[..., object], *, limit_s: float = 10, hangs: Hangs | None = None) -> tuple[Place, Run]:
    """A run with one complete batch for a writer of whole batches."""
    place = Place(rows=lambda _: [1, 2])
    runtime = simulated_runtime(seed=99)
    if hangs is not None:
        runtime = replace(runtime, new_timed_call=hangs.new_timed_call)
    run = place.open({"a": Recorder()}, runtime=runtime)
    dispatcher = WholeBatchDispatcher(write, run.log, what="writer", limit_s=limit_s)
    run.committers[0]._served_sink = replace(
        served_sink(run, "a", Delivery(Recorder(), retry=Retry(attempts=3))), dispatcher=dispatcher
    )
    next(place.query().batches(run, 1))
    return place, run


def test_a_whole_batch_that_failed_is_written_again_as_a_whole() -> None:
    rows: list[int] = []

    def write(_: object, manifest: Manifest) -> None:
        rows.append(manifest.rows)
        if len(rows) < 3:
            raise ConnectionError("down")

    _, run = with_writer(write)

    run.deliver_all()

    assert rows == [3, 3, 3]


def test_of_a_whole_batch_that_was_written_each_segment_has_arrived() -> None:
    _, run = with_writer(lambda *_: None)

    assert handed_over(run) == [SegmentResult(0, 1, chunks=1), SegmentResult(1, 2, chunks=1)]


def test_the_writer_of_a_superseded_process_is_not_called() -> None:
    calls: list[object] = []
    place, run = with_writer(lambda *given: calls.append(given))
    dispatcher = run.committers[0].served_sink.dispatcher
    deliver = dispatcher.deliver

    def superseded_just_before(*given: Any, **options: Any) -> list[SegmentResult]:
        place.open({"a": Recorder()})
        return deliver(*given, **options)

    dispatcher.deliver = superseded_just_before  # type: ignore[method-assign]

    with pytest.raises(FencedError, match="batch 0, sink 'a': term 1 of 'committer-a'"):
        run.deliver_all()
    assert calls == []


def test_a_writer_that_does_not_return_in_time_is_given_up_and_not_called_again() -> None:
    hangs, calls = Hangs(), list[object]()

    def write(*given: object) -> None:
        calls.append(given)
        hangs.wait()

    _, run = with_writer(write, limit_s=LIMIT_S, hangs=hangs)
    try:
        with pytest.raises(DeliveryError, match=r"batch 0, sink 'a': writer is still running after 0\.05 s"):
            run.deliver_all()
    finally:
        hangs.release.set()
    assert len(calls) == 1


def test_a_writer_that_returns_something_did_not_succeed() -> None:
    _, run = with_writer(lambda *_: False)

    with pytest.raises(DeliveryError, match="batch 0, sink 'a': writer returned False: expected None"):
        run.deliver_all()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ConnectionError("down"), FailureKind.RETRIABLE, "batch 0: writer raised ConnectionError: down"),
        (PermanentError("no"), FailureKind.PERMANENT, "batch 0: writer refused permanently: no"),
    ],
    ids=["retriable", "permanent"],
)
def test_of_a_whole_batch_that_failed_no_segment_is_said_to_have_arrived(
    error: Exception, kind: FailureKind, message: str
) -> None:
    _, run = with_writer(lambda *_: _raise(error))

    assert handed_over(run) == [SegmentResult(-1, 0, failure=Failure(kind, message))]


def handed_over(run: Run) -> list[SegmentResult]:
    manifest = run.history.staged(0)
    assert manifest is not None
    tasks = [SegmentTask(number, segment, 0, maybe_sent=False) for number, segment in enumerate(manifest.segments)]
    term = run.committers[0].term
    given = DeliveryContext("w", "a", term, 0, ("batch", "row"), "", 2, 2, False, False, 10, None)
    return run.committers[0].served_sink.dispatcher.deliver(given, manifest, tasks, confirm=False)

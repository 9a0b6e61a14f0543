"""The rate of rows for a sink, and the pause before the next attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.house.protocol import Run, SegmentResult, SegmentTask
from tests.house.sinks import Chunk, Failure, FailureKind
from tests.house.support import StoppedError
from tests.support.small_run import Place, Recorder
from tests.support.vault import Vault, VaultSink
from tests.unit.protocol.test_batch_delivery import Carrying, carried_by, done
from wal_sink import ConfigError, Delivery, DeliveryError, FencedError, Retry, RetryLaterError
from wal_sink.sinks import SegmentSink
from wal_sink.support.limits import RowRate
from wal_sink.testing import simulated_runtime


class Clocked(Recorder):
    """Notes when each chunk came."""

    def __init__(self, fail: Callable[[Chunk], object] | None = None) -> None:
        super().__init__(fail)
        self.run: Run | None = None
        self.at_s: list[float] = []

    def __call__(self, chunk: Chunk) -> Any:
        assert self.run is not None
        self.at_s.append(round(self.run.log.runtime.monotonic_s(), 3))
        return super().__call__(chunk)


def clocked(place: Place, to: Clocked, **delivery: Any) -> Run:
    to.run = place.open({"a": Delivery(to, **delivery)})
    return to.run


def test_each_chunk_waits_until_the_one_before_is_paid_for() -> None:
    place, to = Place(rows=lambda _: [5]), Clocked()
    place.stream(clocked(place, to, rows_per_s=4), 0)
    assert to.at_s == [0.0, 0.5, 1.0]


def test_the_rate_holds_across_segments_and_batches() -> None:
    place, to = Place(rows=lambda _: [2, 1]), Clocked()
    place.stream(clocked(place, to, rows_per_s=2), 2)
    assert to.at_s == [0.0, 1.0, 1.5, 2.5, 3.0, 4.0]


def test_what_an_earlier_attempt_sent_is_paid_for_once() -> None:
    place, to = Place(rows=lambda _: [4]), Clocked()

    def fail(_: Chunk) -> None:
        if to.tries == 2:
            raise ConnectionError("unreachable for a moment")

    to.fail = fail
    place.stream(clocked(place, to, rows_per_s=2), 1)
    assert to.batches == [0, 0, 1, 1]
    assert to.at_s[3] - to.at_s[2] == pytest.approx(1.0)


def test_time_that_went_by_anyway_is_not_waited_for_again() -> None:
    runtime = simulated_runtime()
    rate = RowRate(10, runtime)
    rate.take(20, since_s=rate.now_s())
    runtime.sleep_s(1.5)
    rate.wait(runtime.sleep_s)
    assert rate.now_s() == 2.0
    runtime.sleep_s(60)
    rate.take(10, since_s=rate.now_s())
    rate.wait(runtime.sleep_s)
    assert rate.now_s() == 63.0, "idle time saves nothing up"


def test_a_sink_of_whole_segments_waits_between_batches() -> None:
    class Segments(SegmentSink):
        at_s: list[float]

        def write_segment(self, ordinal: int, batch_id: int, chunks: Any) -> None:  # noqa: ARG002
            for _ in chunks:
                self.at_s.append(run.log.runtime.monotonic_s())

    sink, place = Segments(), Place(rows=lambda _: [4])
    sink.at_s = []
    run = place.open({"a": Delivery(sink, rows_per_s=8)})
    place.stream(run, 1)
    assert sink.at_s == [0.0, 0.0, 0.5, 0.5]


def test_a_run_that_ends_does_not_wait_for_the_rate() -> None:
    place, to = Place(rows=lambda _: [4]), Clocked()
    run = clocked(place, to, rows_per_s=0.001)
    dispatcher: Any = run.committers[0].served_sink.dispatcher
    dispatcher._should_stop = lambda: bool(to.chunks)
    next(place.query().batches(run, 1))
    with pytest.raises(StoppedError):
        run.deliver_all()
    assert to.at_s == [0.0]
    assert run.log.runtime.monotonic_s() <= 1.0


def test_a_process_superseded_while_it_waits_for_the_rate_sends_nothing_more() -> None:
    place, to = Place(rows=lambda _: [4]), Clocked()
    run = clocked(place, to, rows_per_s=1)
    place.stream(run, 0)
    for done_through in place.query().batches(run, 2):
        assert done_through == 1
    committer = run.committers[0]
    wait = committer._rate.wait

    def superseded_meanwhile(sleep: Callable[[float], None]) -> None:
        wait(sleep)
        place.open({"a": Recorder()})

    committer._rate.wait = superseded_meanwhile  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        run.deliver_all()
    assert to.batches == [0, 0]


def test_a_rate_has_to_be_one() -> None:
    for rate in [0, -1, float("inf"), float("nan")]:
        with pytest.raises(ConfigError, match=r"rows_per_s=.*expected a number of rows above 0"):
            Delivery(print, rows_per_s=rate)


def test_what_is_written_while_it_is_staged_has_no_rate() -> None:
    with pytest.raises(ConfigError, match=r"rows_per_s=5 .*maxOffsetsPerTrigger"):
        Place().open({"a": Delivery(VaultSink(Vault()), rows_per_s=5)})


def test_the_longest_wait_that_any_segment_was_asked_for_counts() -> None:
    def busy(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        failures = [Failure(FailureKind.RETRIABLE, "busy", retry_after_s) for retry_after_s in (3.0, 60.0)]
        return [SegmentResult(task.ordinal, 0, 0, failure) for task, failure in zip(tasks, failures, strict=True)]

    _, run = carried_by(Carrying(busy, done, done))
    run.deliver_all()
    assert run.log.runtime.monotonic_s() == 60.0


def test_a_target_that_asks_for_a_longer_wait_than_the_budget_gets_one_more_attempt_at_its_end() -> None:
    def closed(_: Chunk) -> None:
        raise RetryLaterError("closed for the night", after_s=1e9)

    place, to = Place(), Clocked(closed)
    run = clocked(place, to, retry=Retry(budget_s=100))
    next(place.query().batches(run, 1))
    with pytest.raises(DeliveryError, match="closed for the night"):
        run.deliver_all()
    assert to.at_s == [0.0, 100.0]


@pytest.mark.parametrize("asked", [0, -5, float("nan"), float("-inf"), None, "5"])
def test_a_wish_that_is_no_time_to_wait_leaves_our_own_growing_pauses(asked: Any) -> None:
    def busy(_: Chunk) -> None:
        if to.tries <= 4:
            raise RetryLaterError("busy", after_s=asked)

    place, to = Place(), Clocked(busy)
    place.stream(clocked(place, to), 0)
    pauses = [later - earlier for earlier, later in pairwise(to.at_s)]
    assert [round(pause, 6) >= 0.05 * 4**number for number, pause in enumerate(pauses)] == [True] * 4

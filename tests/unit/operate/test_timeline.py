"""Where the time of a batch went: measured where the work was done, told without any further request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tests.house.log import Log, Marker, paths
from tests.house.operate import WalFacts, read_batch
from tests.house.protocol import Run
from tests.house.support import Runtime
from tests.support.small_run import Place, Recorder
from wal_sink import Chunk, Delivery, idempotent
from wal_sink.log.records import StagingTiming, TaskTiming, combined
from wal_sink.operate.batches import Timeline, timeline_of
from wal_sink.testing import simulated_runtime


def timeline(place: Place, batch_id: int) -> Timeline:
    detail = read_batch(WalFacts(place.wal), batch_id)
    assert detail is not None
    return detail.timeline


def taking(runtime: Runtime, *seconds: float) -> Callable[[Chunk], None]:
    """A sink of which each chunk takes so long."""
    following = iter(seconds)

    def fail(_chunk: Chunk) -> None:
        runtime.sleep_s(next(following))

    return Recorder(fail)


def run_of(place: Place, runtime: Runtime, **sinks: Any) -> Run:
    return place.open(sinks, runtime=runtime)


def test_each_stage_has_its_time_and_the_slowest_segment_is_named() -> None:
    place, runtime = Place(rows=lambda _: [1, 2]), simulated_runtime(seed=501)
    run = run_of(place, runtime, a=taking(runtime, 1.5, 4.0))
    for _ in place.query().batches(run, 1):
        runtime.sleep_s(20.0)  # before anybody looks
        run.deliver_all()
    found = timeline(place, 0)
    (sink,) = found.sinks
    assert (found.staging_s, found.release_s) == (0.0, 20.0)
    assert found.tasks is not None
    assert (found.tasks.tasks, found.tasks.slowest) == (2, TaskTiming(partition=0, seconds=0.0))
    assert (sink.queue_s, sink.checkpoint_s, sink.delivery_s, sink.retries, sink.marker_s) == (20.0, 0.0, 5.5, 0, 0.0)
    assert (sink.fetch_s, sink.send_s) == (0.0, 5.5)
    assert sink.slowest is not None
    assert (sink.slowest.ordinal, sink.slowest.send_seconds, sink.slowest.host) == (1, 4.0, "")


def test_a_batch_behind_others_waited_in_the_queue_and_one_before_its_turn_for_the_checkpoint() -> None:
    place, runtime = Place(), simulated_runtime(seed=502)
    run = run_of(place, runtime, a=taking(runtime, 3.0, 3.0, 3.0))
    query = place.query()
    list(query.batches(run, 2))
    run.deliver_all()
    assert timeline(place, 1).sinks[0].queue_s == 3.0
    query.start_batch(2, 2)
    query.stage(run, 2)
    run.deliver_all()  # it looks at the gate, which is closed
    runtime.sleep_s(7.0)
    query.complete_batch(2)
    run.deliver_all()
    (sink,) = timeline(place, 2).sinks
    assert (sink.queue_s, sink.checkpoint_s) == (0.0, 7.0)


def test_attempts_that_failed_are_retries_and_their_waits_belong_to_the_delivery() -> None:
    place, runtime = Place(), simulated_runtime(seed=503)
    answers = iter([OSError("no route"), OSError("no route"), None])

    def fail(_chunk: Chunk) -> None:
        if (error := next(answers)) is not None:
            raise error

    run = run_of(place, runtime, a=Recorder(fail))
    for _ in place.query().batches(run, 1):
        run.deliver_all()
    (sink,) = timeline(place, 0).sinks
    assert sink.retries == 2
    assert sink.delivery_s is not None
    assert sink.delivery_s > 0.1


@idempotent
def take(_chunk: Chunk) -> None:
    return


def test_batches_that_share_a_marker_each_have_their_times() -> None:
    place, runtime = Place(), simulated_runtime(seed=504)
    run = run_of(place, runtime, a=take)
    list(place.query().batches(run, 4))
    run.gate.search()
    run.deliver_all()
    assert len(place.wal.list(paths.markers("a"))) == 1
    for batch_id in range(4):
        (sink,) = timeline(place, batch_id).sinks
        assert sink.retries == 0
        assert sink.marked_at is not None
    marker = Log(place.wal, runtime, "").find(Marker, paths.marker("a", 3))
    assert marker is not None
    assert [timing.batch_id for timing in marker.timings] == [0, 1, 2, 3]


def test_a_batch_that_a_sink_lacks_has_no_times() -> None:
    place, runtime = Place(), simulated_runtime(seed=505)
    run = run_of(place, runtime, a=Delivery(Recorder(), start_from="earliest"))
    list(place.query().batches(run, 1))
    found = timeline(place, 0)
    assert (found.released_at, found.release_s) == (None, None)
    assert (found.sinks[0].queue_s, found.sinks[0].retries, found.sinks[0].marked_at) == (None, None, None)


def test_a_marker_of_a_later_batch_alone_says_nothing_of_an_earlier_one() -> None:
    marker = Marker(batch_id=5, term=1, run_id="r", rows=1, last_delivered_batch=-1, id="i", created="2026-01-01")
    assert timeline_of("a", "2026-01-01", marker, 4).marked_at is None
    assert timeline_of("a", "2026-01-01", marker, 5).marked_at == "2026-01-01"


def test_times_that_cannot_be_read_are_none() -> None:
    place, runtime = Place(), simulated_runtime(seed=506)
    run = run_of(place, runtime, a=Recorder())
    for _ in place.query().batches(run, 1):
        run.deliver_all()
    marker = Log(place.wal, runtime, "").find(Marker, paths.marker("a", 0))
    assert marker is not None
    found = timeline_of("a", "yesterday", msgspec.structs.replace(marker, created="tomorrow"), 0)
    assert (found.queue_s, found.checkpoint_s, found.marker_s) == (None, None, None)
    assert found.delivery_s == 0.0


def test_the_timing_of_tasks_together_names_the_slowest() -> None:
    tasks = [
        StagingTiming(tasks=1, task_seconds=seconds, slowest=TaskTiming(partition=number, seconds=seconds, host="h"))
        for number, seconds in enumerate([1.0, 9.0, 2.0])
    ]
    whole = StagingTiming(tasks=3, task_seconds=12.0, slowest=TaskTiming(partition=1, seconds=9.0, host="h"))
    assert combined([None, *tasks]) == whole
    assert combined([None]) is None
    assert combined([StagingTiming(tasks=0, task_seconds=0.0)]) == StagingTiming(tasks=0, task_seconds=0.0)


def test_a_batch_that_no_task_staged_still_tells_how_long_staging_took() -> None:
    place, runtime = Place(rows=lambda _: []), simulated_runtime(seed=508)
    run = run_of(place, runtime, a=Recorder())
    for _ in place.query().batches(run, 1):
        run.deliver_all()
    found = timeline(place, 0)
    assert found.staging_s == 0.0
    assert found.tasks is not None
    assert (found.tasks.tasks, found.tasks.slowest) == (0, None)

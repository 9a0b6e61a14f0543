"""Behaviours for which Flink tests its write-ahead and two-phase sinks, and seven of their holes, closed here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import wal_sink.protocol.collect
from tests.house.log import paths
from tests.house.protocol import CommitterThread, Run
from tests.house.sinks import Chunk
from tests.house.support import SYSTEM, Runtime
from tests.simulation.histories.lives import lower_retention
from tests.simulation.world import (
    CHUNK_ROWS,
    KINDS,
    World,
    crash_then_finish,
    deaths,
    dies,
    dies_at,
    effects,
    points_of,
)
from tests.support.small_run import Place, Recorder
from wal_sink.errors import DeliveryError, FencedError
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import simulated_runtime

IDEAL = ((20,), (20,), (20,))


def failing(times: int, error: Callable[[], object]) -> Callable[[Chunk], object]:
    """A function whose first calls fail: `error` raises, or returns an answer."""
    left = [times]

    def fail(_: Chunk) -> object:
        left[0] -= 1
        return error() if left[0] >= 0 else None

    return fail


def raises() -> object:
    raise ConnectionError("target down")


def delivered_rows(sink: Recorder) -> Counter[tuple[int, object]]:
    return Counter((chunk.batch_id, row) for chunk in sink.chunks for row in chunk.table.column("row").to_pylist())


# Behaviours.


@pytest.mark.parametrize("kind", KINDS)
def test_an_ideal_run_of_three_times_twenty_rows_arrives_in_order_each_once(kind: str) -> None:
    world = World(kind, batches=IDEAL)

    assert world.life().live()

    world.check_end(crashes=0)
    assert [row[1:] for row in world.rows] == [(batch, row) for batch in range(3) for row in range(20)]


def test_a_missed_notification_is_caught_up_by_the_next() -> None:
    """No notification comes for batch 0. Its entry is even gone when batch 1 is complete."""
    place, sink = Place(), Recorder()
    query = place.query()
    run = place.open({"a": sink})
    for _ in query.batches(run, 2):
        continue
    place.checkpoint.delete(["commits/0"])

    run.gate.search()
    run.deliver_all()

    assert sink.batches == [0, 1]


def test_notifications_out_of_order_deliver_in_order() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    for batch_id in range(3):
        query = place.query()
        query.start_batch(batch_id, batch_id)
        query.stage(run, batch_id)

    place.checkpoint.create("commits/2", b"v1\n{}")
    assert run.gate.is_open(2)
    run.deliver_all()

    assert sink.batches == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_whose_checkpoint_never_completed_are_discarded_on_restore(kind: str) -> None:
    """Flink's `recover-and-abort`: the batch runs again, and only its later attempt arrives."""
    world = World(kind)
    world.life(dies("before create", "commits/")).live()
    assert world.rows == []
    staged = world.staged_attempt(0)

    assert world.life().live()

    assert staged not in {tag for tag, _, _ in world.rows}
    world.check_end(crashes=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_between_completion_and_delivery_recovers_and_commits(kind: str) -> None:
    world = World(kind)
    world.life(dies("after create", "commits/")).live()
    staged = world.staged_attempt(0)

    run = world.life().open_run()
    run.deliver_all()

    assert {tag for tag, _, _ in world.rows} == {staged}
    assert world.facts.marked == {0}


@pytest.mark.parametrize("parts", [("ask", "term"), ("commit", "marker"), ("ask", "gate")], ids="-".join)
def test_a_committer_that_throws_loses_nothing(parts: tuple[str, str]) -> None:
    """Flink's `FailingCheckpointCommitter` throws while it looks up a committed checkpoint, or while it commits one."""
    start = {
        "term": "before read terms",
        "marker": "before create sinks/default/markers",
        "gate": "before read commits",
    }
    throwing = [number for number, name in enumerate(points_of(), 1) if name.startswith(start[parts[1]])]
    assert throwing

    for point in throwing:
        world = World()
        assert crash_then_finish(world, point) == 1
        world.check_end(crashes=1)


def test_no_transaction_times_out_however_long_the_log_lies() -> None:
    """A Kafka transaction that reaches its timeout loses its rows. A log does not."""
    world = World()
    world.life(dies("after create", "commits/")).live()
    run = world.life().open_run()
    run.log.runtime.sleep_s(365 * 24 * 3600)

    run.deliver_all()

    assert {row[1] for row in world.rows} == {0}


# The seven holes, closed.


@pytest.mark.parametrize("answer", [False, True, "ok", 0], ids=repr)
def test_hole_1_a_send_that_answers_false_stops_delivery_and_keeps_the_rows(answer: object) -> None:
    place = Place()
    sink = Recorder(failing(1, lambda: answer))
    run = place.open({"a": sink})
    batches = place.query().batches(run, 3)
    next(batches)

    with pytest.raises(DeliveryError, match=f"returned {answer!r}: expected None"):
        run.deliver_all()

    assert place.wal.list(paths.markers("a")) == []
    place.open({"a": sink}).deliver_all()
    assert sink.batches == [0]


@pytest.mark.parametrize("kind", [ConnectionError, TimeoutError, ValueError])
def test_hole_1_a_failed_send_is_never_overtaken_by_a_later_batch(kind: type[Exception]) -> None:
    def fail(chunk: Chunk) -> object:
        if chunk.batch_id == 0 and down:
            raise kind("no")
        return None

    down = [True]
    place, sink = Place(), Recorder(fail)
    run = place.open({"a": sink})
    for _ in place.query().batches(run, 3):
        with pytest.raises(DeliveryError, match="batch 0"):
            run.deliver_all()

    assert sink.batches == []
    assert place.wal.list(paths.markers("a")) == []
    assert len([name for name in place.wal.list("batches", recursive=True) if name.endswith(".parquet")]) == 3
    down.clear()
    run.deliver_all()
    assert sink.batches == [0, 1, 2]


@pytest.mark.parametrize("parallelism", [(1, 5, 2), (5, 1, 3), (4, 4, 1)])
def test_hole_2_pending_batches_survive_a_change_of_parallelism_in_order_each_once(
    parallelism: tuple[int, int, int],
) -> None:
    place, sink = Place(rows=lambda batch_id: [3] * parallelism[batch_id]), Recorder()
    for through in (1, 2, 3):  # one process for each batch; none of them delivers
        run = place.open({"a": sink})
        for _ in place.query().batches(run, through):
            continue

    place.open({"a": sink}).deliver_all()

    assert sink.batches == sorted(sink.batches)
    assert len(sink.keys) == len(set(sink.keys)) == sum(2 * count for count in parallelism)


def test_hole_2_a_batch_restaged_with_another_parallelism_is_delivered_as_one_attempt() -> None:
    counts = iter([[4], [1, 2, 1], [2, 2]])
    place, sink = Place(rows=lambda _: next(counts)), Recorder()
    runs = [place.open({"a": sink}) for _ in range(3)]
    for run in runs:
        query = place.query()
        query.start_batch(0, 0)
        query.stage(run, 0)
    place.checkpoint.create("commits/0", b"v1\n{}")

    runs[-1].deliver_all()

    assert [chunk.num_rows for chunk in sink.chunks] == [2, 2]
    assert len({chunk.segment_id for chunk in sink.chunks}) == 2


def test_hole_3_a_resubmitted_job_remembers_its_markers() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 2)
    resubmitted = Recorder()

    run = place.open({"a": resubmitted})
    run.deliver_all()
    place.stream(run, 3)

    assert resubmitted.batches == [3]


def test_hole_3_keys_are_the_same_after_a_resubmission() -> None:
    place = Place(rows=lambda _: [5])
    first = Recorder()
    run = place.open({"a": first})
    next(place.query().batches(run, 1))
    first.fail = lambda chunk: raises() if chunk.rows[0] == 4 else None
    with pytest.raises(DeliveryError):
        run.deliver_all()

    second = Recorder()
    place.open({"a": second}).deliver_all()

    assert first.keys + second.keys == [f"{first.chunks[0].segment_id}-{a}-{b}" for a, b in ((0, 2), (2, 4), (4, 5))]


def test_hole_4_a_partial_send_resumes_at_its_chunk() -> None:
    place = Place(rows=lambda _: [6, 5])
    sink = Recorder()
    sink.fail = lambda _: raises() if len(sink.chunks) == 4 else None
    run = place.open({"a": sink})
    next(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    sent = list(sink.keys)
    sink.fail = None

    place.open({"a": sink}).deliver_all()

    assert sink.keys[:4] == sent
    assert set(delivered_rows(sink).values()) <= {1, 2}
    assert len(sink.keys) == len(set(sink.keys)) == 6


def test_hole_4_a_crash_in_the_middle_of_a_send_repeats_at_most_the_chunk_in_flight() -> None:
    for world in deaths(World(batches=IDEAL)):
        assert world.life().live()
        repeated = len(world.rows) - 60
        assert 0 <= repeated <= CHUNK_ROWS


def test_hole_5_failures_are_retried_with_backoff_within_one_run() -> None:
    waits: list[float] = []
    place, sink = Place(), Recorder(failing(5, raises))
    run = place.open({"a": sink}, runtime=_noting(waits))
    next(place.query().batches(run, 1))

    run.deliver_all()

    assert sink.batches == [0]
    assert len(waits) == 5
    assert waits[-1] > waits[0]


def test_hole_5_failures_end_the_run_when_their_attempts_are_spent() -> None:
    place, sink = Place(), Recorder(lambda _: raises())
    run = place.open({"a": Delivery(sink, retry=Retry(attempts=4))})
    next(place.query().batches(run, 1))

    with pytest.raises(DeliveryError, match=r"delivery stopped after 4 attempts .* target down.* keeps the rows"):
        run.deliver_all()

    assert sink.tries == 4


def test_hole_5_failures_end_the_run_when_their_time_is_spent() -> None:
    waits: list[float] = []
    place, sink = Place(), Recorder(lambda _: raises())
    run = place.open({"a": Delivery(sink, retry=Retry(attempts=10_000, budget_s=100))}, runtime=_noting(waits))
    next(place.query().batches(run, 1))

    with pytest.raises(DeliveryError, match="delivery stopped after"):
        run.deliver_all()

    assert 100 - 30 <= sum(waits) <= 100 + 30


def _noting(waits: list[float]) -> Runtime:
    runtime = simulated_runtime()

    def sleep_s(seconds: float) -> None:
        waits.append(seconds)
        runtime.sleep_s(seconds)

    return replace(runtime, sleep_s=sleep_s)


def test_hole_6_sending_does_not_hold_the_staging_thread() -> None:
    """The sink blocks until three batches are staged and completed."""
    staged = threading.Event()

    def fail(_: Chunk) -> object:
        assert staged.wait(60)
        return None

    place, sink = Place(), Recorder(fail)
    run = place.open({"a": sink}, runtime=SYSTEM)
    with Committing(run) as thread:
        for _ in place.query().batches(run, 3):
            thread.wake()
        assert sink.chunks == []
        staged.set()

    assert sink.batches == [0, 1, 2]


def test_hole_6_a_sink_that_fails_shows_on_the_run_and_not_as_success() -> None:
    place, sink = Place(), Recorder(failing(1, lambda: False))
    run = place.open({"a": sink}, runtime=SYSTEM)
    with Committing(run) as thread:
        next(place.query().batches(run, 1))
        thread.wake()

    assert isinstance(thread.error, DeliveryError)


class Committing:
    def __init__(self, run: Run) -> None:
        self._thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)

    def __enter__(self) -> CommitterThread:
        self._thread.start()
        return self._thread

    def __exit__(self, *_: object) -> None:
        self._thread.finish()
        assert self._thread.join(60)


def test_hole_7_complete_batches_are_delivered_on_restore_without_a_new_one() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": Recorder(lambda _: raises())})
    for _ in place.query().batches(run, 3):
        continue

    place.open({"a": sink}).deliver_all()

    assert sink.batches == [0, 1, 2]


def test_hole_7_markers_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    place = Place()

    place.stream(place.open({"a": Recorder()}, settings=lower_retention(3)), 20)

    assert len(place.wal.list(paths.markers("a"))) == 3
    assert len(place.wal.list(paths.BATCHES)) == 3


# Guarantees that both sinks lack.


def test_a_superseded_job_manager_stops_sending() -> None:
    place, sink = Place(), Recorder()
    old = place.open({"a": sink})
    next(place.query().batches(old, 1))
    place.open({"a": sink})

    with pytest.raises(FencedError):
        old.deliver_all()

    assert sink.chunks == []


def test_a_failure_of_one_sink_repeats_nothing_to_another() -> None:
    place, good, bad = Place(), Recorder(), Recorder(lambda _: raises())
    run = place.open({"good": good, "bad": bad})
    for _ in place.query().batches(run, 2):
        with pytest.raises(DeliveryError):
            run.deliver_all()
    bad.fail = None

    place.open({"good": good, "bad": bad}).deliver_all()

    assert good.batches == [0, 1]
    assert bad.batches == [0, 1]


def histories() -> Iterator[int]:
    yield from effects(points_of("idempotent", batches=IDEAL))[::9]


def test_three_crashes_in_a_row_lose_nothing() -> None:
    for point in histories():
        world = World("idempotent", batches=IDEAL)
        crashes = crash_then_finish(world, point, 20, 30)
        world.check_end(crashes=crashes)
        assert crashes == 3


def test_a_process_that_dies_at_the_same_place_every_time_gets_no_further_and_loses_nothing() -> None:
    world = World(batches=((20,),))
    for _ in range(5):
        world.life(dies_at(40)).live()

    assert world.life().live()
    world.check_end(crashes=5)

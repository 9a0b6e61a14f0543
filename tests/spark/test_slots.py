"""Delivery slots: shared by all sinks of a run, at least one each, in turn, and never more than there are."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from tests.house.protocol import DispatcherLostError, SegmentTask
from tests.house.sinks import FailureKind
from tests.house.spark import ExecutorDispatcher, PickledSink, task_slots
from tests.house.stores import StoreSpec
from tests.support.one_segment import Stage
from wal_sink.settings import Delivery
from wal_sink.spark import delivery as executors
from wal_sink.spark.committers import concurrency
from wal_sink.support.limits import LENT_S, DeliverySlots

WAIT_S = 60


def go_on() -> bool:
    return False


def test_a_job_takes_what_is_free_and_at_most_what_it_wants() -> None:
    slots = DeliverySlots(lambda: 4)
    with slots.taken(3, should_stop=go_on) as first, slots.taken(3, should_stop=go_on) as second:
        assert (first, second) == (3, 1)
    with slots.taken(9, should_stop=go_on) as all_of_them:
        assert all_of_them == 4


def test_what_takes_seconds_gets_the_slots_of_staging_too() -> None:
    slots = DeliverySlots(lambda: 3, lambda: 4)
    with slots.taken(9, should_stop=go_on, work_s=4 * LENT_S) as quick:
        assert quick == 4
    with slots.taken(9, should_stop=go_on, work_s=4 * LENT_S + 0.1) as slow:
        assert slow == 3
    with slots.taken(2, should_stop=go_on, work_s=2 * LENT_S) as some:
        assert some == 2
    with slots.taken(9, should_stop=go_on) as unknown:
        assert unknown == 3


def test_slots_that_others_hold_are_not_lent_twice() -> None:
    slots = DeliverySlots(lambda: 3, lambda: 4)
    with slots.taken(3, should_stop=go_on), slots.taken(3, should_stop=go_on, work_s=LENT_S) as quick:
        assert quick == 1
        other = Waiting(slots, 1, [])
        assert not other.go.wait(0.05)
        assert other.granted is None
    other.end()


class Waiting(threading.Thread):
    """A job that wants slots while others hold them."""

    def __init__(self, slots: DeliverySlots, wanted: int, task: list[int]) -> None:
        super().__init__(daemon=True)
        self.slots, self.wanted, self.task = slots, wanted, task
        self.go = threading.Event()
        self.stopping = threading.Event()
        self.granted: int | None = None
        self.start()

    def run(self) -> None:
        with self.slots.taken(self.wanted, should_stop=self.stopping.is_set) as granted:
            self.granted = granted
            self.task.append(self.wanted)
            self.go.wait(WAIT_S)

    def end(self) -> None:
        self.go.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def test_a_caller_that_finds_no_free_slot_waits_its_turn() -> None:
    slots, task = DeliverySlots(lambda: 1), list[int]()
    waiting = []
    with slots.taken(1, should_stop=go_on):
        for wanted in (2, 3, 4):
            waiting.append(Waiting(slots, wanted, task))
            while len(slots._waiting) < len(waiting):
                threading.Event().wait(0.001)
    for thread in waiting:
        thread.end()
    assert task == [2, 3, 4]
    assert [thread.granted for thread in waiting] == [1, 1, 1]


def test_a_run_that_ends_waits_no_longer() -> None:
    slots = DeliverySlots(lambda: 1)
    with slots.taken(1, should_stop=go_on):
        thread = Waiting(slots, 1, [])
        thread.stopping.set()
        thread.end()
        assert thread.granted == 0
    with slots.taken(1, should_stop=go_on) as granted:
        assert granted == 1


# The dispatcher that takes them.


class Context:
    """A SparkContext that counts the tasks it is given; each job waits for `go`."""

    _jsc = object()

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.threads: list[int] = []
        self.rates: list[float | None] = []
        self.go = threading.Event()
        self.started = threading.Semaphore(0)

    def getConf(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        return {}

    def getLocalProperty(self, _: str) -> None:  # noqa: N802 - PySpark's name
        return

    def setLocalProperty(self, *_: str | None) -> None:  # noqa: N802 - PySpark's name
        return

    def parallelize(self, numbers: Iterable[int], slices: int) -> Any:
        assert len(list(numbers)) == slices
        self.tasks.append(slices)

        def collect() -> list[object]:
            self.started.release()
            self.go.wait(WAIT_S)
            return []

        def map_partitions(task: Any) -> Any:
            self.threads.append(task.threads)
            self.rates.append(task.delivery_context.rows_per_s)

            return SimpleNamespace(collect=collect)

        return SimpleNamespace(mapPartitions=map_partitions)


UNPACED = SimpleNamespace(sink="a", rows_per_s=None)
ORDERS: Any = [SegmentTask(number, SimpleNamespace(bytes=1), 0, maybe_sent=False) for number in range(5)]  # type: ignore[arg-type]


def dispatcher(
    context: Context,
    slots: DeliverySlots,
    *,
    stopped: bool = False,
    max_concurrency: int | None = None,
    threads_per_task: int = 1,
) -> ExecutorDispatcher:
    spark: Any = SimpleNamespace(sparkContext=context)
    return ExecutorDispatcher(
        spark,
        PickledSink(b""),
        StoreSpec("memory://x"),
        run_id="r",
        job_group="g",
        slots=slots,
        should_stop=lambda: stopped,
        max_concurrency=max_concurrency,
        threads_per_task=threads_per_task,
    )


def deliver(to: ExecutorDispatcher, given: Any = UNPACED) -> Any:
    manifest: Any = SimpleNamespace(batch_id=1)
    return to.deliver(given, manifest, ORDERS, confirm=False)


def test_the_slots_of_a_cluster_that_does_not_tell_are_not_known() -> None:
    def fail() -> None:
        raise Py4JError("no such method")

    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=fail))
    stopped: Any = SimpleNamespace(_jsc=None)
    assert (task_slots(context), task_slots(stopped)) == (None, None)


@pytest.mark.parametrize(
    ("slots", "threads", "most", "given"),
    [
        (5, 3, None, 1),  # a segment for each task
        (2, 2, None, 2),
        (2, 9, None, 3),  # the larger share has three
        (1, 4, 3, 3),
        (2, 3, 3, 1),  # never more than the sink permits
        (2, 3, 5, 2),
    ],
)
def test_the_threads_of_all_tasks_stay_within_what_the_sink_permits(
    slots: int, threads: int, most: int | None, given: int
) -> None:
    context = Context()
    context.go.set()
    deliver(dispatcher(context, DeliverySlots(lambda: slots), max_concurrency=most, threads_per_task=threads))
    assert context.threads == [given]


def test_every_thread_of_every_task_gets_its_part_of_the_rate() -> None:
    context = Context()
    context.go.set()
    deliver(dispatcher(context, DeliverySlots(lambda: 2), threads_per_task=3), replace(Stage().given, rows_per_s=60.0))
    # Five segments of equal size: shares of three and two, so five threads.
    assert context.rates == [12.0]


def test_what_the_last_batch_took_tells_whether_the_next_one_gets_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    context, now = Context(), [0.0]
    context.go.set()
    takes_s = iter([9.9, 5.1, 1.0])

    def after_each_job() -> float:
        if context.started.acquire(blocking=False):
            now[0] += next(takes_s)
        return now[0]

    monkeypatch.setattr(executors, "SYSTEM", SimpleNamespace(monotonic_s=after_each_job))
    to = dispatcher(context, DeliverySlots(lambda: 1, lambda: 2))
    for _ in range(3):
        deliver(to)
    assert context.tasks == [1, 2, 1]


def test_after_a_job_that_was_lost_staging_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    context.go.set()
    to = dispatcher(context, DeliverySlots(lambda: 1, lambda: 2))
    deliver(to)
    with monkeypatch.context() as patch:
        patch.setattr(executors, "is_running", lambda _: False)
        with pytest.raises(DispatcherLostError):
            deliver(to)
    deliver(to)
    deliver(to)
    assert context.tasks == [1, 1, 2]


def test_slots_come_back_after_an_error_too() -> None:
    slots = DeliverySlots(lambda: 1)
    with pytest.raises(ValueError, match="x"), slots.taken(1, should_stop=go_on):
        raise ValueError("x")
    with slots.taken(1, should_stop=go_on) as granted:
        assert granted == 1


def test_little_work_that_finds_slots_of_staging_free_overtakes_nobody() -> None:
    slots = DeliverySlots(lambda: 0, lambda: 1)
    first = Waiting(slots, 1, [])
    while not slots._waiting:
        threading.Event().wait(0.001)

    with slots.taken(1, should_stop=lambda: True, work_s=LENT_S) as granted:
        assert granted == 0

    first.stopping.set()
    first.end()
    assert first.granted == 0


def test_a_cluster_that_grows_lets_the_next_one_in() -> None:
    size = [1]
    slots = DeliverySlots(lambda: size[0])
    with slots.taken(1, should_stop=go_on):
        size[0] = 3
        with slots.taken(9, should_stop=go_on) as granted:
            assert granted == 2


def test_the_jobs_of_all_sinks_together_take_no_more_than_there_are() -> None:
    context, slots = Context(), DeliverySlots(lambda: 7)
    threads = [threading.Thread(target=deliver, args=[dispatcher(context, slots)], daemon=True) for _ in range(3)]
    with ExitStack() as ending:
        ending.callback(context.go.set)
        for thread in threads:
            thread.start()
        assert all(context.started.acquire(timeout=WAIT_S) for _ in range(2))
        assert not context.started.acquire(timeout=0.1)
        # The thread that takes five slots may give its tasks to Spark later than the thread that takes two.
        assert sorted(context.tasks) == [2, 5]
    for thread in threads:
        thread.join(WAIT_S)
    assert len(context.tasks) == 3


def test_a_run_that_ends_before_a_slot_is_free_starts_no_job() -> None:
    context = Context()
    results = deliver(dispatcher(context, DeliverySlots(lambda: 0), stopped=True))
    assert {result.failure.kind for result in results} == {FailureKind.STOPPED}
    assert context.tasks == []


def test_a_sink_may_be_given_fewer_than_there_are() -> None:
    context, slots = Context(), DeliverySlots(lambda: 7)
    context.go.set()
    deliver(dispatcher(context, slots, max_concurrency=2))
    deliver(dispatcher(context, slots, max_concurrency=50))
    assert context.tasks == [2, 5]


@pytest.mark.parametrize(
    ("of_sink", "of_user", "most"), [(None, None, None), (3, None, 3), (3, 2, 2), (3, 9, 3), (None, 9, 9)]
)
def test_a_user_can_only_lower_what_a_sink_permits(of_sink: int | None, of_user: int | None, most: int | None) -> None:
    sink: Any = SimpleNamespace(max_concurrency=of_sink)
    assert concurrency(sink, Delivery(None, max_concurrency=of_user)) == most

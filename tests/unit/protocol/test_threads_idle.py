"""The costs of waiting, by the hour. The thread waits on a condition whose time belongs to the test: nobody sleeps."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from tests.house.protocol import CommitterThread, Run
from tests.house.stores import Store
from tests.house.support import SYSTEM, Runtime
from tests.support.small_run import Place, Recorder, served_sink
from tests.support.waiting import PATIENCE_S, wait_until
from tests.unit.protocol.test_threads import ended, wait_idle
from wal_sink.protocol.committer_thread import LONGEST_FOLLOWING_POLL_S, LOOK_BACK_EVERY_POLLS, SEARCH_EVERY_POLLS
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FaultyStore

HOUR_S = 3600.0
_T = TypeVar("_T")


class Hours(threading.Condition):
    """A condition with its own time: a wait of some seconds is over at once, until as many hours have passed.

    A wait without an end lasts until it is notified: an hour that passes meanwhile changes nothing for it.
    """

    def __init__(self, hours: float = 1.0) -> None:
        super().__init__()
        self.now_s = 0.0
        self.over = threading.Event()
        self.endless = threading.Event()
        self.each_poll: Callable[[], None] = lambda: None
        self._end_s = hours * HOUR_S

    def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
        if timeout is None:
            self.endless.set()
        elif self.now_s < self._end_s and not predicate():
            self.now_s += timeout
            self.each_poll()
            return predicate()
        if not predicate():
            self.over.set()
        return super().wait_for(predicate, PATIENCE_S)


@dataclass
class Waiting:
    """A drain, or a query's own committer, over a WAL and a checkpoint that note every request."""

    place: Place = field(default_factory=Place)
    sink: Recorder = field(default_factory=Recorder)
    hours: Hours = field(default_factory=Hours)
    asked: list[str] = field(default_factory=list)
    """Of the checkpoint."""

    def run(self) -> Run:
        run = Run(
            FaultyStore(self.place.wal, self.place._note),
            self._noting(),
            Settings(chunk_rows=2),
            runtime=self.runtime(),
        )
        run.open([served_sink(run, "a", Delivery(self.sink, start_from="earliest"))])
        return run

    def thread(self, run: Run) -> CommitterThread:
        return CommitterThread(run, run.committers[0], on_failure=lambda _: None, changed=self.hours)

    def runtime(self) -> Runtime:
        return replace(SYSTEM, monotonic_s=lambda: self.hours.now_s)

    def forget(self) -> None:
        self.asked.clear()
        self.place.requests.clear()

    def _noting(self) -> Store:
        def note(what: str, where: str) -> None:
            if what.startswith("before"):
                self.asked.append(f"{what.removeprefix('before ')} {where}")

        return FaultyStore(self.place.checkpoint, note)


def test_for_an_hour_the_committer_of_an_idle_query_asks_nobody_for_anything() -> None:
    """All it does is wait without an end: there is no later moment at which it would ask."""
    here = Waiting()
    run = here.run()
    run.become_stager()
    thread = here.thread(run)
    thread.start()
    for batch_id in range(3):
        query = here.place.query()
        query.start_batch(batch_id, batch_id)
        query.stage(run, batch_id)
        query.complete_batch(batch_id)
        thread.wake()
        wait_until(lambda: len(here.sink.batches) == batch_id + 1)  # noqa: B023 - it is called at once
    here.hours.endless.clear()
    thread.wake()  # it looks once more, and then waits
    assert here.hours.endless.wait(PATIENCE_S)
    wait_idle(thread)
    assert here.sink.batches == [0, 1, 2]
    here.forget()

    here.hours.now_s += HOUR_S  # nothing is due by then
    with here.hours:
        here.hours.notify_all()  # and who looks at the clock goes back to wait

    assert not thread.join(0.05)
    assert (here.asked, here.place.requests) == ([], [])
    ended(thread)


def waited_with_everything_delivered(here: Waiting) -> CommitterThread:
    """A drain that has delivered batch 2, the last one, and then followed the checkpoint for all of `here.hours`."""
    here.place.stream(here.place.open({"a": Recorder()}), 2)
    run = here.run()
    run.deliver_all()
    here.forget()
    thread = here.thread(run)
    thread.follow()
    assert here.hours.over.wait(PATIENCE_S)
    return thread


def test_for_an_hour_a_drain_that_has_everything_reads_one_small_object_a_poll() -> None:
    here = Waiting()
    thread = waited_with_everything_delivered(here)

    polls = len(here.asked)
    assert polls == pytest.approx(HOUR_S / LONGEST_FOLLOWING_POLL_S, abs=12)
    look_back = [n for n, name in enumerate(here.asked) if name == "read commits/2"]
    assert here.asked.count("read commits/3") + len(look_back) == polls
    assert look_back == list(range(LOOK_BACK_EVERY_POLLS - 1, polls, LOOK_BACK_EVERY_POLLS))
    assert here.place.requests == []
    thread.end_following()
    ended(thread)


def test_for_an_hour_a_drain_of_a_wal_that_is_not_there_yet_reads_its_owner_alone() -> None:
    here = Waiting()
    thread = here.thread(here.run())
    here.forget()
    thread.follow()
    assert here.hours.over.wait(PATIENCE_S)

    assert here.asked == []
    assert set(here.place.requests) == {"read wal.json"}
    assert len(here.place.requests) == pytest.approx(HOUR_S / LONGEST_FOLLOWING_POLL_S, abs=12)
    thread.end_following()
    ended(thread)


class SparkThatForgets:
    """A query that keeps few entries of its checkpoint, and runs some batches between two polls of a drain."""

    def __init__(self, here: Waiting, retained: int) -> None:
        self.place = here.place
        self.query = here.place.query()
        self.run = here.place.open({})
        self.retained = retained
        self.completed = -1

    def go_on(self, batches: int) -> None:
        for batch_id in self.query.batches(self.run, self.completed + 1 + batches):
            self.completed = batch_id
            for folder in ("offsets", "commits"):
                old = [name for name in self.place.checkpoint.list(folder) if int(name) < batch_id - self.retained]
                self.place.checkpoint.delete(f"{folder}/{name}" for name in old)


@pytest.mark.parametrize(("retained", "seed"), [*itertools.product([1, 2, 5], range(2)), (100, 0)])
def test_however_fast_spark_forgets_a_drain_has_what_is_complete_a_few_polls_later(retained: int, seed: int) -> None:
    here, chance = Waiting(), random.Random(seed)
    spark = SparkThatForgets(here, retained)
    spark.go_on(1)
    quiet = 0
    late: list[int] = []

    def between_two_polls() -> None:
        nonlocal quiet
        quiet += 1
        has = len(here.sink.batches) - 1
        if quiet > LOOK_BACK_EVERY_POLLS and has < spark.completed:
            late.append(spark.completed)
        if chance.random() < 0.1 and spark.completed < retained + 30:
            spark.go_on(chance.randint(1, 8))
            quiet = 0

    here.hours.each_poll = between_two_polls
    thread = here.thread(here.run())
    thread.follow()
    assert here.hours.over.wait(4 * PATIENCE_S)

    assert spark.completed >= retained + 30
    assert here.sink.batches == list(range(spark.completed + 1))
    assert not late
    thread.end_following()
    ended(thread)


def test_a_batch_is_found_by_search_if_spark_died_while_it_deleted_older_entries() -> None:
    """The entry before the one that is waited for was left, so that it seems that Spark has not come that far."""
    here = Waiting(hours=Hours(2))
    spark = SparkThatForgets(here, 100)
    spark.go_on(3)
    run = here.run()
    run.deliver_all()
    spark.go_on(5)
    here.place.checkpoint.delete(["commits/3", "commits/4"])
    here.forget()
    thread = here.thread(run)
    thread.follow()
    assert here.hours.over.wait(PATIENCE_S)

    assert here.asked.index("list commits") == SEARCH_EVERY_POLLS - 1
    assert here.sink.batches == list(range(8))
    thread.end_following()
    ended(thread)

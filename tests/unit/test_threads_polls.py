"""How often a committer's thread asks whether its batch is complete, and how often it looks for later ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import pytest

from tests.simulation.small_run import Place, Recorder
from wal_sink.runtime import SYSTEM
from wal_sink.threads import FIRST_POLL_S, LONGEST_POLL_S, SHORTEST_POLL_S, CommitterThread


def waiting(*, follow: bool = False, pending: bool = False, bound: bool = True) -> CommitterThread:
    """A thread that was not started."""
    place = Place()
    run = place.open({"a": Recorder()}, runtime=SYSTEM)
    if bound:
        place.stream(run, 0)
    if pending:
        query = place.query()
        query.start_batch(1, 1)
        query.stage(run, 1)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    thread._follow = follow
    return thread


def polls_of(thread: CommitterThread, count: int) -> list[float | None]:
    polls = []
    for number in range(count):
        thread._polls = number
        polls.append(thread._poll_s())
    return polls


def test_waiting_for_a_batch_of_its_own_it_asks_ever_less_often_up_to_each_second() -> None:
    waits = polls_of(waiting(pending=True), 9)
    assert waits[1:] == [FIRST_POLL_S * growth for growth in (0.5, 1, 2, 4, 8, 16, 32)] + [1.0]


def test_the_first_question_comes_when_the_last_batches_were_complete() -> None:
    thread = waiting(pending=True)
    thread._staged_s = thread._now_s()
    assert not thread._may_be_complete()
    assert 0.5 * FIRST_POLL_S < polls_of(thread, 1)[0] <= FIRST_POLL_S  # type: ignore[operator]
    thread._staged_s -= FIRST_POLL_S
    assert thread._may_be_complete()
    assert polls_of(thread, 1) == [SHORTEST_POLL_S]


def test_it_learns_how_long_spark_takes_to_complete_a_batch() -> None:
    thread = waiting(pending=True)
    takes_s, questions = 0.2, []
    for _ in range(50):
        asked_s, polls = thread._completion_s, 1
        while asked_s < takes_s:
            thread._polls = polls
            asked_s += thread._poll_s() or 0.0
            polls += 1
        thread._staged_s, thread._polls = 0.0, polls
        thread._learn(asked_s)
        questions.append(polls)
    assert questions[0] > 3
    assert max(questions[1:]) == 2
    assert takes_s * 0.75 < thread._completion_s < takes_s * 1.5


@pytest.mark.parametrize(("first_s", "found_s", "polls"), [(SHORTEST_POLL_S, SHORTEST_POLL_S, 1), (0.9, 60.0, 5)])
def test_what_it_learns_stays_within_bounds(first_s: float, found_s: float, polls: int) -> None:
    thread = waiting(pending=True)
    thread._completion_s, thread._polls, thread._staged_s = first_s, polls, 0.0
    thread._learn(found_s)
    assert thread._completion_s in (SHORTEST_POLL_S, LONGEST_POLL_S)


def test_what_was_staged_long_ago_is_asked_for_at_once() -> None:
    place = Place()
    run = place.open({"a": Recorder()}, runtime=SYSTEM)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    assert not thread._may_be_complete()
    next(place.query().batches(run, 1))
    assert thread._may_be_complete()


def test_reading_the_checkpoint_takes_four_requests_a_batch_on_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging's own, and those of waiting for Spark, which takes its time."""
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    query = place.query()
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    asked: list[str] = []
    for name in ("read", "list"):
        request = getattr(place.checkpoint, name)
        monkeypatch.setattr(place.checkpoint, name, partial(_counted, asked, request))
    counts = []
    thread.start()
    for batch_id in range(15):
        query.start_batch(batch_id, batch_id)
        asked.clear()
        query.stage(run, batch_id)
        thread.wake()
        time.sleep(0.05)
        query.complete_batch(batch_id)
        while len(sink.batches) <= batch_id:
            time.sleep(0.001)
        counts.append(len(asked))
    thread.finish()
    assert thread.join(10)
    assert median(counts) <= 4, (counts, asked)


def _counted(asked: list[str], request: Callable[..., Any], path: str, **more: Any) -> Any:
    asked.append(path)
    return request(path, **more)


def test_following_it_asks_ever_less_often_up_to_every_five_seconds() -> None:
    assert polls_of(waiting(follow=True), 11)[6:] == [0.64, 1.28, 2.56, 5.0, 5.0]


def test_waiting_for_nothing_it_does_not_ask() -> None:
    assert polls_of(waiting(), 3) == [None, None, None]


@pytest.mark.parametrize(
    ("follow", "bound", "searches"),
    [(False, True, [7, 15]), (True, True, [7, 15]), (False, False, [7, 15]), (True, False, list(range(16)))],
)
def test_every_eighth_time_it_looks_for_later_entries_and_each_time_while_it_follows_a_wal_without_batches(
    follow: bool, bound: bool, searches: list[int]
) -> None:
    thread = waiting(follow=follow, bound=bound)
    found = []
    for number in range(16):
        thread._polls = number
        if thread._is_time_to_search():
            found.append(number)

    assert found == searches


def test_every_wait_is_counted() -> None:
    thread = waiting(follow=True)

    assert thread._wait(0)
    assert thread._wait(0)

    assert thread._polls == 2

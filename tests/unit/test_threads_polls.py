"""How often a committer's thread asks whether its batch is complete, and how often it looks for later ones."""

from __future__ import annotations

import pytest

from tests.simulation.small_run import Place, Recorder
from wal_sink.runtime import SYSTEM
from wal_sink.threads import CommitterThread


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
    assert polls_of(waiting(pending=True), 9) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


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

"""How often a committer's thread asks whether its batch is complete, and how often it looks for later ones."""

from __future__ import annotations

import threading

import pytest

from tests.house.protocol import CommitterThread, Run
from tests.house.support import SYSTEM
from tests.support.small_run import Place, Recorder
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import StoreError
from wal_sink.protocol.committer_thread import FIRST_POLL_S
from wal_sink.testing import FakeQuery


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


def test_a_thread_that_waits_for_a_batch_of_this_run_asks_ever_less_often_up_to_each_second() -> None:
    assert polls_of(waiting(pending=True), 9) == [0.03, 0.06, 0.12, 0.24, 0.48, 0.96, 1.0, 1.0, 1.0]


def test_a_thread_that_follows_asks_ever_less_often_up_to_every_five_seconds() -> None:
    assert polls_of(waiting(follow=True), 11)[5:10] == [0.96, 1.92, 3.84, 5.0, 5.0]


def test_a_thread_that_waits_for_nothing_does_not_ask() -> None:
    assert polls_of(waiting(), 3) == [None, None, None]
    assert polls_of(waiting(bound=False), 1) == [None]
    assert waiting().summary == "sink 'a' got no batch", "an earlier run delivered the one that is marked"


def test_a_thread_that_was_woken_asks_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = waiting(pending=True)
    thread._polls = 5
    monkeypatch.setattr(thread, "_rouse", lambda: None)

    thread.wake()

    assert thread._poll_s() == 0.03
    thread.end_following()
    assert (thread._follow, thread._woken) == (False, True)


def test_a_thread_that_delivered_a_batch_asks_soon_for_the_next() -> None:
    thread = waiting(follow=True, pending=True)
    thread._polls = 5
    FakeQuery(thread._run.checkpoint._files, lambda *_: []).complete_batch(1)  # type: ignore[arg-type]

    assert thread._look(search=False)

    assert thread._poll_s() == 0.03


def test_a_call_that_wakes_it_ends_a_pause() -> None:
    thread = waiting(pending=True)
    thread._staged_s = thread._now_s() + PATIENCE_S
    ended = threading.Event()

    def pausing() -> None:
        thread._listen()
        thread._pauses()
        ended.set()

    threading.Thread(target=pausing, daemon=True).start()
    while not ended.wait(0.01):  # it may not have begun to pause
        assert thread._now_s() < thread._staged_s, "it paused to the end"
        thread.leave()


def searching(thread: CommitterThread, polls: range) -> list[int]:
    found = []
    for number in polls:
        thread._polls = number
        if thread._find_out_whether_to_search():
            found.append(number)
    return found


@pytest.mark.parametrize("follow", [False, True])
def test_a_thread_searches_only_if_the_entry_before_is_gone_too_which_every_eighth_poll_reads(follow: bool) -> None:
    thread = waiting(follow=follow)
    assert searching(thread, range(16)) == []

    thread._run.gate._checkpoint._files.delete(["commits/0"])  # type: ignore[attr-defined]

    assert searching(thread, range(16)) == [7, 15]


def test_a_thread_searches_now_and_then_whatever_the_entry_before_says() -> None:
    """Spark may have died while it deleted."""
    assert searching(waiting(follow=True), range(2048)) == [1023, 2047]


def test_a_thread_that_waits_for_batch_0_searches_every_eighth_time() -> None:
    thread = waiting(follow=True)
    thread._committer._marker = None
    assert searching(thread, range(16)) == [7, 15]


def test_a_thread_that_follows_a_wal_without_batches_asks_for_its_owner_alone() -> None:
    thread = waiting(follow=True, bound=False)
    assert searching(thread, range(16)) == []
    assert all(thread._is_read_spent() for thread._polls in range(16))

    other = Run(thread._run.log.store, thread._run.checkpoint._files, thread._run.settings)
    other.open()
    other.become_stager()
    next(FakeQuery(thread._run.checkpoint._files, lambda *_: []).batches(other, 1))  # type: ignore[arg-type]

    assert searching(thread, range(3)) == [0]


@pytest.mark.parametrize("follow", [False, True])
def test_a_store_that_fails_leaves_it_to_the_search_which_repeats_it(
    follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = waiting(follow=follow)

    def fails(_: int) -> bool:
        raise StoreError("unreachable")

    monkeypatch.setattr(thread._run.gate, "may_have_passed", fails)
    assert searching(thread, range(16)) == [7, 15]


def test_only_who_follows_another_process_leaves_it_at_one_read_a_poll() -> None:
    """A run's own batch is urgent: its thread may search at each poll."""
    for follow in (False, True):
        thread = waiting(follow=follow, pending=not follow)
        assert [n for n in range(16) if _at(thread, n)._is_read_spent()] == ([7, 15] if follow else [])


def _at(thread: CommitterThread, polls: int) -> CommitterThread:
    thread._polls = polls
    return thread


def test_a_batch_that_was_staged_just_now_is_not_asked_for_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = waiting(pending=True)
    now_s = thread._now_s()
    monkeypatch.setattr(thread, "_now_s", lambda: now_s)  # a slow machine would let the moment pass
    thread._staged_s = thread._now_s()
    assert thread._pauses()

    thread._staged_s = thread._now_s() - FIRST_POLL_S
    assert not thread._pauses()

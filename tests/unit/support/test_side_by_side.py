"""Several calls at once: results in order, the first error, and no more threads than allowed."""

from __future__ import annotations

import threading
import time

import pytest

from tests.house.support import side_by_side
from tests.support.waiting import wait_until
from wal_sink.support import calls as module
from wal_sink.support.calls import MOST, in_turn

WAIT_S = 60


def test_the_results_come_in_the_order_of_the_items() -> None:
    for run in [in_turn, side_by_side]:
        for count in [0, 1, 2, 100]:
            assert list(run(lambda number: -number, iter(range(count)))) == [-number for number in range(count)]


def test_as_many_calls_as_allowed_run_at_once_and_no_more() -> None:
    running, seen = threading.Semaphore(MOST), list[threading.Thread]()
    all_here = threading.Barrier(MOST)

    def call(number: int) -> int:
        assert running.acquire(blocking=False), "too many calls at once"
        seen.append(threading.current_thread())
        if number < MOST:
            all_here.wait(WAIT_S)
        running.release()
        return number

    assert side_by_side(call, range(3 * MOST)) == list(range(3 * MOST))
    assert len(set(seen)) == MOST
    assert threading.current_thread() in seen
    assert all(thread.daemon for thread in seen if thread is not threading.current_thread())


def test_a_single_call_needs_no_thread() -> None:
    assert side_by_side(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]


def test_the_error_of_the_first_item_that_has_one_is_raised_and_the_rest_is_left_out() -> None:
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        if number >= 3:
            failed.wait(WAIT_S)  # so that number 3 fails while the others run
            raise LookupError(number)
        time.sleep(0.05)
        failed.set()

    failed = threading.Event()
    with pytest.raises(LookupError, match=r"^3$"):
        side_by_side(call, range(10_000))
    assert len(called) <= 3 + MOST


def test_without_another_thread_the_caller_makes_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def fail_at_the_third(thread: threading.Thread) -> None:
        if thread.name != "wal-sink-beside":  # of something that an earlier test left
            start(thread)
            return
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_the_third)
    assert side_by_side(lambda number: -number, range(50)) == [-number for number in range(50)]
    assert len(started) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_on_the_callers_thread_precedes_every_error(error: type[BaseException]) -> None:
    """Otherwise the error of a store hides the Ctrl-C, and the caller tries again."""
    both_here, failing = threading.Barrier(2), threading.Event()

    def call(number: int) -> None:
        both_here.wait(WAIT_S)
        if threading.current_thread() is threading.main_thread():
            failing.wait(WAIT_S)
            raise error
        failing.set()
        raise LookupError(number)

    for _ in range(20):  # in most of them, the first item belongs to the other thread
        failing.clear()
        with pytest.raises(error):
            side_by_side(call, range(2))


def test_an_exit_waits_for_calls_that_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERRUPTED_S", WAIT_S)
    ended: list[int] = []
    all_here = threading.Barrier(3)

    def call(number: int) -> None:
        all_here.wait(WAIT_S)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.2)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, range(3))
    assert len(ended) == 2


def test_an_exit_between_two_calls_leaves_the_rest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    helpers: set[threading.Thread] = set()
    shared: list[module._Calls[int, None]] = []
    taken = module._Calls._take

    def take(calls: module._Calls[int, None]) -> int | None:
        shared.append(calls)
        if threading.current_thread() is threading.main_thread() and called:
            raise KeyboardInterrupt
        return taken(calls)

    def call(number: int) -> None:
        called.append(number)
        if threading.current_thread() is not threading.main_thread():
            helpers.add(threading.current_thread())
            wait_until(lambda: shared[0]._next == shared[0].count)  # the caller has left

    monkeypatch.setattr(module, "INTERRUPTED_S", WAIT_S)
    monkeypatch.setattr(module._Calls, "_take", take)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, range(1000))
    before = len(called)
    for helper in helpers:
        helper.join(WAIT_S)
    assert len(called) == before <= MOST

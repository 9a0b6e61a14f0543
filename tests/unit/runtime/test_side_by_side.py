"""Several calls at once: results in order, the first error, and no more threads than allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import pytest

from wal_sink.runtime.side_by_side import MOST, in_turn, side_by_side

WAIT_S = 10


@pytest.mark.parametrize("run", [in_turn, side_by_side])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_the_results_come_in_the_order_of_the_items(
    run: Callable[[Callable[[int], int], Iterable[int]], Sequence[int]], count: int
) -> None:
    assert list(run(lambda number: -number, iter(range(count)))) == [-number for number in range(count)]


def test_as_many_calls_as_allowed_run_at_once_and_no_more() -> None:
    running, seen = threading.Semaphore(MOST), []
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
    assert threading.current_thread() not in seen


def test_a_single_call_needs_no_thread() -> None:
    assert side_by_side(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]


def test_the_error_of_the_first_item_that_has_one_is_raised_and_the_rest_is_left_out() -> None:
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        if number >= 3:
            raise LookupError(number)

    with pytest.raises(LookupError, match="3"):
        side_by_side(call, range(10_000))
    assert len(called) < 10_000

"""Budgets count from the last progress; waits grow, differ and are capped."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from tests.support.logged import said_here
from wal_sink.protocol.retry import FIRST_WAIT_S, LONGEST_WAIT_S, WAIT_GROWTH, AttemptFailedError, Budget
from wal_sink.settings import Retry
from wal_sink.testing import simulated_runtime


class Failing:
    """Fails so many times, then answers; may take time or make progress on the way."""

    def __init__(self, times: int, each: object = None) -> None:
        self.calls, self.times, self.each = 0, times, each

    def __call__(self) -> str:
        self.calls += 1
        if callable(self.each):
            self.each()
        if self.calls <= self.times:
            raise OSError(f"failure {self.calls}")
        return "done"


def budget(*, seed: int = 0, **retry: Any) -> tuple[Budget, list[float]]:
    runtime = simulated_runtime(seed)
    return Budget.of(Retry(**retry), runtime), []


def run(given: Budget, function: Failing, waits: list[float]) -> str:
    def sleep(seconds: float) -> None:
        waits.append(seconds)
        given.runtime.sleep_s(seconds)

    answer: str = given.call(function, OSError, sleep=sleep, what="test")
    return answer


class Rows:
    """Rows that an attempt holds in its frame. The traceback of its failure refers to that frame."""


def test_objects_that_an_attempt_held_are_released_before_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")  # pytest would keep the errors of which it is told
    given, waits = budget()
    attempts: list[weakref.ref[Rows]] = []
    left: list[int] = []

    def attempt() -> None:
        left.append(sum(earlier() is not None for earlier in attempts))
        rows = Rows()
        attempts.append(weakref.ref(rows))
        if len(attempts) < 4:
            raise OSError("failed")

    gc.disable()
    try:
        given.call(attempt, OSError, sleep=waits.append, what="test")
        left.append(sum(earlier() is not None for earlier in attempts))
    finally:
        gc.enable()

    assert left == [0] * 5


def test_gives_up_after_the_last_attempt_with_the_last_error() -> None:
    given, waits = budget(attempts=3)
    failing = Failing(99)

    with pytest.raises(OSError, match="failure 3"):
        run(given, failing, waits)

    assert failing.calls == 3
    assert len(waits) == 2


@pytest.mark.parametrize("seed", range(3))
def test_the_default_budget_outlasts_a_server_that_restarts(seed: int) -> None:
    given, _ = budget(seed=seed)
    back_s = given.runtime.monotonic_s() + 40

    def ask() -> str:
        if given.runtime.monotonic_s() < back_s:
            raise OSError("connection refused")
        return "done"

    assert given.call(ask, OSError, sleep=given.runtime.sleep_s, what="test") == "done"


def test_attempts_end_when_their_time_is_spent() -> None:
    given, waits = budget(attempts=10_000, budget_s=60)
    failing = Failing(10_000)

    with pytest.raises(OSError, match="failure"):
        run(given, failing, waits)

    assert 60 <= given.spent_s() <= 60 + LONGEST_WAIT_S


def test_time_spent_in_attempts_counts() -> None:
    given, waits = budget(attempts=10_000, budget_s=60)

    with pytest.raises(OSError, match="failure 2"):
        run(given, Failing(99, lambda: given.runtime.sleep_s(40)), waits)


def test_progress_renews_attempts_and_time() -> None:
    given, waits = budget(attempts=3, budget_s=60)

    def slow_progress() -> None:
        given.runtime.sleep_s(50)
        given.note_progress()

    assert run(given, Failing(40, slow_progress), waits) == "done"


def test_other_errors_pass_at_once() -> None:
    given, waits = budget()

    def fail() -> None:
        raise KeyError("not mine")

    with pytest.raises(KeyError):
        given.call(fail, OSError, sleep=waits.append, what="test")
    assert waits == []


def test_the_first_wait_is_the_shortest_and_waits_grow_up_to_the_longest() -> None:
    given, waits = budget(attempts=14, budget_s=1e9)

    run(given, Failing(13), waits)

    for number, wait in enumerate(waits):
        highest = min(LONGEST_WAIT_S, FIRST_WAIT_S * WAIT_GROWTH**number)
        assert highest / 2 <= wait <= highest, f"wait {number}"
    assert waits[-1] >= LONGEST_WAIT_S / 2


def test_the_wait_is_the_first_again_after_progress() -> None:
    given, waits = budget(attempts=20, budget_s=1e9)
    failing = Failing(7)
    failing.each = lambda: given.note_progress() if failing.calls == 6 else None

    run(given, failing, waits)

    assert waits[4] > FIRST_WAIT_S
    assert waits[5] <= FIRST_WAIT_S


def test_two_committers_that_fail_together_do_not_come_back_together() -> None:
    rows = []
    for seed in range(2):
        given, waits = budget(seed=seed)
        run(given, Failing(5), waits)
        rows.append(waits)

    assert [one != other for one, other in zip(*rows, strict=True)] == [True] * 5


@pytest.mark.parametrize(("asked_s", "waited_s"), [(5, 5), (1000, 10)])
def test_a_target_may_ask_for_a_wait_but_for_no_longer_than_the_budget_lasts(asked_s: float, waited_s: float) -> None:
    given, waits = budget(budget_s=60)
    failures = [AttemptFailedError("busy", retry_after_s=asked_s)]

    def ask() -> str:
        if failures:
            given.runtime.sleep_s(50)
            raise failures.pop()
        return "done"

    assert given.call(ask, AttemptFailedError, sleep=waits.append, what="test") == "done"
    assert waits == [waited_s]


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 0.05), (0.5, 0.075), (1.0, 0.1)])
def test_a_wait_lies_between_the_half_and_the_whole_of_its_step(chance: float, wait_s: float) -> None:
    class Chance(Random):
        def random(self) -> float:
            return chance

    runtime = replace(simulated_runtime(), new_random=Chance)
    waits: list[float] = []

    Budget.of(Retry(), runtime).call(Failing(1), OSError, sleep=waits.append, what="test")

    assert waits == [pytest.approx(wait_s)]


def test_a_failed_attempt_tells_when_it_failed_and_when_the_next_of_how_many_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = replace(simulated_runtime(), now=lambda: datetime(2026, 11, 23, 12, 3, 0, tzinfo=UTC))
    given = Budget.of(Retry(attempts=3), runtime)
    failures = [AttemptFailedError("busy", retry_after_s=4), AttemptFailedError("gone"), AttemptFailedError("gone")]

    def ask() -> None:
        raise failures.pop(0)

    with pytest.raises(AttemptFailedError):
        given.call(ask, AttemptFailedError, sleep=lambda _: None, what="batch 7, sink 'a'")

    assert vars(AttemptFailedError("gone")) == {"retry_after_s": 0.0, "kind": "retriable"}
    first, _, last = said_here(caplog)
    assert first == "batch 7, sink 'a': attempt 1 of 3 failed at 12:03:00Z, next in 4.0 s at 12:03:04Z: busy"
    assert last == "batch 7, sink 'a': attempt 3 of 3 failed at 12:03:00Z, no further attempt follows: gone"

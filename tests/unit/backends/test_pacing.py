"""Rate, breaker and `Retry-After`, on a clock of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.house.support import Runtime
from wal_sink.errors import ConfigError, PermanentError
from wal_sink_backends.common.pacing import (
    Breaker,
    NotNowError,
    Pace,
    Pacing,
    Patience,
    TokenBucket,
    pace_of,
    retry_after_s,
)

NOW = datetime(2026, 10, 21, 7, 28, 0, tzinfo=UTC)


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []
        self.runtime = Runtime(monotonic_s=lambda: self.now_s, sleep_s=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


# The rate.


def test_rows_of_one_second_go_at_once(clock: Clock) -> None:
    bucket = TokenBucket(10, clock.runtime)
    assert [bucket.take(5), bucket.take(5)] == [0.0, 0.0]
    assert bucket.take(5) == pytest.approx(0.5)


def test_a_pause_saves_up_no_more_than_a_second(clock: Clock) -> None:
    bucket = TokenBucket(10, clock.runtime)
    clock.sleep(3600)
    bucket.take(10)
    assert bucket.take(1) == pytest.approx(0.1)


def test_a_large_chunk_goes_whole_and_the_next_one_waits_for_it(clock: Clock) -> None:
    bucket = TokenBucket(10, clock.runtime)
    assert bucket.take(100) == 0.0
    assert bucket.take(100) == pytest.approx(10.0)


@pytest.mark.parametrize("rate", [0.2, 1, 7, 1000])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_the_average_is_the_rate(clock: Clock, rate: float, rows: int) -> None:
    pace = Pace("api", Pacing(rows_per_s=rate, max_wait_s=1e6), clock.runtime)
    started_s = clock.now_s
    for _ in range(100):
        pace.admit(rows, Patience(1e6, clock.runtime))
    seconds = clock.now_s - started_s
    assert 99 * rows / rate <= seconds + max(rate, 1, rows) / rate
    assert seconds <= 100 * rows / rate


def test_without_a_rate_nobody_waits(clock: Clock) -> None:
    pace = Pace("api", Pacing(), clock.runtime)
    pace.check_chunk(10**9, "chunk")
    pace.admit(10**9, Patience(0, clock.runtime))
    assert clock.slept == []


def test_who_waited_long_enough_is_told_to_come_back(clock: Clock) -> None:
    pace = Pace("api", Pacing(rows_per_s=1, max_wait_s=4), clock.runtime)
    pace.admit(10, Patience(4, clock.runtime))
    with pytest.raises(NotNowError, match="api: rows_per_s left no room for 1 rows within max_wait_s=4") as caught:
        pace.admit(1, Patience(4, clock.runtime))
    assert caught.value.after_s == 10
    assert clock.slept == [], "the core waits, without a task slot"


def test_a_chunk_that_takes_too_long_at_that_rate_is_refused_for_good(clock: Clock) -> None:
    pace = Pace("api", Pacing(rows_per_s=10, max_wait_s=60), clock.runtime)
    pace.check_chunk(600, "chunk a")
    with pytest.raises(PermanentError, match=r"chunk a: 601 rows take 60 s .* Settings\(chunk_rows=600\) or less"):
        pace.check_chunk(601, "chunk a")


# Patience.


def test_patience_is_for_the_whole_call(clock: Clock) -> None:
    patience = Patience(5, clock.runtime)
    assert patience.wait(3)
    assert not patience.wait(3)
    assert not patience.wait(0.1)
    assert clock.slept == [3]


# The breaker.


def test_the_breaker_opens_after_so_many_failures_in_a_row(clock: Clock) -> None:
    breaker = Breaker(3, 30, clock.runtime)
    for alive in (False, False, True, False, False):
        breaker.note(alive=alive)
        assert breaker.closed_in_s() == 0.0
    breaker.note(alive=False)
    assert breaker.closed_in_s() == 30.0


def test_the_breaker_lets_one_call_through_after_a_pause(clock: Clock) -> None:
    breaker = opened(clock)
    clock.sleep(30)
    assert breaker.closed_in_s() == 0.0
    assert breaker.closed_in_s() == 30.0


def test_a_probe_that_succeeds_closes_it(clock: Clock) -> None:
    breaker = opened(clock)
    clock.sleep(31)
    breaker.closed_in_s()
    breaker.note(alive=True)
    assert [breaker.closed_in_s(), breaker.closed_in_s()] == [0.0, 0.0]
    breaker.note(alive=False)
    assert breaker.closed_in_s() == 0.0, "it counts from nothing again"


def test_a_probe_that_fails_keeps_it_open(clock: Clock) -> None:
    breaker = opened(clock)
    clock.sleep(30)
    breaker.closed_in_s()
    clock.sleep(5)
    breaker.note(alive=False)
    assert breaker.closed_in_s() == 30.0


def test_a_probe_nobody_reports_on_is_followed_by_another(clock: Clock) -> None:
    breaker = opened(clock)
    clock.sleep(30)
    breaker.closed_in_s()
    clock.sleep(30)
    assert breaker.closed_in_s() == 0.0


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(2, 30, clock.runtime)
    breaker.note(alive=False)
    breaker.note(alive=False)
    assert breaker.closed_in_s() == 30.0
    return breaker


def test_an_open_breaker_says_until_when(clock: Clock) -> None:
    pace = Pace("https://api", Pacing(breaker_failures=1, breaker_pause_s=30), clock.runtime)
    pace.note(alive=False)
    clock.sleep(10)
    with pytest.raises(
        NotNowError, match=r"https://api failed 1 times in a row, so wal-sink sends it no request for another 20.0 s"
    ) as caught:
        pace.admit(1, Patience(60, clock.runtime))
    assert clock.slept == [10]
    assert caught.value.after_s == 20


def test_one_target_has_one_pace_in_a_process() -> None:
    slow = Pacing(rows_per_s=1)
    assert pace_of("a", slow) is pace_of("a", Pacing(rows_per_s=1))
    assert pace_of("a", slow) is not pace_of("b", slow)
    assert pace_of("a", slow) is not pace_of("a", Pacing(rows_per_s=2))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rows_per_s": 0},
        {"rows_per_s": float("nan")},
        {"rows_per_s": float("inf")},
        {"breaker_failures": 0},
        {"breaker_pause_s": -1},
        {"max_wait_s": -1},
        {"max_wait_s": float("inf")},
    ],
)
def test_pacing_that_cannot_work(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))}=.*: expected a number"):
        Pacing(**arguments)  # type: ignore[arg-type]


# Retry-After.


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wednesday, 21-Oct-26 07:29:00 GMT", 60.0),
        ("Wed Oct 21 07:28:10 2026", 10.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2026 09:28:30 +0200", 30.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float) -> None:
    assert retry_after_s(value, NOW) == seconds


@pytest.mark.parametrize("value", [None, "", "soon", "-1", "1.5", "²", "Wed, 99 Oct 2026 07:28:00 GMT"])
def test_a_retry_after_nobody_can_read_asks_for_nothing(value: str | None) -> None:
    assert retry_after_s(value, NOW) is None

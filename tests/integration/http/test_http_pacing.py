"""How fast `HttpSink` asks: told to wait, by its rate, by its breaker."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.house.support import SYSTEM
from tests.support.http_collection import IDS, SECRET, Collection, write
from tests.support.servers.http_target import Fault
from wal_sink.errors import OutcomeUnknownError
from wal_sink_backends.common import pacing
from wal_sink_backends.common.pacing import NotNowError
from wal_sink_backends.http.sink import HttpSink, Pacing, TargetFailedError

LONG_S = 45.0
"""Longer than any pause here on a busy machine, and shorter than a sink waits that has no other limit."""


def test_a_429_is_waited_for_and_sent_again(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=429, headers={"Retry-After": "1"}))
    started_s = time.monotonic()
    write(HttpSink(plain.url))
    assert 1.0 <= time.monotonic() - started_s < LONG_S
    assert plain.ids == IDS


def test_rows_go_on_where_they_were_told_to_wait(keyed: Collection) -> None:
    """Else an API that takes four requests at a time would never see a chunk of five."""
    sent = iter(range(1000))
    limit = Fault(status=429, headers={"Retry-After": "0"}, times=10**6, meets=lambda *_: next(sent) % 3 == 2)
    keyed.server.faults.append(limit)
    write(HttpSink(keyed.url, body="rows"))
    assert keyed.ids == IDS


PAST = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize("told", ["0", PAST])
@pytest.mark.parametrize("status", [429, 503])
def test_pauses_grow_though_the_api_asks_for_none(keyed: Collection, told: str, status: int) -> None:
    """Outcome before: 30 requests in 3.7 s."""
    keyed.server.faults.append(Fault(status=status, headers={"Retry-After": told}, times=10**6))
    started_s = time.monotonic()
    with pytest.raises(TargetFailedError, match=str(status)):
        write(HttpSink(keyed.url, idempotent=True, pacing=Pacing(max_wait_s=3)))
    assert time.monotonic() - started_s < LONG_S
    assert 3 <= len(keyed.server.requests) <= 5


def test_a_plain_sink_leaves_repeating_what_may_have_taken_effect_to_the_core(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=503, headers={"Retry-After": "0"}))
    with pytest.raises(TargetFailedError, match="503"):
        write(HttpSink(plain.url))
    assert len(plain.server.requests) == 1


def test_waiting_is_bounded(plain: Collection) -> None:
    plain.server.faults.append(Fault(status=429, headers={"Retry-After": "86400"}))
    started_s = time.monotonic()
    with pytest.raises(TargetFailedError, match="429") as caught:
        write(HttpSink(plain.url, pacing=Pacing(max_wait_s=0.2)))
    assert caught.value.after_s == 86400
    assert time.monotonic() - started_s < LONG_S
    assert len(plain.server.requests) == 1


def test_an_open_breaker_asks_nothing_until_its_pause_is_over(plain: Collection) -> None:
    given = Pacing(breaker_failures=2, breaker_pause_s=120)
    sink = HttpSink(plain.url, pacing=given)
    breaker = pacing.pace_of(plain.url, given)._breaker
    assert breaker is not None
    plain.server.faults += [Fault(status=500), Fault(cut="before")]
    with pytest.raises(TargetFailedError):
        write(sink)
    with pytest.raises(OutcomeUnknownError):
        write(sink)
    with pytest.raises(NotNowError, match="failed 2 times in a row"):
        write(sink)
    assert len(plain.server.requests) == 2
    breaker._runtime = replace(SYSTEM, monotonic_s=lambda: SYSTEM.monotonic_s() + 120)
    write(sink)
    assert plain.ids == IDS


@pytest.mark.parametrize("other", ["?site=2", "?site=1&x=1", ""])
def test_another_query_is_another_target(plain: Collection, other: str) -> None:
    once = Pacing(breaker_failures=1, breaker_pause_s=60)
    plain.server.faults.append(Fault(status=500))
    with pytest.raises(TargetFailedError):
        write(HttpSink(f"{plain.url}?site=1", pacing=once))
    assert write(HttpSink(f"{plain.url}{other}", pacing=once)) is None
    with pytest.raises(NotNowError):
        write(HttpSink(f"{plain.url}?site=1", pacing=once))


def test_the_address_of_a_pace_shows_no_secret(plain: Collection, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    sink = HttpSink(f"{plain.url}?token={SECRET}", pacing=Pacing(breaker_failures=1, breaker_pause_s=60))
    plain.server.faults.append(Fault(status=500))
    with pytest.raises(TargetFailedError):
        write(sink)
    with pytest.raises(NotNowError) as caught:
        write(sink)
    assert SECRET not in f"{caught.value} {sink!r} {pacing._paces} {caplog.text}"

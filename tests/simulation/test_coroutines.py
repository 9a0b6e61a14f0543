"""Coroutines, which let the processes of a history take turns."""

from __future__ import annotations

import pytest

from tests.simulation.histories.coroutines import Coroutine, running
from wal_sink.testing import Crash

pytestmark = pytest.mark.no_cover


def pause() -> None:
    coroutine = running()
    assert coroutine is not None
    coroutine.pause()


def test_a_coroutine_runs_until_it_pauses_each_time_it_is_resumed() -> None:
    seen: list[int] = []

    def count() -> str:
        for number in range(3):
            seen.append(number)
            pause()
        return "counted"

    coroutine = Coroutine(count)
    for resumed in range(3):
        coroutine.resume()
        assert (seen, coroutine.done) == (list(range(resumed + 1)), False)
    coroutine.resume()

    assert (coroutine.done, coroutine.result, coroutine.error) == (True, "counted", None)


def test_an_error_of_a_coroutine_is_kept_and_ends_it() -> None:
    def fail() -> None:
        pause()
        raise OSError("failed")

    coroutine = Coroutine(fail)
    coroutine.resume()
    coroutine.resume()

    assert coroutine.done
    assert isinstance(coroutine.error, OSError)


def test_a_coroutine_that_another_one_left_can_be_resumed_from_elsewhere() -> None:
    inner = Coroutine(pause)

    def outer() -> None:
        inner.resume()
        pause()  # this pauses the outer coroutine, not the inner one

    coroutine = Coroutine(outer)
    coroutine.resume()
    assert (coroutine.done, inner.done) == (False, False)
    inner.resume()
    assert (coroutine.done, inner.done) == (False, True)
    coroutine.resume()

    assert coroutine.done
    assert running() is None


def test_killed_it_ends_where_it_stands_as_a_process_does() -> None:
    went_on = []

    def stand() -> None:
        try:
            pause()
        except Exception:  # noqa: BLE001 - no handler of errors may catch the end of a process
            went_on.append("as after an error")
        went_on.append("as if nothing had been")

    coroutine = Coroutine(stand)
    coroutine.resume()
    coroutine.kill()

    assert coroutine.done
    assert isinstance(coroutine.error, Crash)
    assert not went_on

"""A call that is waited for only so long gives its result, its error, or the end of the wait."""

from __future__ import annotations

import threading

import pytest

from wal_sink.support.calls import within


def refuse() -> None:
    raise ValueError("no")


def test_the_result_and_the_error_of_a_call_reach_the_caller() -> None:
    assert within(60.0, "x", lambda: threading.current_thread().name) == "x"
    with pytest.raises(ValueError, match="no"):
        within(60.0, "x", refuse)


def test_a_call_that_takes_longer_goes_on_without_the_caller() -> None:
    let_go, done = threading.Event(), threading.Event()

    def call() -> None:
        let_go.wait(60.0)
        done.set()

    with pytest.raises(TimeoutError):
        within(0.01, "x", call)
    assert not done.is_set()
    let_go.set()
    assert done.wait(60.0)


def test_a_thread_that_calls_keeps_no_process_alive() -> None:
    assert within(60.0, "x", lambda: threading.current_thread().daemon)


def test_without_a_further_thread_the_call_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert within(60.0, "x", threading.current_thread) is threading.main_thread()

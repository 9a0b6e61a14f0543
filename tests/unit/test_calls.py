"""Calls of a sink: all on one thread, bounded in time, left behind when they hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wal_sink.calls import CallTimedOutError, DirectCaller, ThreadCaller


@pytest.fixture
def caller() -> Iterator[ThreadCaller]:
    made = ThreadCaller()
    yield made
    made.close()


def test_every_call_runs_on_one_thread_that_is_not_the_callers(caller: ThreadCaller) -> None:
    threads = {caller.call(threading.get_ident, timeout_s=10) for _ in range(5)}

    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_two_callers_have_two_threads(caller: ThreadCaller) -> None:
    other = ThreadCaller()
    try:
        assert caller.call(threading.get_ident, timeout_s=10) != other.call(threading.get_ident, timeout_s=10)
    finally:
        other.close()


def test_arguments_and_results_pass_unchanged(caller: ThreadCaller) -> None:
    thing = object()

    assert caller.call(lambda *args: args, thing, 2, timeout_s=10) == (thing, 2)
    assert caller.call(lambda: None, timeout_s=10) is None
    assert caller.call(lambda: False, timeout_s=10) is False


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_reaches_the_calling_thread_and_the_next_call_works(
    caller: ThreadCaller, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        caller.call(fail, timeout_s=10)

    assert raised.value is error
    assert caller.call(lambda: 1, timeout_s=10) == 1


def test_a_call_that_hangs_is_left_behind_and_the_caller_refuses_others(caller: ThreadCaller) -> None:
    release = threading.Event()
    with pytest.raises(CallTimedOutError, match=r"no answer within 0\.05 s"):
        caller.call(release.wait, timeout_s=0.05)

    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: pytest.fail("must not run"), timeout_s=10)

    release.set()
    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: pytest.fail("must not run"), timeout_s=10)


def test_the_late_answer_of_a_call_left_behind_is_given_to_nobody(caller: ThreadCaller) -> None:
    release = threading.Event()
    with pytest.raises(CallTimedOutError):
        caller.call(release.wait, timeout_s=0.05)
    release.set()

    with pytest.raises(CallTimedOutError):
        caller.call(lambda: "mine", timeout_s=1)


def test_closing_ends_the_thread() -> None:
    caller = ThreadCaller()
    thread = caller.call(threading.current_thread, timeout_s=10)

    caller.close()
    thread.join(10)

    assert not thread.is_alive()


def test_closing_ends_a_thread_that_was_left_behind_once_its_call_returns() -> None:
    caller, release = ThreadCaller(), threading.Event()
    thread = caller.call(threading.current_thread, timeout_s=10)
    with pytest.raises(CallTimedOutError):
        caller.call(release.wait, timeout_s=0.05)

    caller.close()
    release.set()
    thread.join(10)

    assert not thread.is_alive()


def test_the_thread_does_not_keep_the_process_alive(caller: ThreadCaller) -> None:
    assert caller.call(threading.current_thread, timeout_s=10).daemon


def test_a_caller_that_was_never_used_closes() -> None:
    ThreadCaller().close()


def test_the_direct_caller_stays_on_the_callers_thread() -> None:
    caller = DirectCaller()

    assert caller.call(threading.get_ident, timeout_s=1) == threading.get_ident()
    caller.close()

"""Calls of a sink: all on one thread, bounded in time, left behind when they hang."""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.house.sinks import FailureKind, SinkFailedError
from tests.house.support import CallTimedOutError, DirectCall, ThreadCall
from tests.support.hanging_calls import Hangs
from wal_sink.errors import RetryLaterError
from wal_sink.sinks.calls import call_sink
from wal_sink.support.arguments import LONGEST_S
from wal_sink.support.calls import Claim, InUseError, ProgramExitError
from wal_sink.testing import Crash


@pytest.fixture
def caller() -> Iterator[ThreadCall]:
    made = ThreadCall()
    yield made
    made.close()


def test_every_call_runs_on_one_thread_that_is_not_the_callers(caller: ThreadCall) -> None:
    threads = {caller.call(threading.get_ident, timeout_s=60) for _ in range(5)}

    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_where_the_system_gives_no_thread_the_next_call_tries_again(
    caller: ThreadCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            caller.call(lambda: 1, timeout_s=60)

    assert caller.call(lambda: 1, timeout_s=60) == 1


def test_an_exception_reaches_the_calling_thread_and_the_next_call_works(caller: ThreadCall) -> None:
    error = ValueError("x")

    with pytest.raises(ValueError, match="x") as raised:
        caller.call(raising(error), timeout_s=60)

    assert raised.value is error
    assert caller.call(lambda: 1, timeout_s=60) == 1


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


ENDINGS = [
    (lambda: sys.exit(0), r"called sys\.exit\(0\)"),
    (lambda: sys.exit("no config"), r"called sys\.exit\('no config'\)"),
    (sys.exit, r"called sys\.exit\(\)"),
    (raising(KeyboardInterrupt()), "raised KeyboardInterrupt"),
    (raising(GeneratorExit()), "raised GeneratorExit"),
]


def test_a_sink_that_would_end_the_program_failed_for_good(caller: ThreadCall) -> None:
    for end, message in ENDINGS:
        with pytest.raises(SinkFailedError, match=f"chunk 7: post {message}: expected the call to return") as raised:
            call_sink(caller, "chunk 7: post", end, timeout_s=60)

        assert raised.value.failure.kind is FailureKind.PERMANENT


def test_the_crash_of_a_simulation_passes_through() -> None:
    with pytest.raises(Crash):
        call_sink(DirectCall(), "post", raising(Crash()), timeout_s=60)


def test_the_wait_that_a_target_asks_for_is_a_time_whatever_it_says() -> None:
    cases: list[tuple[Any, float]] = [
        *((0.5, 0.5), (30, 30.0), (math.inf, LONGEST_S), (10**400, LONGEST_S)),
        *((0, 0.0), (-1, 0.0), (-(10**400), 0.0), (math.nan, 0.0), (None, 0.0), ("30", 0.0)),
    ]
    for asked, waited_s in cases:
        with pytest.raises(SinkFailedError) as caught:
            call_sink(DirectCall(), "post", raising(RetryLaterError("busy", after_s=asked)), timeout_s=60)

        assert caught.value.failure.retry_after_s == waited_s


def test_a_call_that_hangs_is_left_behind_and_the_caller_refuses_others(caller: ThreadCall) -> None:
    release = threading.Event()
    with pytest.raises(CallTimedOutError, match=r"no answer within 0\.05 s"):
        caller.call(release.wait, timeout_s=0.05)

    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: pytest.fail("must not run"), timeout_s=60)

    release.set()
    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: pytest.fail("must not run"), timeout_s=60)


def test_a_caller_is_busy_for_as_long_as_a_call_that_timed_out_runs(caller: ThreadCall) -> None:
    release = threading.Event()
    assert not caller.busy
    caller.call(lambda: None, timeout_s=60)
    assert not caller.busy
    thread = caller.call(threading.current_thread, timeout_s=60)
    with pytest.raises(CallTimedOutError):
        caller.call(release.wait, timeout_s=0.05)
    assert caller.busy

    caller.close()
    assert caller.busy
    release.set()
    thread.join(60)

    assert not caller.busy


def test_the_answer_of_a_call_that_ctrl_c_left_is_given_to_nobody(caller: ThreadCall) -> None:
    may_return = threading.Event()

    def write() -> str:
        time.sleep(0.2)  # a signal just before the caller waits wakes it only after the wait
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # nobody but the caller gets it
        assert may_return.wait(60)
        return "rows are written"

    with pytest.raises(KeyboardInterrupt):
        caller.call(write, timeout_s=60)

    assert caller.busy
    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: "closed", timeout_s=60)
    may_return.set()
    while caller.busy:
        time.sleep(0.01)
    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: "closed", timeout_s=60)


def test_the_answer_of_a_call_that_ctrl_c_left_right_after_it_was_queued_is_given_to_nobody() -> None:
    class Interrupted(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item, block, timeout)
            if ctrl_c:
                raise ctrl_c.pop()

    ctrl_c = [KeyboardInterrupt()]
    caller = ThreadCall()
    caller._requests = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        caller.call(lambda: "rows are written", timeout_s=60)

    with pytest.raises(CallTimedOutError, match="still running"):
        caller.call(lambda: "closed", timeout_s=60)
    caller.close()


def test_while_a_call_lasts_only_its_own_run_calls_for_the_same_thing() -> None:
    hangs = Hangs()
    first, copy, rival, other = (hangs.new_timed_call() for _ in range(4))
    first.claim = copy.claim = Claim("run-1", (("wal", "a"), 7))
    rival.claim, other.claim = Claim("run-2", (("wal", "b"), 7)), Claim("run-2", (("wal", "b"), 8))
    with pytest.raises(CallTimedOutError):
        first.call(hangs.wait, timeout_s=0.05)

    assert [each.call(lambda: 1, timeout_s=60) for each in (copy, other)] == [1, 1]
    with pytest.raises(InUseError, match="earlier call of this sink, of another run in this process, is still running"):
        rival.call(lambda: 1, timeout_s=60)

    hangs.release.set()
    assert first._answers.get(timeout=60) == (True, None)
    assert rival.call(lambda: 1, timeout_s=60) == 1
    for each in (first, copy, rival, other):
        each.close()


def test_closing_ends_a_thread_that_was_left_behind_once_its_call_returns() -> None:
    caller, release = ThreadCall(), threading.Event()
    thread = caller.call(threading.current_thread, timeout_s=60)
    with pytest.raises(CallTimedOutError):
        caller.call(release.wait, timeout_s=0.05)

    caller.close()
    release.set()
    thread.join(60)

    assert not thread.is_alive()


def test_the_thread_does_not_keep_the_process_alive(caller: ThreadCall) -> None:
    assert caller.call(threading.current_thread, timeout_s=60).daemon


@pytest.mark.parametrize(("code", "status"), [(0, 0), (7, 7), ("a text", 1)])
def test_a_child_that_a_sink_forks_ends_when_it_exits(
    caller: ThreadCall, monkeypatch: pytest.MonkeyPatch, code: object, status: int
) -> None:
    """The child waited for the next call for ever, one process for each chunk."""
    ended: list[int] = []

    def forked() -> None:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        sys.exit(code)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(ProgramExitError):
        caller.call(forked, timeout_s=60)
    assert ended == [status]

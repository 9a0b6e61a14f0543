"""A call that forks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from wal_sink.runtime.timed_calls import ThreadCall


@pytest.fixture
def caller() -> Iterator[ThreadCall]:
    made = ThreadCall()
    yield made
    made.close()


def comes_back() -> None: ...


def fails() -> None:
    raise ValueError("in the child")


@pytest.mark.parametrize("ending", [comes_back, sys.exit, fails], ids=lambda ending: ending.__name__)
def test_a_process_that_a_call_forked_ends_with_the_call(ending: Callable[[], object]) -> None:
    """It waited for the next call, which only its parent gets, and held the parent's files and sockets for ever."""

    def fork() -> int:
        child = os.fork()
        if child == 0:
            ending()
        return child

    caller = ThreadCall()
    child = caller.call(fork, timeout_s=60)
    deadline_s = time.monotonic() + 60
    ended = 0
    while not ended and time.monotonic() < deadline_s:
        ended, _ = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert ended == child
    assert caller.call(lambda: 5, timeout_s=60) == 5
    caller.close()

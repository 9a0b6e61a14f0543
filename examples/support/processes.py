"""A child process that an example starts, waits for and kills."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the helpers of this checkout's tests

from tests.support.processes import Child, end_with_parent

__all__ = ["Child", "end_with_parent", "kill", "wait_at_most"]


def wait_at_most(longest_s: float, reached: Callable[[], bool]) -> None:
    """Sleep until `reached()` is true, but at most `longest_s` seconds."""
    until_s = time.monotonic() + longest_s
    while time.monotonic() < until_s and not reached():
        time.sleep(0.02)


def kill(child: Child) -> None:
    """Kill a running process. Raises `AssertionError` with its output if it ended before."""
    child.kill()
    code = child.wait()
    assert code == -signal.SIGKILL, f"it ended with {code} before it could be killed:\n{child.output}"

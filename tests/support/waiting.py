"""Waiting for a thread, a process or a server, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
_POLL_S = 0.005


def wait_until(condition: Callable[[], bool], what: str = "the condition holds", timeout_s: float = PATIENCE_S) -> None:
    """Return once the condition holds. An assertion fails after `timeout_s` seconds; `what` is for its message."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)

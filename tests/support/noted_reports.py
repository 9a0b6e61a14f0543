"""Waiting for what a command that takes long says on stderr meanwhile, instead of taking long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.house.cli import working
from tests.support.waiting import wait_until


def noting_reports(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> Callable[[], None]:
    """Return a function that waits until so many lines were said, counted from its call.

    The state that the second line tells was looked at after the call.
    """
    said, lock = [0], threading.Lock()
    say: Any = vars(working)["say"]

    def noted(*args: Any, **kwargs: Any) -> None:
        say(*args, **kwargs)
        with lock:
            said[0] += 1

    monkeypatch.setattr(working, "say", noted)

    def wait() -> None:
        before = said[0]
        wait_until(lambda: said[0] >= before + count, "the command said how far it is")

    return wait

"""Calls that hang, with a time limit that counts from the moment at which they hang.

A slow machine would otherwise end calls that only wait for their thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.house.support import ThreadCall
from tests.support.waiting import PATIENCE_S


class Hangs:
    """A place where calls hang until they are released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self._threads: set[int | None] = set()

    @property
    def is_hung(self) -> bool:
        """Whether any call came here."""
        return bool(self._threads)

    def wait(self) -> None:
        """Hang here."""
        self._threads.add(threading.get_ident())
        self.release.wait(PATIENCE_S)

    def new_timed_call(self) -> ThreadCall:
        """Return what runs calls on a thread. Its calls have `PATIENCE_S` seconds until one of them hangs here."""
        made = ThreadCall()
        made._answers = _Answers(lambda: made._thread is not None and made._thread.ident in self._threads)
        return made


class _Answers(queue.SimpleQueue[Any]):
    def __init__(self, hangs: Callable[[], bool]) -> None:
        super().__init__()
        self._hangs = hangs

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().get(block, timeout)
            except queue.Empty:
                if self._hangs() or time.monotonic() > deadline_s:
                    raise

"""Task slots of the cluster that delivery may take, shared by all sinks of a run: staging needs the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.5
"""How often whoever waits looks whether the cluster grew or the run ends."""


class DeliverySlots:
    """Hands out slots, first come, first served. `limit` is asked each time: a cluster grows and shrinks."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._in_use = 0

    @contextmanager
    def taken(self, wanted: int, *, should_stop: Callable[[], bool]) -> Iterator[int]:
        """Hold as many slots as are free, at least one and at most `wanted`; waits while none is.

        Gives 0 if the run was told to end before there was one.
        """
        granted = self._take(wanted, should_stop)
        try:
            yield granted
        finally:
            with self._changed:
                self._in_use -= granted
                self._changed.notify_all()

    def _take(self, wanted: int, should_stop: Callable[[], bool]) -> int:
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or (free := self._limit() - self._in_use) < 1:
                    if should_stop():
                        return 0
                    self._changed.wait(_POLL_S)
                granted = min(wanted, free)
                self._in_use += granted
                return granted
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

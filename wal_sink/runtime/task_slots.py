"""Task slots of the cluster that delivery may take, shared by all sinks of a run: staging needs the others.

What by experience takes little time may have them all. Spark serves its jobs in their order, so that staging waits for
that once: for seconds, or for one `attempt_timeout_s` if the sink hangs, after which it gets no slot of staging's.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LENT_S = 5.0
"""For so many seconds at most delivery takes the slots that are staging's, too."""
_POLL_S = 0.5
"""How often whoever waits looks whether the cluster grew or the run ends."""


class DeliverySlots:
    """Hands out slots, first come, first served: `limit` of them; `whole` of them, staging's included, for little work.

    Both are asked each time: a cluster grows and shrinks.
    """

    def __init__(self, limit: Callable[[], int], whole: Callable[[], int] | None = None) -> None:
        self._limit = limit
        self._whole = whole or limit
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._in_use = 0

    @contextmanager
    def taken(self, wanted: int, *, should_stop: Callable[[], bool], work_s: float = math.inf) -> Iterator[int]:
        """Hold as many slots as are free, at least one and at most `wanted`; waits while none is.

        `work_s` is how long a single slot would take for all of it. Gives 0 if the run was told to end before there
        was a slot.
        """
        granted = self._take(wanted, work_s, should_stop)
        try:
            yield granted
        finally:
            with self._changed:
                self._in_use -= granted
                self._changed.notify_all()

    def _take(self, wanted: int, work_s: float, should_stop: Callable[[], bool]) -> int:
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or (free := self._free(wanted, work_s)) < 1:
                    if should_stop():
                        return 0
                    self._changed.wait(_POLL_S)
                granted = min(wanted, free)
                self._in_use += granted
                return granted
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def _free(self, wanted: int, work_s: float) -> int:
        whole = self._whole() - self._in_use
        is_short = whole > 0 and work_s / min(wanted, whole) <= LENT_S
        return whole if is_short else self._limit() - self._in_use

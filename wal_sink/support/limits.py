"""Limits: the rows per second that a sink gets, and the task slots of the cluster for delivery.

`RowRate` runs in the sender: in a delivery task, and in the committer. The slots are shared by all sinks of a run;
staging needs the other slots. Work that should take little time, by experience, may use all slots. Spark runs its jobs
in their order, so staging waits for that work once: for seconds, or for one `attempt_timeout_s` if the sink hangs.
After that, such a sink gets no slot of staging's.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal_sink.support.clock import Runtime

_LONGEST_SLEEP_S = 1.0
"""Interval at which a waiting sender checks whether the run ends."""


class RowRate:
    """Average limit of rows per second: time pays for the rows already sent before more are sent.

    `rows_per_s` None: no limit.
    """

    def __init__(self, rows_per_s: float | None, runtime: Runtime) -> None:
        self._rows_per_s = rows_per_s
        self._runtime = runtime
        self._free_at_s = 0.0

    def now_s(self) -> float:
        """The present monotonic time in seconds."""
        return self._runtime.monotonic_s()

    def wait(self, sleep: Callable[[float], None]) -> None:
        """Wait until more rows may be sent. `sleep` may raise to end the wait."""
        if self._rows_per_s is not None:
            while (left_s := self._free_at_s - self.now_s()) > 0:
                sleep(min(left_s, _LONGEST_SLEEP_S))

    def take(self, rows: int, *, since_s: float) -> None:
        """Account for rows that were sent since `since_s`, a time of `now_s`."""
        if self._rows_per_s is not None:
            self._free_at_s = max(self._free_at_s, since_s) + rows / self._rows_per_s


LENT_S = 5.0
"""Maximum seconds for which delivery may use staging's slots too."""
_POLL_S = 0.5
"""Interval at which a waiting thread checks whether the cluster grew or the run ends."""


class DeliverySlots:
    """Hands out slots, first come, first served: `limit` of them, or `whole` of them, staging's included, for little
    work.

    Both functions are called each time, because a cluster grows and shrinks.
    """

    def __init__(self, limit: Callable[[], int], whole: Callable[[], int] | None = None) -> None:
        self._limit = limit
        self._whole = whole or limit
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._in_use = 0

    @contextmanager
    def taken(self, wanted: int, *, should_stop: Callable[[], bool], work_s: float = math.inf) -> Iterator[int]:
        """Hold as many slots as are free, at least one and at most `wanted`. Waits while none is free.

        `work_s` is the time that a single slot would take for all of the work. Yields 0 if the run ends before a slot
        is free.
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

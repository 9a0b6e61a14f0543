"""Limits the rows per second that a sink gets. Runs in the sender: in a delivery task, and in the committer."""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.runtime.clock import Runtime

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

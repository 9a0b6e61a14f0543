"""The objects that the committers of one run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.checkpoint.reader import Gate
from wal_sink.committer.release import Releaser
from wal_sink.recovery.history import History
from wal_sink.runtime.stopped import StoppedError
from wal_sink.wal.log import Log


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The objects that the committers of one run share."""

    log: Log
    gate: Gate
    history: History
    releaser: Releaser
    pause: Callable[[float], bool]
    """Wait so many seconds. True if the run is ending."""

    def sleep_s(self, seconds: float) -> None:
        """Wait. Raises `StoppedError` if the run is ending."""
        if self.pause(seconds):
            raise StoppedError("the run is ending")

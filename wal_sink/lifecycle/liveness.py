"""A local file that tells a supervisor that the committers of a process make progress. No request to a store.

A committer beats whenever it comes by: at every look for a batch, before every chunk, and while it waits for a retry.
The file is touched once every running committer has beaten since the last time. So a committer that is stuck, in a call
that never returns or in a lock, keeps the file from being touched, also while the committers of other sinks go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from wal_sink.errors import ConfigError
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import SYSTEM, Runtime

TOUCH_EVERY_S = 1.0
"""Shortest time between two touches."""
BEAT_EVERY_S = 5.0
"""Longest wait between two beats of a committer that waits for a retry. One that waits for a batch polls as often."""

_logger = logger_of(__name__)


class Liveness:
    """The file of one process. `beat` may be called from any thread."""

    def __init__(self, path: str, runtime: Runtime = SYSTEM) -> None:
        self._path = Path(path)
        self._runtime = runtime
        self._lock = threading.Lock()
        self._beaten: set[str] = set()
        self._touched_s = -math.inf
        self._has_warned = False

    def begin(self) -> None:
        """Touch the file at the start. Raises `ConfigError` if that is impossible."""
        try:
            if self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a directory")
            self._path.touch()
        except OSError as error:
            raise ConfigError(
                f"liveness_file={str(self._path)!r} (--liveness-file): this file cannot be touched: {error}. Choose a "
                "file in an existing folder that this process may write"
            ) from error

    def beat(self, name: str, running: Callable[[], Collection[str]]) -> None:
        """Note that `name` made progress. Touch the file if everyone did who is running."""
        with self._lock:
            self._beaten.add(name)
            if self._runtime.monotonic_s() - self._touched_s >= TOUCH_EVERY_S and self._beaten.issuperset(running()):
                self._touched_s = self._runtime.monotonic_s()
                self._beaten.clear()
                self._touch()

    def _touch(self) -> None:
        try:
            self._path.touch()
            self._has_warned = False
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("the liveness file %s cannot be touched any more: %s", self._path, error)

"""The thread that renews the leases of a run. It is a separate one, since a call of a sink may take long."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal_sink.errors import FencedError
from wal_sink.lifecycle.run import Run
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import told

AFTER_ERROR_S = 0.1
"""The pause after an error that nobody expected. The lease of another sink may be due."""

_logger = logger_of(__name__)


class LeaseKeeper:
    """Renews until `stop`, or until another process serves a sink."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._on_superseded: Callable[[FencedError], None] | None = None
        self._error: FencedError | None = None
        self._thread = threading.Thread(target=self._work, name="wal-sink-lease", daemon=True)

    def start(self) -> None:
        """Begin before the run claims its terms."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Renew no more. Waits until a renewal under way is over, at most `timeout_s` seconds."""
        self._done.set()
        self._thread.join(timeout_s)

    def tell(self, on_superseded: Callable[[FencedError], None]) -> None:
        """Call the function once, when another process serves a sink: now, if that is known already."""
        with self._lock:
            self._on_superseded = on_superseded
            error = self._error
        if error is not None:
            on_superseded(error)

    def _work(self) -> None:
        wait_s, has_failed = 0.0, False
        while not self._done.wait(wait_s):
            try:
                wait_s = self._run.renew_leases()
            except FencedError as error:
                self._note(error)
                return
            except Exception as error:  # noqa: BLE001 - without this thread, a standby would fence a process that lives
                wait_s = AFTER_ERROR_S
                if not has_failed:
                    has_failed = True
                    _logger.warning("the lease was not renewed, and this will be tried again: %s", told(error))

    def _note(self, error: FencedError) -> None:
        with self._lock:
            self._error = error
            on_superseded = self._on_superseded
        if on_superseded is not None:
            on_superseded(error)

"""What runs beside somebody who stands still, on a thread of its own: it may have to wait for what that one holds."""

from __future__ import annotations

import threading
from collections.abc import Callable

SHORTEST_PATIENCE_S = 0.1
_LONGEST_S = 20.0


class Beside:
    """An act on a thread of its own.

    `progress` tells how far it is. Nothing new for `patience_s`, in real time, means that it waits: for a lock, in most
    cases, that its caller holds. On a busy machine it may also just be slow.
    """

    def __init__(self, act: Callable[[], object], progress: Callable[[], object], patience_s: float) -> None:
        self._act = act
        self._progress = progress
        self._patience_s = max(patience_s, SHORTEST_PATIENCE_S)
        self._thread = threading.Thread(target=self._run, name="wal_sink.testing beside", daemon=True)
        self.error: BaseException | None = None
        """What it raised, if it did."""

    def goes_through(self) -> bool:
        """Start it; False if it waits, and goes on by itself once it need not any more."""
        self._thread.start()
        seen: object = None
        while self._thread.is_alive() and seen != (seen := self._progress()):
            self._thread.join(self._patience_s)
        return not self._thread.is_alive()

    def ends(self) -> bool:
        """Wait for its end, now that nobody holds anything; False if it does not come."""
        if self._thread.ident is not None:
            self._thread.join(_LONGEST_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self.error = error

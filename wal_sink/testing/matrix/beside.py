"""An act on a separate thread while its caller stands still. The act may have to wait for a lock of the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable

SHORTEST_PATIENCE_S = 0.1
_LONGEST_S = 20.0


class Beside:
    """An act on a separate thread.

    `progress` tells how far the act has come. An act without progress for `patience_s` of real time counts as waiting,
    in most cases for a lock that its caller holds. On a busy machine it may also just be slow.
    """

    def __init__(self, act: Callable[[], object], progress: Callable[[], object], patience_s: float) -> None:
        self._act = act
        self._progress = progress
        self._patience_s = max(patience_s, SHORTEST_PATIENCE_S)
        self._thread = threading.Thread(target=self._run, name="wal_sink.testing beside", daemon=True)
        self.error: BaseException | None = None
        """The exception that the act raised, if any."""

    def goes_through(self) -> bool:
        """Start the act. Return False if it waits; it then continues by itself as soon as it can."""
        self._thread.start()
        seen: object = None
        while self._thread.is_alive() and seen != (seen := self._progress()):
            self._thread.join(self._patience_s)
        return not self._thread.is_alive()

    def ends(self) -> bool:
        """Wait for the end of the act, once its caller holds nothing any more. Return False if the act does not end."""
        if self._thread.ident is not None:
            self._thread.join(_LONGEST_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - the caller reads it in `error`
            self.error = error

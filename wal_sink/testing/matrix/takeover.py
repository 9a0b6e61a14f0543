"""The newer process that takes over from an older one that stands still, on a separate thread if the target permits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.errors import WalSinkError
from wal_sink.testing.matrix.verdict import BEFORE_SENDING
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.process import Place, Process, bury

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


@dataclass(frozen=True, slots=True)
class Stage:
    """The way in which a newer process runs."""

    own_thread: bool = False
    """Whether it runs on a separate thread, as in a cluster. False for a target that allows calls from one thread only:
    both processes then share a thread.
    """
    patience_s: float = 0.0
    """Real seconds without any progress after which it counts as waiting for something that the older process holds."""
    patience_between_calls_s: float = 5.0
    """The same between two calls, where the older process must hold nothing. It is long, since waiting is a fault there
    and a slow process has to be told from a waiting one.
    """


class Takeover:
    """One newer process. It runs from its start to its end, or as far as the older process lets it.

    A newer process that has to wait dies. It stops using the WAL at once, and the target once the waiting call returns.
    """

    def __init__(self, place: Place, stage: Stage, *, is_inside: bool) -> None:
        """Prepare the newer process. `is_inside`: the older process stands still inside a call.

        Then the newer one dies instead of repeating a failed send, since its further attempts would only take time.
        """
        self._process = Process(place, hook=_give_up if is_inside else None)
        self._patience_s = max(stage.patience_s, 0.0 if is_inside else stage.patience_between_calls_s)
        self._beside: Beside | None = None
        self._stage = stage
        self.waited = False
        self.error: BaseException | None = None
        """The reason why it could not deliver."""

    def run(self) -> None:
        """Run it while the older process stands still."""
        if self._stage.own_thread:
            points = self._process.points
            self._beside = Beside(self._process.live_to_end, lambda: len(points), self._patience_s)
            if not self._beside.goes_through():
                self.waited = self._process.dead = True
                return
            self.error = self._beside.error
        else:
            try:
                self._process.live_to_end()
            except (Crash, WalSinkError) as error:
                self.error = error
        self._bury(self.error)

    def end(self) -> str:
        """Wait for its end, after the older process has ended. Return a message if it does not end, else ""."""
        if not self.waited or self._beside is None:
            return ""
        if not self._beside.ends():
            return f"a process waits for ever ({self._process.points[-1]}) for something that an ended process held"
        self._bury(self._beside.error)
        return ""

    def _bury(self, end: BaseException | None) -> None:
        if end is None:
            return
        if not isinstance(end, Crash | WalSinkError):
            raise end
        bury(self._process, end)


def _give_up(process: Process, name: str) -> None:
    if not name.startswith(BEFORE_SENDING):
        return
    answers = process.points.count(name.replace("before", "after", 1))
    if process.points.count(name) > answers + 1:
        raise Crash(name)

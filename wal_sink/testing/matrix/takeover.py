"""The process that takes over from one which stands still."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.errors import WalSinkError
from wal_sink.testing.matrix.beside import Beside
from wal_sink.testing.matrix.points import BEFORE_SENDING
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.process import Place, Process, bury


@dataclass(frozen=True, slots=True)
class Stage:
    """How a successor runs."""

    own_thread: bool = False
    """As it does in a cluster. A target that takes calls from one thread only keeps it on that of its predecessor."""
    patience_s: float = 0.0
    """Real seconds without any progress after which it is taken to wait for what its predecessor holds."""
    patience_between_calls_s: float = 5.0
    """The same where it would be wrong to hold anything: no verdict on a successor that is only slow."""


class Takeover:
    """One successor: it lives from its start to its end, or as far as its predecessor lets it.

    One that has to wait dies: at once for the WAL, and for the target when the call that waits returns.
    """

    def __init__(self, place: Place, stage: Stage, *, is_inside: bool) -> None:
        """`is_inside`: its predecessor stands still inside a call. It dies then rather than to send again what failed:
        nobody need wait for all of its attempts.
        """
        self._process = Process(place, hook=_give_up if is_inside else None)
        self._patience_s = max(stage.patience_s, 0.0 if is_inside else stage.patience_between_calls_s)
        self._beside: Beside | None = None
        self._stage = stage
        self.waited = False
        self.error: BaseException | None = None
        """Why it could not deliver."""

    def run(self) -> None:
        """Let it live while its predecessor stands still."""
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
        """Its predecessor has ended. What is wrong if it does not, "" if nothing is."""
        if not self.waited or self._beside is None:
            return ""
        if not self._beside.ends():
            return f"a process waits for ever, {self._process.points[-1]}, for what one held that has ended"
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

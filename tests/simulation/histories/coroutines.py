"""Functions that can pause and go on later. They are greenlets, which switch at almost no cost."""

from __future__ import annotations

from collections.abc import Callable

from greenlet import getcurrent, greenlet

from wal_sink.testing import Crash


class Coroutine:
    """A function that runs until it pauses, each time it is resumed."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._greenlet = greenlet(self._run)
        self.error: BaseException | None = None
        self.result: object = None

    @property
    def done(self) -> bool:
        return self._greenlet.dead

    def resume(self) -> None:
        """Let it run until it pauses or ends. `error` holds the exception that it raised."""
        self._give_control(self._greenlet.switch)

    def kill(self) -> None:
        """End it where it stands."""
        if not self.done:
            self._give_control(lambda: self._greenlet.throw(Crash("ended where it stood")))

    def pause(self) -> None:
        """Pause. Only the function itself may call this."""
        assert self._greenlet.parent is not None
        self._greenlet.parent.switch()

    def _give_control(self, switch: Callable[[], object]) -> None:
        self._greenlet.parent = getcurrent()  # control returns here
        _running.append(self)
        switch()
        _running.pop()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - the code that resumed it looks at the error
            self.error = error


def running() -> Coroutine | None:
    """The coroutine that calls this; None outside of any coroutine."""
    return _running[-1] if _running else None


_running: list[Coroutine] = []

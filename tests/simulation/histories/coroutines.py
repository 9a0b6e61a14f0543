"""Functions that can be stopped in the middle and go on later. Each has a thread; at most one runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal_sink.testing import Crash


class Coroutine:
    """A function that runs until it pauses, as often as it is resumed. Its thread is used again by later ones."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._thread = _idle.pop() if _idle else _Thread()
        self._killed = False
        self.done = False
        self.error: BaseException | None = None
        self.result: object = None

    def resume(self) -> None:
        """Let it run until it pauses or ends. What it raised lies in `error`."""
        _running.append(self)
        self._thread.give_control(self._run)
        _running.pop()
        if self.done:
            _idle.append(self._thread)

    def kill(self) -> None:
        """End it where it stands."""
        if not self.done:
            self._killed = True
            self.resume()

    def pause(self) -> None:
        """To be called by the function itself."""
        self._thread.give_back()
        if self._killed:
            raise Crash("ended where it stood")

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - looked at by who resumed it
            self.error = error
        self.done = True


def running() -> Coroutine | None:
    """The coroutine that calls this; None outside of all."""
    return _running[-1] if _running else None


_idle: list[_Thread] = []
_running: list[Coroutine] = []


class _Thread:
    """Control is with the thread, or with who gave it."""

    def __init__(self) -> None:
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], object] | None = None
        threading.Thread(target=self._loop, daemon=True).start()

    def give_control(self, work: Callable[[], object]) -> None:
        """Start `work`, or go on with it where it gave control back."""
        if self._work is None:
            self._work = work
        self._go.release()
        self._back.acquire()

    def give_back(self) -> None:
        self._back.release()
        self._go.acquire()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            assert self._work is not None
            self._work()
            self._work = None
            self._back.release()

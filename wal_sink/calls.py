"""Calling a user's sink with a limit on time.

A call that hangs cannot be ended from outside; it can only be left behind, and its outcome is then unknown.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from wal_sink.texts import repr_of

T = TypeVar("T")


class CallTimedOutError(Exception):
    """The call did not return in time; whether it had its effect is unknown. It may still be running."""


class ProgramExitError(Exception):
    """The call raised what is meant to end a program (`SystemExit`, `KeyboardInterrupt`); the message says which."""


class Caller(Protocol):
    """Runs every call of one sink instance on one thread: many clients refuse to be shared between threads."""

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        """The function's result, or its exception; `CallTimedOutError` after `timeout_s` seconds."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a call that timed out may still be running."""
        ...

    def close(self) -> None:
        """End the thread, unless a call that timed out still holds it."""
        ...


class DirectCaller:
    """Calls on the caller's own thread, without a limit: for simulations."""

    busy = False

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:  # noqa: ARG002
        return function(*args)

    def close(self) -> None:
        return


class ThreadCaller:
    """Calls on a daemon thread of its own, made at the first call.

    What the called code raises to end the program becomes a `ProgramExitError`: no sink may end a run that way.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left_behind = False

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        if self._left_behind:
            raise CallTimedOutError("an earlier call of this sink is still running")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="wal-sink-call", daemon=True)
            self._thread.start()
        self._requests.put((function, args))
        try:
            returned, value = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self._left_behind = True
            raise CallTimedOutError(f"no answer within {timeout_s:g} s") from None
        if returned:
            result: T = value
            return result
        raise value

    @property
    def busy(self) -> bool:
        return self._left_behind and self._answers.empty()

    def close(self) -> None:
        self._requests.put(None)

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            function, args = request
            try:
                answer = (True, function(*args))
            except Exception as error:  # noqa: BLE001 - handed to the calling thread, whatever it is
                answer = (False, error)
            except BaseException as error:  # noqa: BLE001 - nobody else would ever see it
                answer = (False, _exit_error(error))
            self._answers.put(answer)


def _exit_error(error: BaseException) -> ProgramExitError:
    if isinstance(error, SystemExit):
        return ProgramExitError(f"called sys.exit({'' if error.code is None else repr_of(error.code)})")
    return ProgramExitError(f"raised {type(error).__name__}")

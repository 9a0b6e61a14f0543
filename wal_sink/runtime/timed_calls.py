"""Calling a user's sink with a limit on time.

A call that hangs cannot be ended from outside; it can only be left behind, and its outcome is then unknown.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol, TypeVar

from wal_sink.reporting.texts import repr_of

T = TypeVar("T")


class CallTimedOutError(Exception):
    """The call did not return in time; whether it had its effect is unknown. It may still be running."""


class InUseError(Exception):
    """The call was not made: another call of the same object is still running."""


class ProgramExitError(Exception):
    """The call raised what is meant to end a program (`SystemExit`, `KeyboardInterrupt`); the message says which."""


class TimedCall(Protocol):
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


class DirectCall:
    """Calls on the caller's own thread, without a limit: for simulations."""

    busy = False

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:  # noqa: ARG002
        return function(*args)

    def close(self) -> None:
        return


class ThreadCall:
    """Calls on a daemon thread of its own, made at the first call.

    What the called code raises to end the program becomes a `ProgramExitError`: no sink may end a run that way.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left_behind = False
        self._process = 0

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        if self._left_behind:
            raise CallTimedOutError("an earlier call of this sink is still running")
        if self._thread is None:
            self._process = os.getpid()
            thread = threading.Thread(target=self._work, name="wal-sink-call", daemon=True)
            thread.start()  # raises where the system has no more threads: then the next call tries again
            self._thread = thread
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
                with _alone(function):
                    answer = (True, function(*args))
            except Exception as error:  # noqa: BLE001 - handed to the calling thread, whatever it is
                answer = (False, error)
            except BaseException as error:  # noqa: BLE001 - nobody else would ever see it
                answer = (False, _exit_error(error))
            self._end_fork(answer[1])
            self._answers.put(answer)

    def _end_fork(self, answer: object) -> None:
        """End a process that the called code forked and that came back from it: nobody there waits for the answer, so
        that it would live for ever, with every file and socket of its parent.
        """
        if os.getpid() != self._process:
            os._exit(1 if isinstance(answer, BaseException) else 0)


_in_use: dict[tuple[int, int], object] = {}
"""By process and id, the objects of which a method is running. A call that was left behind stays here until it ends."""


@contextmanager
def _alone(function: Callable[..., object]) -> Iterator[None]:
    """While a method of an object runs, no other caller of this process calls one. Of a function nothing is known."""
    if not isinstance(function, MethodType):
        yield
        return
    thing, mine = function.__self__, object()
    key = (os.getpid(), id(thing))
    if _in_use.setdefault(key, mine) is not mine:
        raise InUseError(f"an earlier call of this {type(thing).__name__} is still running: it was not called")
    try:
        yield
    finally:
        del _in_use[key]


def _exit_error(error: BaseException) -> ProgramExitError:
    if isinstance(error, SystemExit):
        return ProgramExitError(f"called sys.exit({'' if error.code is None else repr_of(error.code)})")
    return ProgramExitError(f"raised {type(error).__name__}")

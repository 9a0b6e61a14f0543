"""Calls a user's sink with a time limit.

A call that hangs cannot be ended from outside. It is abandoned, and its outcome is then unknown.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol, TypeVar

from wal_sink.reporting.logs import Subject, logging_as, subject
from wal_sink.reporting.texts import repr_of

T = TypeVar("T")


class CallTimedOutError(Exception):
    """The call did not return in time. Its outcome is unknown, and it may still be running."""


class InUseError(Exception):
    """The call was not made: another call of the same object or, of another run, of the same sink is still running."""


class ProgramExitError(Exception):
    """The call raised an exception that ends a program (`SystemExit`, `KeyboardInterrupt`). The message names it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The purpose of the calls of one run: no other run of this process calls for one of these while they last."""

    run_id: str = ""
    things: tuple[Hashable, ...] = ()


NO_CLAIM = Claim()


class TimedCall(Protocol):
    """Runs every call of one sink instance on the same thread: many clients must not be shared between threads."""

    claim: Claim

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        """The function's result, or its exception. Raises `CallTimedOutError` after `timeout_s` seconds."""
        ...

    @property
    def busy(self) -> bool:
        """Return whether a call that timed out may still be running."""
        ...

    def close(self) -> None:
        """End the thread, unless a call that timed out still occupies it."""
        ...


class DirectCall:
    """Calls on the caller's own thread, without a time limit; for simulations."""

    busy = False
    claim = NO_CLAIM

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:  # noqa: ARG002
        return function(*args)

    def close(self) -> None:
        return


class ThreadCall:
    """Calls on a separate daemon thread, which the first call starts.

    All calls run in the context of that thread, so what `open` sets there (the precision of decimals, a `ContextVar`)
    is there in `write` and `close`. Only the subject of log records comes from the caller.

    An exception that would end the program becomes a `ProgramExitError`: no sink may end a run that way.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Subject, Callable[..., Any], tuple[Any, ...]] | None]
        self._requests = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left_behind = False
        self.claim = NO_CLAIM

    def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        if self._left_behind:
            raise CallTimedOutError("an earlier call of this sink is still running")
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="wal-sink-call", daemon=True)
            thread.start()  # raises if the system has no more threads; then the next call tries again
            self._thread = thread
        try:
            self._requests.put((subject(), function, args))
            returned, value = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self._left_behind = True
            raise CallTimedOutError(f"no answer within {timeout_s:g} s") from None
        except BaseException:  # Ctrl-C: the next call would get the answer of this one
            self._left_behind = True
            raise
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
        process = os.getpid()
        while (request := self._requests.get()) is not None:
            about, function, args = request
            try:
                with logging_as(about), _alone(function, self.claim):
                    answer = (True, function(*args))
            except Exception as error:  # noqa: BLE001 - passed to the calling thread, whatever it is
                answer = (False, error)
            except BaseException as error:  # noqa: BLE001 - no other code would see it
                answer = (False, _exit_error(error))
                if os.getpid() != process:  # a child that the sink forked: nobody there reads the answer
                    os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
            self._answers.put(answer)


_running: dict[tuple[int, Hashable], list[object]] = {}
"""The owners of the calls that run, by process and by what they are for. An abandoned call stays here until it ends."""


@contextmanager
def _alone(function: Callable[..., object], claim: Claim) -> Iterator[None]:
    """Let only one caller of this process run a method of an object at a time, and only one run call for what its claim
    names. Plain functions without a claim are not restricted.
    """
    wanted: dict[Hashable, object] = dict.fromkeys(claim.things, claim.run_id)
    what = "sink, of another run in this process,"
    if isinstance(function, MethodType):
        wanted[("method", id(function.__self__))] = object()
        what = type(function.__self__).__name__
    owners = [(_running.setdefault((os.getpid(), thing), []), owner) for thing, owner in wanted.items()]
    for running, owner in owners:
        running.append(owner)
    try:
        if any(other != owner for running, owner in owners for other in running):
            raise InUseError(f"an earlier call of this {what} is still running, so this call was not made")
        yield
    finally:
        for running, owner in owners:
            running.remove(owner)


def _exit_error(error: BaseException) -> ProgramExitError:
    if isinstance(error, SystemExit):
        return ProgramExitError(f"called sys.exit({'' if error.code is None else repr_of(error.code)})")
    return ProgramExitError(f"raised {type(error).__name__}")


def within(seconds: float, name: str, call: Callable[[], T]) -> T:
    """The result of the call, or its error. For the end of a process, which waits only so long for a store.

    Raises `TimeoutError` after so many seconds; then the call goes on. It runs on a daemon thread of this name, which
    keeps no process alive. Where the interpreter starts no more threads, it runs here, without a limit.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised on the thread of the caller
            answer.set_exception(error)

    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        work()
    return answer.result(seconds)

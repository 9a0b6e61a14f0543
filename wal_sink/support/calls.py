"""Calls at the same time, and calls with a time limit.

Calls that wait for nothing but their own answers are made several at once. A user's sink is called with a time limit.

A call that hangs cannot be ended from outside. It is abandoned, and its outcome is then unknown.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Generic, Protocol, TypeVar

from wal_sink.support.logs import Subject, logging_as, subject
from wal_sink.support.texts import repr_of

T = TypeVar("T")
R = TypeVar("R")

MOST = 16
"""The most calls at once."""
INTERRUPTED_S = 5.0
"""How long Ctrl-C waits for the calls that other threads began. One that hangs is left running, on a daemon thread."""


class SideBySide(Protocol):
    """`side_by_side`, or what a simulation has in its place."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Sequence[R]: ...


def in_turn(function: Callable[[T], R], items: Iterable[T]) -> Sequence[R]:
    """The results of the function, called for one item after the other; for simulations."""
    return [function(item) for item in items]


def side_by_side(function: Callable[[T], R], items: Iterable[T]) -> Sequence[R]:
    """The results of the function in the order of the items. Up to `MOST` calls run at once: one on the caller's
    thread, the others on daemon threads, of whose context only the subject of log records is the caller's.

    Raises the error of the first item that has one. Calls that have not begun by then are left out. It returns or
    raises only after the last call that began has ended. If the system has no more threads, fewer calls run at once.
    Ctrl-C or another exit on the caller's thread is raised whatever the other calls do, after `INTERRUPTED_S` at most.
    The threads are none of an executor of `concurrent.futures`: those accept nothing once the main thread has ended,
    and a process waits for them at its exit.
    """
    calls = _Calls(function, items)
    try:
        _make(calls)
    except BaseException:  # an exit: the errors of the calls are among their answers
        calls.leave(INTERRUPTED_S)
        raise
    return calls.results()


def _make(calls: _Calls[T, R]) -> None:
    helpers: list[threading.Thread] = []
    for _ in range(min(MOST, calls.count) - 1):
        helper = threading.Thread(target=calls.work_about, args=(subject(),), name="wal-sink-beside", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no more threads; the others do the work
            break
        helpers.append(helper)
    calls.work()
    for helper in helpers:
        helper.join()


class _Calls(Generic[T, R]):
    """The calls that are left to make, and the answers so far. Shared by the threads."""

    def __init__(self, function: Callable[[T], R], items: Iterable[T]) -> None:
        self._function = function
        self._items = list(items)
        self._changed = threading.Condition()
        self._next = self._running = 0
        self._answers: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}
        self._thread = threading.get_ident()

    @property
    def count(self) -> int:
        return len(self._items)

    def work_about(self, given: Subject) -> None:
        """Call `work` with the subject of the caller's log records."""
        with logging_as(given):
            self.work()

    def work(self) -> None:
        """Make calls until none is left, or one failed. On the caller's thread, raises an exit such as Ctrl-C."""
        while (number := self._take()) is not None:
            try:
                self._answers[number] = self._function(self._items[number])
            except BaseException as error:  # raised on the caller's thread, whatever it is
                self._errors[number] = error
                if not isinstance(error, Exception) and threading.get_ident() == self._thread:
                    raise
            finally:
                self._end_call()

    def leave(self, timeout_s: float) -> None:
        """Begin no more calls, and wait for those that began, at most `timeout_s` seconds."""
        with self._changed:
            self._next = self.count
            self._changed.wait_for(lambda: not self._running, timeout_s)

    def results(self) -> Sequence[R]:
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._answers[number] for number in range(self.count)]

    def _take(self) -> int | None:
        with self._changed:
            if self._errors or self._next == self.count:
                return None
            self._next += 1
            self._running += 1
            return self._next - 1

    def _end_call(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


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

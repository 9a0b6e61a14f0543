"""Calls that wait for nothing but their own answers, several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from wal_sink.reporting.logs import Subject, logging_as, subject

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
        self._caller = threading.get_ident()

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
                if not isinstance(error, Exception) and threading.get_ident() == self._caller:
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

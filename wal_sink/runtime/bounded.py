"""A call that the end of a process waits for only so long, such as a request to a store that may not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, name: str, call: Callable[[], T]) -> T:
    """The result of the call, or its error. Raises `TimeoutError` after so many seconds; then the call goes on.

    It runs on a daemon thread of this name, which keeps no process alive. Where the interpreter starts no more threads,
    it runs here, without a limit.
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

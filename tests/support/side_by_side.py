"""The same work on several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.support.waiting import PATIENCE_S

T = TypeVar("T")


def side_by_side(times: int, work: Callable[[], T]) -> list[T]:
    """Return the result of each thread. None begins before all are ready. Raises the first thread's error."""
    start = threading.Barrier(times)

    def begun() -> T:
        start.wait(PATIENCE_S)
        return work()

    with ThreadPoolExecutor(times) as pool:
        return [future.result() for future in [pool.submit(begun) for _ in range(times)]]

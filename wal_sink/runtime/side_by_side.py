"""Requests that wait for nothing but their own answers, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST = 16
"""The most requests at once."""


class SideBySide(Protocol):
    """`side_by_side`, or what a simulation has in its place."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Sequence[R]: ...


def in_turn(function: Callable[[T], R], items: Iterable[T]) -> Sequence[R]:
    """The results of the function, called for one item after the other; for simulations."""
    return [function(item) for item in items]


def side_by_side(function: Callable[[T], R], items: Iterable[T]) -> Sequence[R]:
    """The results of the function in the order of the items. Up to `MOST` calls run at once, each on its own thread.

    Raises the error of the first item that has one. Calls that have not begun by then are left out. It returns or
    raises only after the last call that began has ended.
    """
    waiting = list(items)
    if len(waiting) < 2:
        return in_turn(function, waiting)
    with ThreadPoolExecutor(min(MOST, len(waiting)), thread_name_prefix="wal-sink-requests") as threads:
        return list(threads.map(function, waiting))

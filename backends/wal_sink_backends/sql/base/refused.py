"""The search for the rows that a database refuses among those of one statement, which it does not name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wal_sink.errors import PermanentError
from wal_sink.runtime.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SEARCH_S = 30.0
"""Well below what an attempt to deliver may take."""


class Apart(str):
    """A reason for which a database refuses rows together that it may take one after the other."""

    __slots__ = ()


def refused_rows(
    numbers: Sequence[int], attempt: Callable[[int, int], str | None], *, within_s: float = _SEARCH_S
) -> dict[int, str]:
    """Insert all rows, or find out which of them the database refuses, and why, by their index in the chunk.

    `attempt(first, end)` inserts a run of them whole and returns None, or inserts none and returns the reason. What was
    inserted stays while the rest is tried, so that of two rows with one key the second is refused. The search ends
    `within_s` seconds after the first attempt, with those found so far. `PermanentError` if there are none by then, or
    if the rows are refused together and each of them is taken, unless each reason for it is one to take them `Apart`.
    """
    refused: dict[int, str] = {}
    reasons: list[str] = []
    deadline_s = math.inf
    runs = [(0, len(numbers))] if numbers else []
    while runs and SYSTEM.monotonic_s() < deadline_s:
        first, end = runs.pop()
        reason = attempt(first, end)
        if reason is None:
            continue
        if not reasons:
            deadline_s = SYSTEM.monotonic_s() + within_s
        reasons.append(reason)
        if end - first == 1:
            refused[numbers[first]] = str(reason)
        else:
            middle = (first + end) // 2
            runs += [(middle, end), (first, middle)]  # the first half comes first
    if reasons and not refused:
        if runs:
            raise PermanentError(
                f"refused: {reasons[0]}; too many rows, or too slow, to name one within {within_s:g} s: correct the "
                "rows in the query, or deliver smaller chunks"
            )
        if lasting := [reason for reason in reasons if not isinstance(reason, Apart)]:
            raise PermanentError(f"refused as a whole, though each row alone is taken: {lasting[0]}")
    return refused

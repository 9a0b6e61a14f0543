"""The search for the rows of a statement that a database refuses without naming them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wal_sink.errors import PermanentError
from wal_sink.runtime.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SEARCH_S = 30.0
"""Well below the time limit of a delivery attempt."""


class Apart(str):
    """Why a database refuses rows together that it may take one after the other."""

    __slots__ = ()


def refused_rows(
    numbers: Sequence[int], attempt: Callable[[int, int], str | None], *, within_s: float = _SEARCH_S
) -> dict[int, str]:
    """Insert all rows; return those that the database refuses, with reasons, by their index in the chunk.

    `attempt(first, end)` inserts a run of rows whole and returns None, or inserts none and returns the reason. Inserted
    rows stay while the rest is tried, so that of two rows with one key the second is refused. The search ends
    `within_s` seconds after the first refusal, with the rows found so far. `PermanentError` if none was found by then,
    or if rows are refused together although each of them is taken, unless every reason for that is `Apart`.
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
                f"refused: {reasons[0]}. The refused row could not be found within {within_s:g} s, because there are "
                "too many rows or the database is too slow. Correct the rows in the query, or deliver smaller chunks"
            )
        if lasting := [reason for reason in reasons if not isinstance(reason, Apart)]:
            raise PermanentError(
                f"the chunk was refused as a whole, although each row alone was accepted: {lasting[0]}"
            )
    return refused

"""Rows of a statement that a database refuses or drops without naming them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.errors import PermanentError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a statement after which fewer rows are in the table than were sent, without an error."""

    sent: int
    kept: int

    def __str__(self) -> str:
        """The reason for rejecting them. Messages show about 200 characters of it."""
        return (
            f"the table kept {self.kept} of {self.sent} rows and gave no error: a trigger or the definition of the "
            "table drops rows. If this is intended, pass may_drop_rows=True"
        )


def reason_of(outcome: str | Dropped | None, *, may_drop: bool, what: str) -> str | None:
    """Why rows are not taken; None if they are, or if the user allowed the table to drop them."""
    if not isinstance(outcome, Dropped):
        return outcome
    if not may_drop:
        return str(outcome)
    _logger.info("%s: the table kept %d of %d rows, as may_drop_rows allows", what, outcome.kept, outcome.sent)
    return None


_SEARCH_S = 30.0
"""Well below the time limit of a delivery attempt."""
_STRANGE_ROWS = 100
"""Rows that are tried one by one although the database has taken none yet: it may take none at all."""


class Apart(str):
    """Why a database refuses rows together that it may take one after the other."""

    __slots__ = ()


class Unlisted(str):
    """An error in no list. It is a row's if the connection takes another row, and then refuses this one again."""

    __slots__ = ("error",)
    error: Exception


def refused_rows(
    numbers: Sequence[int],
    attempt: Callable[[int, int], str | None],
    start_over: Callable[[], object] = lambda: None,
    *,
    within_s: float = _SEARCH_S,
) -> dict[int, str]:
    """Insert all rows; return those that the database refuses, with reasons, by their index in the chunk.

    `attempt(first, end)` inserts a run of rows whole and returns None, or inserts none and returns the reason. Inserted
    rows stay while the rest is tried, so that of two rows with one key the second is refused. The search ends
    `within_s` seconds after the first refusal, with the rows found so far. `PermanentError` if none was found by then,
    or if rows are refused together although each of them is taken, unless every reason for that is `Apart`.

    If the reason of a row is `Unlisted`, `start_over()` takes back all rows, and they are tried once more. Raises this
    error unless another row was taken between the two refusals.
    """
    refused: dict[int, str] = {}
    reasons: list[str] = []
    doubted: dict[int, int] = {}  # by row: how many rows were taken before its first refusal
    taken, is_second = 0, False
    deadline_s = math.inf
    runs = [(0, len(numbers))] if numbers else []
    while runs and SYSTEM.monotonic_s() < deadline_s:
        first, end = runs.pop()
        reason = attempt(first, end)
        if reason is None:
            taken += end - first
        else:
            if not reasons:
                deadline_s = SYSTEM.monotonic_s() + within_s
            reasons.append(reason)
            if end - first > 1:
                middle = (first + end) // 2
                runs += [(middle, end), (first, middle)]  # the first half comes first
            elif not isinstance(reason, Unlisted) or taken > doubted.setdefault(first, taken):
                refused[numbers[first]] = str(reason)
            elif is_second or (not taken and len(doubted) == _STRANGE_ROWS):
                raise reason.error
        if doubted and not runs and not is_second:
            is_second, runs = True, [(0, len(numbers))]
            start_over()
    if reasons and not refused:
        _refuse_whole(reasons, within_s, is_searched=not runs)
    return refused


def _refuse_whole(reasons: Sequence[str], within_s: float, *, is_searched: bool) -> None:
    """Raise an error for a chunk of which no row is known to be refused, unless every reason is `Apart`."""
    if not is_searched:
        raise PermanentError(
            f"refused: {reasons[0]}. The refused row could not be found within {within_s:g} s, because there are "
            "too many rows or the database is too slow. Correct the rows in the query, or deliver smaller chunks"
        )
    if lasting := [reason for reason in reasons if not isinstance(reason, Apart)]:
        if isinstance(lasting[0], Unlisted):
            raise lasting[0].error
        raise PermanentError(f"the chunk was refused as a whole, although each row alone was accepted: {lasting[0]}")

"""Rows that a table drops without an error, found by the database's count."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.reporting.logs import logger_of

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

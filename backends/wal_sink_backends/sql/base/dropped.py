"""Rows that a table leaves out without an error, as the database's own count tells."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.reporting.logs import logger_of

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What came of a statement that was sent some rows: fewer are in the table, and no error was told."""

    sent: int
    kept: int

    def __str__(self) -> str:
        """The reason for rejecting them. Messages show about 200 characters of it."""
        return (
            f"the table kept {self.kept} of {self.sent} rows and told no error: a trigger or the table's definition "
            "drops rows. If that is meant, pass may_drop_rows=True"
        )


def reason_of(outcome: str | Dropped | None, *, may_drop: bool, what: str) -> str | None:
    """Why rows are not taken; None if they are, or are left out as the user allowed it."""
    if not isinstance(outcome, Dropped):
        return outcome
    if not may_drop:
        return str(outcome)
    _logger.info("%s: the table kept %d of %d rows, as may_drop_rows allows", what, outcome.kept, outcome.sent)
    return None

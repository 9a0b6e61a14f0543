"""The last error of a sink's committer, and whether it is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from wal_sink.errors import ConfigError, CorruptError, OutcomeUnknownError, StoreError
from wal_sink.inspection.ages import age_s
from wal_sink.redaction import redacted
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.sink_records import ErrorRecord

_LOOKS = 3
"""How often the newest record is looked for: between listing and read, a newer one may replace it."""
_OUTAGES = frozenset({StoreError.__name__, OutcomeUnknownError.__name__})
"""Errors of a store that did not answer. A committer with nothing to do meets them when it looks for its next batch."""


@dataclass(frozen=True, slots=True)
class SinkError:
    """The last error that a committer left."""

    batch_id: int
    """The batch that the sink lacked; -1 if the record cannot be read."""
    attempts: int
    """Failed attempts in a row when it was recorded; there may have been more since."""
    error_class: str
    text: str
    since: str
    """When the first of these attempts failed."""
    at: str
    """When it was recorded."""
    age_s: float | None
    """Seconds since `since`."""
    term: int
    is_over: bool
    """Whether the sink has the batch by now. Also if only the store failed, and there is no batch that it lacks."""


def read_error(log: Log, folder: str, *, expected: int, lacks_none: bool, now: datetime) -> SinkError | None:
    """The last error of a sink whose next batch is `expected`; None if there is none. One listing, and perhaps a read.

    `lacks_none`: no batch is known that the sink lacks. Then nobody will deliver one and end the error of an outage.

    A damaged record is an answer too: an error that cannot be read must not look like none.
    """
    for _ in range(_LOOKS):
        number = max(log.numbers(paths.errors(folder)), default=None)
        if number is None:
            return None
        try:
            record = log.find(ErrorRecord, paths.error(folder, number))
        except (CorruptError, ConfigError) as error:
            return SinkError(-1, 0, type(error).__name__, redacted(error), "", "", None, 0, is_over=False)
        if record is not None:
            return _of(record, expected, now, lacks_none=lacks_none)
    return None


def _of(record: ErrorRecord, expected: int, now: datetime, *, lacks_none: bool) -> SinkError:
    was_outage = lacks_none and record.error_class in _OUTAGES
    return SinkError(
        batch_id=record.batch_id,
        attempts=record.attempts,
        error_class=record.error_class,
        text=record.text,
        since=record.since,
        at=record.created,
        age_s=age_s(record.since, now),
        term=record.term,
        is_over=record.batch_id < expected or was_outage,
    )

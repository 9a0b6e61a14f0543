"""How a call of a sink fails: the kinds of failure, and which error each becomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import (
    CorruptError,
    DeliveryError,
    FencedError,
    ForgottenError,
    HistoryError,
    OutcomeUnknownError,
    StoreError,
    WalSinkError,
)
from wal_sink.reporting.layers import said_once


class FailureKind(StrEnum):
    RETRIABLE = "retriable"
    UNKNOWN = "unknown"
    """The sink may have the chunk."""
    LOST = "lost"
    """The same, and whoever sent it may still be sending."""
    GONE = "gone"
    """What a two-phase sink prepared is no longer there; it may have been committed. Handled where it is met."""
    NEVER_COMMITTED = "never committed"
    """The same, and it was certainly not committed."""
    PERMANENT = "permanent"
    FENCED = "fenced"
    CORRUPT = "corrupt"
    HISTORY = "history"
    FORGOTTEN = "forgotten"
    """A transactional target no longer has what it acknowledged; nothing of the chunk was written."""
    STOPPED = "stopped"
    """The run asked to end; not a failure of the sink."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str
    retry_after_s: float = 0.0
    """No attempt before so many seconds: the target said so."""
    term: int = 0
    """Of a fenced one: the term that the target names; 0 if it names none."""


class SinkFailedError(Exception):
    """Leaves the calls of a sink with a failure that is the sink's or the store's. Never leaves this package."""

    def __init__(self, kind: FailureKind, message: str, *, retry_after_s: float = 0.0, term: int = 0) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, retry_after_s, term)


def kind_of(error: WalSinkError) -> FailureKind:
    if isinstance(error, FencedError):
        return FailureKind.FENCED
    if isinstance(error, CorruptError):
        return FailureKind.CORRUPT
    if isinstance(error, HistoryError):
        return FailureKind.HISTORY
    if isinstance(error, ForgottenError):
        return FailureKind.FORGOTTEN
    if isinstance(error, (StoreError, OutcomeUnknownError)):
        return FailureKind.UNKNOWN
    return FailureKind.PERMANENT


def failure_error(failure: Failure, what: str) -> WalSinkError:
    """The exception a committer raises for a failure it cannot retry."""
    errors: dict[FailureKind, type[WalSinkError]] = {
        FailureKind.FENCED: FencedError,
        FailureKind.CORRUPT: CorruptError,
        FailureKind.HISTORY: HistoryError,
    }
    return errors.get(failure.kind, DeliveryError)(said_once(f"{what}: {failure.message}"))

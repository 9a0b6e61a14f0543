"""Kinds of failure of a sink's call, and the error that each becomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import (
    CorruptError,
    DeliveryError,
    FencedError,
    HistoryError,
    OutcomeUnknownError,
    StoreError,
    WalSinkError,
)
from wal_sink.support.texts import said_once


class ForgottenError(OutcomeUnknownError):
    """The target lost rows before the present chunk that it had acknowledged. Nothing of the chunk was written.

    Delivery decides by it: it reads all positions of the batch and sends the missing rows again.
    """


class FailureKind(StrEnum):
    """Kind of a failure. It decides whether delivery retries, resolves the outcome first, or stops."""

    RETRIABLE = "retriable"
    UNKNOWN = "unknown"
    """The sink may have the chunk."""
    LOST = "lost"
    """The sink may have the chunk, and the sender may still be sending it."""
    GONE = "gone"
    """The prepared transaction is gone from the target. It may have been committed. The place that meets it handles it.
    """
    NEVER_COMMITTED = "never committed"
    """The prepared transaction is gone from the target, and it was certainly not committed."""
    PERMANENT = "permanent"
    FENCED = "fenced"
    CORRUPT = "corrupt"
    HISTORY = "history"
    FORGOTTEN = "forgotten"
    """A transactional target lost rows that it had acknowledged. Nothing of the chunk was written."""
    STOPPED = "stopped"
    """The run is ending. This is not a failure of the sink."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call of a sink, as plain data."""

    kind: FailureKind
    message: str
    retry_after_s: float = 0.0
    """Seconds to wait before the next attempt, as the target requested."""
    term: int = 0
    """For a fenced failure: the term that the target names; 0 if it names none."""


class SinkFailedError(Exception):
    """Failed call of a sink; the cause is the sink or the store. Never leaves this package."""

    def __init__(self, kind: FailureKind, message: str, *, retry_after_s: float = 0.0, term: int = 0) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, retry_after_s, term)


def kind_of(error: WalSinkError) -> FailureKind:
    """The kind of failure that an error of wal-sink stands for."""
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


def failure_of(error: SinkFailedError | WalSinkError) -> Failure:
    """The failure that an error stands for, of the sink or of wal-sink itself."""
    return error.failure if isinstance(error, SinkFailedError) else Failure(kind_of(error), str(error))


def failure_error(failure: Failure, what: str) -> WalSinkError:
    """The exception that a committer raises for a failure that it cannot retry."""
    errors: dict[FailureKind, type[WalSinkError]] = {
        FailureKind.FENCED: FencedError,
        FailureKind.CORRUPT: CorruptError,
        FailureKind.HISTORY: HistoryError,
    }
    return errors.get(failure.kind, DeliveryError)(said_once(f"{what}: {failure.message}"))

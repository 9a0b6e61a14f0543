"""Retries: budgets that count from the last progress, and backoff with jitter (tenacity)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from wal_sink.delivery.dispatch import ServedSink
from wal_sink.redaction import redacted
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import said_once
from wal_sink.runtime.clock import Runtime
from wal_sink.settings import Retry
from wal_sink.telemetry.events import AttemptFailed
from wal_sink.telemetry.hooks import Events

FIRST_WAIT_S = 0.1
WAIT_GROWTH = 4.0
"""With it a failed request is repeated soon, and eight attempts still outlast a server's restart."""
LONGEST_WAIT_S = 30.0
_MOST_GROWTHS = 16
"""More than it takes to the longest wait. The bound only keeps the power small."""

_logger = logger_of(__name__)
T = TypeVar("T")


class AttemptFailedError(Exception):
    """One attempt failed. `retry_after_s`: the least time until the next one, as far as the budget permits. `kind`: the
    kind of the failure.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0, kind: str = "retriable") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.kind = kind


OnFailure = Callable[[int, float | None, BaseException | None], None]
"""Is told the number of a failed attempt, the wait before the next one (None if none follows), and the error."""


def tell_nobody(_attempt: int, _next_in_s: float | None, _error: BaseException | None) -> None:
    """The `OnFailure` of callers that only log."""


def all_told(*listeners: OnFailure) -> OnFailure:
    """Tell each of several listeners, in their order."""

    def tell(attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        for listener in listeners:
            listener(attempt, next_in_s, error)

    return tell


@dataclass(slots=True)
class Budget:
    """Attempts and seconds that may pass without progress."""

    runtime: Runtime
    retry: Retry
    failures: int = 0
    since_s: float = 0.0
    next_wait_s: float = 0.0
    """Before the next attempt, if there is one."""
    on_failure: OnFailure = tell_nobody

    @classmethod
    def of(cls, retry: Retry, runtime: Runtime, on_failure: OnFailure = tell_nobody) -> Budget:
        return cls(runtime, retry, since_s=runtime.monotonic_s(), on_failure=on_failure)

    def note_progress(self) -> None:
        self.failures = 0
        self.since_s = self.runtime.monotonic_s()

    def spent_s(self) -> float:
        return self.runtime.monotonic_s() - self.since_s

    def call(
        self,
        function: Callable[[], T],
        *errors: type[BaseException],
        sleep: Callable[[float], None],
        what: str,
    ) -> T:
        """Call a function, and again after any of `errors`. Raises the last error once the budget is spent."""
        try:
            return function()  # most calls succeed, and then nothing more is done
        except errors as error:
            first = [error]  # `_after` takes it out: the error's traceback refers to this frame
        retrying = Retrying(
            retry=retry_if_exception_type(errors),
            stop=lambda state: self._note_failure(state, what),
            wait=self._wait_s,
            sleep=sleep,
            reraise=True,
        )
        return retrying(_after(first, function))

    def _note_failure(self, state: RetryCallState, what: str) -> bool:
        """Count and log a failure. True if the budget is spent now."""
        self.failures += 1
        spent = self.failures >= self.retry.attempts or self.spent_s() >= self.retry.budget_s
        error = _error_of(state)
        head = f"{what}: attempt {self.failures} of {self.retry.attempts} failed at {_clock(self.runtime.now())}"
        _logger.warning("%s", said_once(f"{head}, {'no further attempt follows' if spent else self._next()}: {error}"))
        self.on_failure(self.failures, None if spent else self.next_wait_s, error)
        return spent

    def _next(self) -> str:
        due = self.runtime.now() + timedelta(seconds=self.next_wait_s)
        return f"next in {self.next_wait_s:.1f} s at {_clock(due)}"

    def _wait_s(self, state: RetryCallState) -> float:
        """The wait before the next attempt, with jitter, so that committers that failed together do not retry together.
        It is longer if the target asks for that.

        Tenacity calls this before `_note_failure` has counted the failure.
        """
        highest = min(LONGEST_WAIT_S, FIRST_WAIT_S * WAIT_GROWTH ** min(self.failures, _MOST_GROWTHS))
        own_s = highest * (0.5 + self.runtime.new_random().random() / 2)
        error = _error_of(state)
        asked_s = error.retry_after_s if isinstance(error, AttemptFailedError) else 0.0
        self.next_wait_s = max(own_s, min(asked_s, self.retry.budget_s - self.spent_s()))
        return self.next_wait_s


def failure_teller(events: Events, served_sink: ServedSink, batch: Callable[[], int | None]) -> OnFailure:
    """A function that tells the failed attempts of a budget."""

    def tell(attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        if not events.is_heard:
            return  # before the text is masked
        events.tell(
            AttemptFailed,
            sink=served_sink.name,
            batch=batch(),
            attempt=attempt,
            max_attempts=served_sink.delivery.retry.attempts,
            next_in_s=next_in_s,
            kind=kind_of_failure(error),
            error=redacted(error),
        )

    return tell


def kind_of_failure(error: BaseException | None) -> str:
    """The kind of a failed attempt, for events: that of the failure of a sink, else the class of the error."""
    return error.kind if isinstance(error, AttemptFailedError) else type(error).__name__


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%SZ")


def _after(first: list[BaseException], function: Callable[[], T]) -> Callable[[], T]:
    """The function, whose first attempt has failed already."""

    def call() -> T:
        if first:
            raise first.pop()
        return function()

    return call

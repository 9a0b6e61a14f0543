"""When to try again, and when to give up: budgets that count from the last progress, backoff with jitter (tenacity)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from wal_sink.logs import logger_of
from wal_sink.runtime import Runtime
from wal_sink.settings import Delivery

FIRST_WAIT_S = 0.1
WAIT_GROWTH = 4.0
"""So that a failed request is repeated at once and eight attempts still outlast a server's restart."""
LONGEST_WAIT_S = 30.0

_logger = logger_of(__name__)
T = TypeVar("T")


class AttemptFailedError(Exception):
    """One attempt failed. `retry_after_s`: the next one waits at least so long, if the budget permits."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Budget:
    """Attempts and seconds that may pass without progress."""

    runtime: Runtime
    max_attempts: int
    budget_s: float
    failures: int = 0
    since_s: float = 0.0

    @classmethod
    def of(cls, delivery: Delivery, runtime: Runtime) -> Budget:
        return cls(runtime, delivery.max_attempts, delivery.budget_s, since_s=runtime.monotonic_s())

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
        """Call a function, again after any of `errors`, until the budget is spent; then the last error is raised."""
        try:
            return function()  # most calls succeed, and cost nothing more
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
        """Whether the budget is spent now."""
        self.failures += 1
        spent = self.failures >= self.max_attempts or self.spent_s() >= self.budget_s
        error = state.outcome.exception() if state.outcome else None
        _logger.warning("%s: attempt %d failed%s: %s", what, self.failures, " for good" if spent else "", error)
        return spent

    def _wait_s(self, state: RetryCallState) -> float:
        """Jitter, so that committers that failed together do not come back together; or longer, if the target asks.

        Tenacity asks before `_note_failure` has counted this one.
        """
        highest = min(LONGEST_WAIT_S, FIRST_WAIT_S * WAIT_GROWTH ** min(self.failures, 16))
        own_s = highest * (0.5 + self.runtime.new_random().random() / 2)
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, AttemptFailedError) else 0.0
        return max(own_s, min(asked_s, self.budget_s - self.spent_s()))


def _after(first: list[BaseException], function: Callable[[], T]) -> Callable[[], T]:
    """The function, the first attempt of which has failed already."""

    def call() -> T:
        if first:
            raise first.pop()
        return function()

    return call

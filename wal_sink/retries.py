"""When to try again, and when to give up: budgets that count from the last progress, backoff with jitter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wal_sink.runtime import Runtime
from wal_sink.settings import Delivery

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0

_logger = logging.getLogger(__name__)
T = TypeVar("T")


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

    def retrying(self, *errors: type[BaseException], sleep: Callable[[float], None], what: str) -> Callable[..., Any]:
        """Calls a function again after any of `errors`, until the budget is spent; then the last error is raised."""

        def call(function: Callable[..., T], *args: object, **named: object) -> T:
            while True:
                try:
                    return function(*args, **named)
                except errors as error:
                    wait_s = self._wait_s()
                    if self._is_spent_by(error, what):
                        raise
                sleep(wait_s)

        return call

    def _is_spent_by(self, error: BaseException, what: str) -> bool:
        self.failures += 1
        spent = self.failures >= self.max_attempts or self.spent_s() >= self.budget_s
        _logger.warning("%s: attempt %d failed%s: %s", what, self.failures, " for good" if spent else "", error)
        return spent

    def _wait_s(self) -> float:
        """Jitter, so that committers that failed together do not come back together."""
        highest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self.failures, 16))
        return highest * (0.5 + self.runtime.new_random().random() / 2)

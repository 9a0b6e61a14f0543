"""Retries: budgets that count from the last progress, and backoff with jitter (tenacity).

`LastError` is the last error of a committer, as an object in the WAL where `wal-sink status` finds it. A delivery that
succeeds at once, or at its first retry, writes nothing. A failure that lasts is one object, however often it is
repeated. It is over as soon as the sink has its batch, and nothing is written then either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from wal_sink.errors import ConfigError, CorruptError, FencedError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import encode
from wal_sink.log.sink_records import ErrorRecord
from wal_sink.protocol.dispatch import ServedSink
from wal_sink.settings import Retry
from wal_sink.stores.base import ObjectExists
from wal_sink.support.clock import Runtime
from wal_sink.support.events import AttemptFailed, Events
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import said_once

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
    since_s: float
    failures: int = 0
    next_wait_s: float = 0.0
    """Before the next attempt, if there is one."""
    on_failure: OnFailure = tell_nobody

    @classmethod
    def of(cls, retry: Retry, runtime: Runtime, on_failure: OnFailure = tell_nobody) -> Budget:
        return cls(runtime, retry, runtime.monotonic_s(), on_failure=on_failure)

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


LONGEST_TEXT = 2000
FIRST_ATTEMPT = 2
"""The attempt whose failure is recorded: the first retry repairs most failures."""

_CHANGING = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
"""Parts of a text that differ at every attempt, such as times, ports and ids."""
_LOOKS = 2
"""How often the next number is looked for: another process may write one at the same time."""


@dataclass(slots=True)
class _Failing:
    """A batch that fails."""

    batch_id: int
    since: str
    """Time of its first failure, ISO 8601, UTC."""
    attempts: int = 0
    """The failures in a row since then."""


@dataclass(slots=True)
class LastError:
    """Records the failures of one committer. A failure to record one is a warning."""

    log: Log
    sink: str
    _failing: _Failing | None = None
    """The batch that failed last."""
    _told: tuple[str, str, int] | None = None
    """Class, text and batch of the last record, without the parts of the text that differ at every attempt."""
    _kept: list[str] | None = None
    """Paths of the records. None: not looked for yet."""

    def retried(self, error: BaseException, *, batch_id: int, attempts: int, term: int) -> None:
        """Note a failure after which another attempt may follow. `attempts`: in a row, this one included."""
        failing = self._begin(batch_id) if attempts == 1 else self._failing_at(batch_id)
        failing.attempts = attempts
        if attempts >= FIRST_ATTEMPT:
            self._note(failing, error, term)

    def gave_up(self, error: BaseException, *, batch_id: int, term: int) -> None:
        """Note the error that ends the delivery. One of a superseded process is not recorded: another one delivers."""
        if isinstance(error, FencedError):
            return
        failing = self._failing_at(batch_id)
        failing.attempts += 1
        self._note(failing, error, term)

    def _failing_at(self, batch_id: int) -> _Failing:
        failing = self._failing
        return failing if failing is not None and failing.batch_id == batch_id else self._begin(batch_id)

    def _begin(self, batch_id: int) -> _Failing:
        self._failing = failing = _Failing(batch_id, self.log.runtime.timestamp())
        return failing

    def _note(self, failing: _Failing, error: BaseException, term: int) -> None:
        name = error.kind if isinstance(error, AttemptFailedError) else type(error).__name__
        text = redacted(error)
        text = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
        told = (name, _CHANGING.sub("#", text), failing.batch_id)
        if told == self._told:
            return
        self._told = told  # also if it cannot be written: a store that does not answer must not delay each attempt
        try:
            self._replace(failing, name, text, term)
        except (WalSinkError, RuntimeError) as problem:  # a client may refuse to connect at the interpreter's end
            _logger.warning("sink %s: its last error was not recorded: %s", self.sink, problem)

    def _replace(self, failing: _Failing, name: str, text: str, term: int) -> None:
        """Create the next record, then delete those before it. A listing at first, with a read if there is one, then a
        create and a delete. Does nothing if a process with a higher term left the newest one.
        """
        for _ in range(_LOOKS):
            if self._kept is None:
                self._kept = [paths.error(self.sink, each) for each in self.log.numbers(paths.errors(self.sink))]
                if self._kept and self._is_of_newer(self._kept[-1], term):
                    self._kept = None
                    return
            number = 1 + max((paths.parse_number(path.rpartition("/")[2]) or 0 for path in self._kept), default=0)
            record = ErrorRecord(
                number=number,
                batch_id=failing.batch_id,
                attempts=failing.attempts,
                error_class=name,
                text=text,
                since=failing.since,
                run_id=self.log.run_id,
                term=term,
                **self.log.stamp(),
            )
            path, older = paths.error(self.sink, number), self._kept
            self._kept = None  # unless the answer is clear
            try:
                self.log.store.create(path, encode(record))  # once: a repetition would delay the delivery
            except ObjectExists:
                continue  # of another process, which wrote at the same time
            self._kept = [path]
            if older:
                self.log.store.delete(older)
            return

    def _is_of_newer(self, path: str, term: int) -> bool:
        """Whether a process that took over left a record. One that cannot be read is replaced."""
        try:
            newest = self.log.find(ErrorRecord, path)
        except (CorruptError, ConfigError):
            return False
        return newest is not None and newest.term > term

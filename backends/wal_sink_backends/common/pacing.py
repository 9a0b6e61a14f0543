"""Limits on how fast and how often a target is called: a rate, a circuit breaker and `Retry-After`, for any backend.

Their state belongs to the process, because a sink is opened anew for each delivery task. Processes know nothing of each
other, so on a cluster each executor's worker has a separate rate and breaker.
"""

from __future__ import annotations

import hashlib
import math
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from wal_sink.errors import ConfigError, PermanentError, RetryLaterError
from wal_sink.support.arguments import check_seconds
from wal_sink.support.clock import SYSTEM, Runtime
from wal_sink.support.secrets import mask_url


class NotNowError(RetryLaterError):
    """Nothing was sent: the breaker is open, or the rate leaves no room in time. Try again after `after_s` seconds."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """How fast one target is called, in one process. Plain data. Raises `ConfigError` for values that cannot work."""

    rows_per_s: float | None = None
    """Most rows a second, on average. The rows of one second may go at once, and a chunk always goes whole."""
    breaker_failures: int | None = None
    """After so many failures in a row, every call fails at once, without a request to the target."""
    breaker_pause_s: float = 30.0
    """Seconds for which calls fail so. Then one call is let through to see whether the target is back."""
    max_wait_s: float = 60.0
    """Most seconds that one call of the sink may wait in all: for the rate, or because the target said when to retry.
    Keep it below `Retry.attempt_timeout_s`.
    """

    def __post_init__(self) -> None:
        for name in ("rows_per_s", "breaker_failures", "breaker_pause_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r}: expected a number above 0")
        check_seconds("max_wait_s", self.max_wait_s)


class Patience:
    """The seconds that one call of a sink may still wait."""

    def __init__(self, most_s: float, runtime: Runtime = SYSTEM) -> None:
        self._left_s = most_s
        self._runtime = runtime

    def wait(self, seconds: float) -> bool:
        """Sleep. False at once if that is longer than the seconds left, and from then on."""
        if seconds > self._left_s:
            self._left_s = 0.0
            return False
        if seconds > 0:
            self._runtime.sleep_s(seconds)
        self._left_s -= seconds
        return True


class Pace:
    """The rate and the breaker of one target in this process. Safe for several threads."""

    def __init__(self, target: str, pacing: Pacing, runtime: Runtime = SYSTEM) -> None:
        self._target = target
        self._pacing = pacing
        self._bucket = TokenBucket(pacing.rows_per_s, runtime) if pacing.rows_per_s else None
        failures, pause_s = pacing.breaker_failures, pacing.breaker_pause_s
        self._breaker = Breaker(failures, pause_s, runtime) if failures else None

    def check_chunk(self, rows: int, what: str) -> None:
        """Raise `PermanentError` for a chunk that the rate can never let through in time."""
        rate, most_s = self._pacing.rows_per_s, self._pacing.max_wait_s
        if rate is not None and rows / rate > most_s:
            raise PermanentError(
                f"{what}: {rows} rows take {rows / rate:.0f} s at rows_per_s={rate:g}, more than max_wait_s={most_s:g} "
                f"permits. Stage smaller chunks, with Settings(chunk_rows={max(1, int(rate * most_s))}) or less. For "
                "chunks that are staged already, raise max_wait_s and Retry(attempt_timeout_s=…)"
            )

    def admit(self, rows: int, patience: Patience) -> None:
        """Return when so many rows may be sent. `NotNowError` while the breaker is open, or when patience is over."""
        if self._breaker and (left_s := self._breaker.closed_in_s()) > 0:
            raise NotNowError(
                f"{self._target} failed {self._pacing.breaker_failures} times in a row, so wal-sink sends it no "
                f"request for another {left_s:.1f} s (breaker_pause_s={self._pacing.breaker_pause_s:g})",
                after_s=left_s,
            )
        while self._bucket and (wait_s := self._bucket.take(rows)) > 0:
            if not patience.wait(wait_s):
                raise NotNowError(
                    f"{self._target}: rows_per_s left no room for {rows} rows within "
                    f"max_wait_s={self._pacing.max_wait_s:g}",
                    after_s=wait_s,
                )

    def note(self, *, alive: bool) -> None:
        """Record a call; `alive` tells whether the target answered in a way that shows it at work."""
        if self._breaker:
            self._breaker.note(alive=alive)


class TokenBucket:
    """Lets so many rows a second through, those of one second at once. A larger chunk waits for a full bucket, then the
    bucket goes into debt.
    """

    def __init__(self, rows_per_s: float, runtime: Runtime = SYSTEM) -> None:
        self._rate = rows_per_s
        self._most = max(1.0, rows_per_s)
        self._rows = self._most
        self._runtime = runtime
        self._at_s = runtime.monotonic_s()
        self._lock = threading.Lock()

    def take(self, rows: int) -> float:
        """0.0 if the rows may go now, and were taken; else the seconds to wait before the next call."""
        with self._lock:
            now_s = self._runtime.monotonic_s()
            self._rows = min(self._most, self._rows + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
            needed = min(rows, self._most)
            if self._rows < needed * (1 - 1e-9):  # rounding must not ask for a wait too short to be slept
                return (needed - self._rows) / self._rate
            self._rows -= rows
            return 0.0


class Breaker:
    """Closed until `failures` come in a row; then open for a pause, after which one call is let through as a probe."""

    def __init__(self, failures: int, pause_s: float, runtime: Runtime = SYSTEM) -> None:
        self._limit = failures
        self._pause_s = pause_s
        self._runtime = runtime
        self._failures = 0
        self._open_until_s = -math.inf
        self._lock = threading.Lock()

    def closed_in_s(self) -> float:
        """0.0 if a call may go; else the seconds until the next probe.

        A probe without an outcome counts for one pause.
        """
        with self._lock:
            if self._failures < self._limit:
                return 0.0
            now_s = self._runtime.monotonic_s()
            if now_s < self._open_until_s:
                return self._open_until_s - now_s
            self._open_until_s = now_s + self._pause_s  # this one is the probe; the others go on waiting
            return 0.0

    def note(self, *, alive: bool) -> None:
        """Record the outcome of a call."""
        with self._lock:
            self._failures = 0 if alive else self._failures + 1
            if self._failures >= self._limit:
                self._open_until_s = self._runtime.monotonic_s() + self._pause_s


_paces: dict[tuple[str, Pacing], Pace] = {}
_paces_lock = threading.Lock()


def pace_of(url: str, pacing: Pacing) -> Pace:
    """The one pace of a target in this process. A target is known by its whole URL, the query included.

    Only a digest of the URL is kept, and messages show the URL without secrets.
    """
    digest = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    with _paces_lock:
        return _paces.setdefault((digest, pacing), Pace(mask_url(url), pacing))


def own_pause_s(
    pauses: int,
    *,
    first_s: float = 0.1,
    growth: float = 4.0,
    longest_s: float = 30.0,
    runtime: Runtime = SYSTEM,
) -> float:
    """How long to wait before a request goes again, after so many pauses in a row. They grow, and have jitter.

    The defaults are those between two attempts of a delivery.
    """
    highest = min(longest_s, first_s * growth ** min(pauses, 16))
    return highest * (0.5 + runtime.new_random().random() / 2)


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """The seconds that a `Retry-After` header asks to wait: a number, or an HTTP date. None if it cannot be read.

    RFC 9110, section 10.2.3.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        due = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, ((due if due.tzinfo else due.replace(tzinfo=UTC)) - now).total_seconds())

"""Clock, sleep, randomness and ids, injected so that a simulation can own them.

This is the one module of the core that may touch the raw ones; the linter bans them everywhere else.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from wal_sink.calls import Caller, ThreadCaller


def _utc_now() -> datetime:
    return datetime.now(UTC)


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux's monotonic clock that goes on while the machine is suspended. Elsewhere there is one such clock at most."""


def _elapsed_s() -> float:
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)


def _new_id() -> str:
    return uuid.uuid4().hex


def _new_random() -> random.Random:
    return random.Random()  # noqa: S311 - jitter, not cryptography


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the core needs of the outside world besides a store and a sink."""

    now: Callable[[], datetime] = _utc_now
    monotonic_s: Callable[[], float] = _elapsed_s
    """Seconds since some moment, never set back. A time in which the machine was suspended counts."""
    sleep_s: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = _new_id
    """A fresh id of 32 lower-case hexadecimal digits."""
    new_random: Callable[[], random.Random] = _new_random
    new_caller: Callable[[], Caller] = ThreadCaller

    def timestamp(self) -> str:
        """The present as ISO 8601 text in UTC, for records that people read."""
        return self.now().isoformat(timespec="milliseconds")


SYSTEM = Runtime()


def process_name() -> str:
    """Host and process id, for messages that tell who holds a term."""
    return f"{socket.gethostname()}:{os.getpid()}"

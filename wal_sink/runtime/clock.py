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
from pathlib import Path

import msgspec

from wal_sink.runtime.timed_calls import ThreadCall, TimedCall

_PROC = Path("/proc")


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
    new_timed_call: Callable[[], TimedCall] = ThreadCall

    def timestamp(self) -> str:
        """The present as ISO 8601 text in UTC, for records that people read."""
        return self.now().isoformat(timespec="milliseconds")


SYSTEM = Runtime()


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, so that another one can tell whether it still lives."""

    host: str
    pid: int
    boot_id: str = ""
    """Of the running kernel, which containers of a machine share; empty where the system does not tell."""
    pid_namespace: str = ""
    """In which the process id was given: a container has its own."""
    started: int = 0
    """In clock ticks after the boot: a process id may be given again."""

    @property
    def is_known(self) -> bool:
        """Whether the system told everything."""
        return bool(self.boot_id and self.pid_namespace and self.started)

    def shares_ids_with(self, other: ProcessIdentity) -> bool:
        """Whether a process id means the same process for both. A host's name says little: many share one, and one may
        get another while it runs.
        """
        return (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)


def process_identity() -> ProcessIdentity:
    """This process. Only Linux tells all of it."""
    host, pid = socket.gethostname(), os.getpid()
    try:
        if (_PROC / "self").readlink().name != str(pid):  # /proc shows another namespace than that of our ids
            return ProcessIdentity(host=host, pid=pid)
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        started, _ = _started_and_state(pid)
        return ProcessIdentity(
            host=host, pid=pid, boot_id=boot_id, pid_namespace=str((_PROC / "self/ns/pid").readlink()), started=started
        )
    except (OSError, ValueError, IndexError):
        return ProcessIdentity(host=host, pid=pid)


def find_process(pid: int) -> int | None:
    """When the process began that has this id here; 0 if there is none; None if nobody can tell.

    A zombie is none: it only waits for its parent to look.
    """
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users, which would look as if they were gone
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass  # it is there, and belongs to another user
    try:
        started, state = _started_and_state(pid)
        # The first thread of a process may end before the others, and looks like a zombie then.
        return 0 if state in "ZX" and len(list((_PROC / str(pid) / "task").iterdir())) == 1 else started
    except (OSError, ValueError, IndexError):
        return None


def _started_and_state(pid: int) -> tuple[int, str]:
    """Fields 22 and 3 of `/proc/<pid>/stat`, after the program's name, which may hold anything."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[19]), fields[0]


def process_name() -> str:
    """Host and process id, for messages that tell who holds a term."""
    return f"{socket.gethostname()}:{os.getpid()}"

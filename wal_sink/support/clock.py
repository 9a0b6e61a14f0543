"""`Runtime`: clock, chance, sleep and ids for the core. Injected, so that a simulation replaces them.

No other module reads a clock or starts a timer itself. Also the errors that end a thread when its run is ending.
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

from wal_sink.support.calls import SideBySide, ThreadCall, TimedCall, side_by_side

_PROC = Path("/proc")


def _utc_now() -> datetime:
    return datetime.now(UTC)


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux's monotonic clock that continues while the machine is suspended. Other systems have at most one such clock."""


def _elapsed_s() -> float:
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)


def _new_id() -> str:
    return uuid.uuid4().hex


def _new_random() -> random.Random:
    return random.Random()  # noqa: S311 - jitter, not cryptography


@dataclass(frozen=True, slots=True)
class Runtime:
    """Access of the core to the outside world other than a store and a sink."""

    now: Callable[[], datetime] = _utc_now
    """The present time, in UTC."""
    monotonic_s: Callable[[], float] = _elapsed_s
    """Seconds since a fixed moment, never set back. Time in which the machine was suspended counts."""
    sleep_s: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = _new_id
    """A function that returns a fresh id of 32 lower-case hexadecimal digits."""
    new_random: Callable[[], random.Random] = _new_random
    new_timed_call: Callable[[], TimedCall] = ThreadCall
    side_by_side: SideBySide = side_by_side
    """Calls a function for every item, several at once, and returns the results in order."""

    def timestamp(self) -> str:
        """The present time as ISO 8601 text in UTC, for records that people read."""
        return self.now().isoformat(timespec="milliseconds")


SYSTEM = Runtime()


def epoch_s(timestamp: str) -> float | None:
    """A `timestamp` as seconds since 1970; None if the text is none."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a process, by which another process can tell whether it still lives."""

    host: str
    pid: int
    boot_id: str = ""
    """Boot id of the running kernel, which containers of a machine share. Empty if the system does not provide it."""
    pid_namespace: str = ""
    """Namespace that assigned the process id: each container has its own."""
    started: int = 0
    """Start time in clock ticks after the boot, since the system may assign a process id again."""
    parent: int = 0
    """Id of the process that started this one; 0 if it is not known, or has ended."""
    parent_started: int = 0

    @property
    def is_known(self) -> bool:
        """Return whether the system provided every field."""
        return bool(self.boot_id and self.pid_namespace and self.started)

    def shares_ids_with(self, other: ProcessIdentity) -> bool:
        """Return whether a process id means the same process for both. The host name proves little: many hosts may
        share one, and a host may be renamed while it runs.
        """
        return (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)

    def is_sibling_of(self, other: ProcessIdentity) -> bool:
        """Return whether one process surely started both. False if that is not known."""
        if not (self.is_known and other.is_known and self.shares_ids_with(other) and self.parent_started):
            return False
        return (self.parent, self.parent_started) == (other.parent, other.parent_started)


def process_identity() -> ProcessIdentity:
    """Identity of this process. Only Linux provides all fields."""
    host, pid = socket.gethostname(), os.getpid()
    try:
        if (_PROC / "self").readlink().name != str(pid):  # /proc shows another namespace than that of our process ids
            return ProcessIdentity(host=host, pid=pid)
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        started, _ = _started_and_state(pid)
        parent, parent_started = _parent()
        return ProcessIdentity(
            host=host,
            pid=pid,
            boot_id=boot_id,
            pid_namespace=str((_PROC / "self/ns/pid").readlink()),
            started=started,
            parent=parent,
            parent_started=parent_started,
        )
    except (OSError, ValueError, IndexError):
        return ProcessIdentity(host=host, pid=pid)


def _parent() -> tuple[int, int]:
    """Id and start time of the parent; zeros if that is not known. Process 1 adopts the children of ended parents."""
    parent = os.getppid()
    try:
        return (parent, _started_and_state(parent)[0]) if parent > 1 else (0, 0)
    except (OSError, ValueError, IndexError):
        return 0, 0


def find_process(pid: int) -> int | None:
    """Start time of the process with this id on this machine; 0 if there is none; None if this is unknown.

    A zombie counts as none: it has ended, and only its parent has not noticed yet.
    """
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users, which would then look ended
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass  # the process exists and belongs to another user
    try:
        started, state = _started_and_state(pid)
        # The first thread of a process may end before the others. Then the process looks like a zombie.
        return 0 if state in "ZX" and len(list((_PROC / str(pid) / "task").iterdir())) == 1 else started
    except (OSError, ValueError, IndexError):
        return None


def _started_and_state(pid: int) -> tuple[int, str]:
    """Fields 22 and 3 of `/proc/<pid>/stat`: those after the program's name, which may hold any character."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[19]), fields[0]


def host_name() -> str:
    """Name of this host, for people."""
    return socket.gethostname()


def process_name() -> str:
    """Host and process id, for messages that name the holder of a term."""
    return f"{socket.gethostname()}:{os.getpid()}"


class StoppedError(Exception):
    """The run is ending. Undelivered batches stay in the WAL."""


class JobStoppedError(StoppedError):
    """A Spark job of the stream was cancelled: by a stop of the query; otherwise the query fails with this error."""

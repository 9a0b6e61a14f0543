"""A driver in a separate process and session: Python, the JVM it starts, Spark's workers. All are killed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from wal_sink import WalSinkError

_PROC = Path("/proc")
_ENDED = frozenset("ZX")
_KILL_WAIT_S = 20.0
_POLL_S = 0.01
_PARENT_POLL_S = 0.5
_TAIL_LINES = 30


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even by SIGKILL: nothing stays behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


class DemoError(WalSinkError):
    """The demo could not go on. Remedy: look into the log the message names."""


class Driver:
    """A Python module that runs in a separate session. Leaving the `with` block ends it with all its descendants.

    Spark's worker daemon leaves the process group but never the session, so a session holds all of a driver, and
    nothing that another started.
    """

    def __init__(self, module: str, *, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", module],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `DemoError` if it ended by itself with anything but success."""
        code = self._process.poll()
        if code:
            raise DemoError(f"the driver ended with exit code {code}; its log {self.log} ends with:\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL every process of the session, and return when none of them runs any more."""
        deadline = time.monotonic() + _KILL_WAIT_S
        while members := _members(self._process.pid):
            for pid in members:
                _kill(pid)
            self._process.poll()
            if time.monotonic() > deadline:
                raise DemoError(f"processes {members} outlived SIGKILL for {_KILL_WAIT_S:g} s")
            time.sleep(_POLL_S)
        self._process.wait(_KILL_WAIT_S)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself


def _members(session: int) -> list[int]:
    """The living processes of a session (without /proc, as on macOS: of its process groups' leader)."""
    if not (_PROC / "self").exists():
        return _members_by_ps(session)
    seen = {int(entry.name): _state(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
    return [pid for pid, (state, its_session) in seen.items() if its_session == session and state not in _ENDED]


def _state(pid: int) -> tuple[str, int]:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "X", 0  # it ended while it was looked at
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]  # the name in parentheses may hold spaces
    return state, int(session)


def _members_by_ps(session: int) -> list[int]:
    """`ps` of macOS knows no session: take the tree of descendants, which nothing has left while its root lives."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=True)  # noqa: S607
    rows = [line.split() for line in listed.stdout.splitlines()]
    family = {session}
    for pid, parent, group, _ in rows * 4:  # a driver's tree is four deep at most
        if int(parent) in family or int(group) in family:
            family.add(int(pid))
    return [int(pid) for pid, _, _, state in rows if int(pid) in family and state[0] not in _ENDED]

"""Programs that a test starts in separate processes and always ends: Python, its JVM and Spark's workers.

A `Child` leads a separate session. Killing it kills every process of that session at once, so no part of a "crashed"
driver goes on writing. (A JVM lives a moment longer than its Python.) Processes of others are never touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
PARENT_POLL_S = 0.5
KILL_WAIT_S = 60.0
ENDED = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})


class ChildError(AssertionError):
    """A child did not do what the test expected. The message ends with the last lines of its output."""


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, changed so that a child and its workers use this interpreter and checkout.

    Its JVMs start quickly, including JVMs whose options the program does not choose.
    """
    from tests.support.programs.quick_java import QUICK_SPARK  # noqa: PLC0415 - that module starts a child itself

    paths = [str(CHECKOUT), str(CHECKOUT / "backends"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in dict.fromkeys(paths) if path),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.setdefault("JDK_JAVA_OPTIONS", QUICK_SPARK)
    return {**environment, **(extra or {})}


class Child:
    """A program in a separate process and session. It is ended at the end of the `with` block in any case.

    `args` is the command. `log` is the file for both its outputs. `limit_s` is the longest time for which `wait` and
    `wait_until` wait by default. Without `env` it gets `python_environment()`.
    """

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        limit_s: float = 240.0,
    ) -> None:
        self.log = log
        self.limit_s = limit_s
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(arg) for arg in args],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=python_environment() if env is None else dict(env),
                cwd=log.parent if cwd is None else cwd,
                start_new_session=True,
            )

    @classmethod
    def python(
        cls,
        program: Path | str,
        *args: str | Path,
        log: Path,
        env: Mapping[str, str] | None = None,
        limit_s: float = 240.0,
    ) -> Self:
        """Start this interpreter with a program: a file's `Path`, or source text. `env` is added to the environment."""
        head: list[str | Path] = [program] if isinstance(program, Path) else ["-c", program]
        return cls([sys.executable, *head, *args], log=log, env=python_environment(env), limit_s=limit_s)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group and session."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the started process itself runs, apart from its children."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """The text written so far to both outputs."""
        return self.log.read_text(errors="replace")

    def members(self) -> list[int]:
        """List the living processes of the session: the process and all its descendants."""
        return _session_members(self.pid)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code (negative: the signal that ended it). Raise `ChildError` after `timeout_s` seconds."""
        limit_s = self.limit_s if timeout_s is None else timeout_s
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"process {self.pid} still runs after {limit_s} s\n{self._tail()}") from None

    def wait_for_all(self, timeout_s: float | None = None) -> None:
        """Wait until the process and all its descendants have ended. Raise `ChildError` when time is up."""
        limit_s = self.limit_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while members := _session_members(self.pid):
            self._process.poll()
            if time.monotonic() > deadline:
                raise ChildError(f"processes {members} still run after {limit_s} s\n{self._tail()}")
            time.sleep(POLL_S)

    def succeed(self, timeout_s: float | None = None) -> str:
        """Wait for exit code 0 and return the output. Raise `ChildError` for any other code."""
        code = self.wait(timeout_s)
        if code != 0:
            raise ChildError(f"process {self.pid} ended with {code}, expected 0\n{self._tail()}")
        return self.output

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Wait until `condition()` holds. Raise `ChildError` with `what` if time is up or the process ended before."""
        limit_s = self.limit_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while not condition():
            if not self.running:
                if condition():
                    return
                raise ChildError(
                    f"process {self.pid} ended with {self._process.returncode} before {what}\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise ChildError(f"process {self.pid}: not within {limit_s} s: {what}\n{self._tail()}")
            time.sleep(POLL_S)

    def wait_for_output(self, text: str, timeout_s: float | None = None) -> None:
        """Wait until the output contains `text`."""
        self.wait_until(lambda: text in self.output, f"its output contained {text!r}", timeout_s)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does, to the started process."""
        self.send(signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the started process alone, if it still runs. After SIGSTOP, return once it has stopped."""
        if self.running:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                self._wait_until_stopped(lambda: [self.pid])

    def send_to_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its descendants. SIGSTOP acts as if the machine paused.

        After SIGSTOP, return once all of them have stopped.
        """
        for pid in self.members():
            _signal(pid, number)
        if number == signal.SIGSTOP:
            self._wait_until_stopped(self.members)

    def _wait_until_stopped(self, processes: Callable[[], list[int]]) -> None:
        """Wait until these processes have stopped, those too that were started meanwhile.

        The kernel gives SIGSTOP to one thread of a process. On a busy machine the others run until this one has a turn.
        """
        deadline = time.monotonic() + KILL_WAIT_S
        while going := [pid for pid in processes() if not is_stopped(pid)]:
            if time.monotonic() > deadline:
                raise ChildError(f"processes {going} did not stop within {KILL_WAIT_S} s\n{self._tail()}")
            for pid in going:
                _signal(pid, signal.SIGSTOP)
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kill the process and all its descendants with SIGKILL. Return when none of them runs any more."""
        deadline = time.monotonic() + KILL_WAIT_S
        self.send(signal.SIGKILL)
        while members := _session_members(self.pid):
            for pid in members:
                _signal(pid, signal.SIGKILL)
            self._process.poll()
            if time.monotonic() > deadline:
                raise ChildError(f"processes {members} outlived SIGKILL for {KILL_WAIT_S} s\n{self._tail()}")
            time.sleep(POLL_S)
        self._process.wait(KILL_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _tail(self) -> str:
        return "\n".join(["--- last lines of its output:", *self.output.splitlines()[-60:]])


def end_with_parent() -> None:
    """End this process soon after its parent has ended, even if the parent was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def is_running(pid: int) -> bool:
    """Tell whether a process lives. A zombie, which has ended but was not collected by its parent, does not."""
    try:
        return psutil.Process(pid).status() not in ENDED
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Tell whether no thread of a process runs or will run: all are stopped or ended. True where there is no /proc."""
    states = set[str]()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            states.add(thread.read_text().rpartition(")")[2].split()[0])
    return not states & {"R", "S"}


def executor_of(worker: int) -> int:
    """Return the JVM of a Python worker's executor: the parent of the daemon that forked the worker."""
    _daemon, executor, *_ = psutil.Process(worker).parents()
    return executor.pid


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, number)


def _session_members(session: int) -> list[int]:
    """List the living processes of a session. Spark's worker daemon leaves the process group, but never the session."""
    return [pid for pid in psutil.pids() if _session_of(pid) == session and is_running(pid)]


def _session_of(pid: int) -> int:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
        return os.getsid(pid)
    return 0

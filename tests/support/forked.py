"""Functions that a test runs in separate processes, and always ends. They start many times as fast as programs.

A server process (multiprocessing's "forkserver") has imported what the functions need. Each process is forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.processes import Child

FORKS = multiprocessing.get_context("forkserver")
_CLIENTS = ("pandas", "boto3", "confluent_kafka", "httpx", "psycopg", "pymysql", "redis")
FORKS.set_forkserver_preload(["tests.chaos.small_lives", "tests.support.contending", *_CLIENTS])


class ForkedChild(Child):
    """A call `function(*args)`, all of it pickled, in a separate process and session.

    `env` is added to the environment.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *args: object,
        log: Path,
        env: Mapping[str, str] = MappingProxyType({}),
        limit_s: float = 240.0,
    ) -> None:
        self.log = log
        self.limit_s = limit_s
        log.write_bytes(b"")
        self._process = _Process(function, args, log, dict(env))  # type: ignore[assignment]  # of the same interface


class _Process:
    """A process of multiprocessing that is used like one of `subprocess`."""

    def __init__(self, *args: object) -> None:
        self._process = FORKS.Process(target=_run, args=args, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout_s)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def _run(function: Callable[..., object], args: tuple[object, ...], log: Path, env: dict[str, str]) -> None:
    os.setsid()
    with log.open("ab", buffering=0) as file:
        for output in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), output.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(env)
    function(*args)

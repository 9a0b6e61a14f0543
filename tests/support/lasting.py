"""A process with a Spark that lasts for several programs of tests: starting and ending a Spark takes 8 to 17 s.

The programs run one after the other. Each is a text or a file that would also run alone. It gets the Spark of the
program before it, so all want the same master and configuration. Their queries are ended and their settings are unset.
With `one_spark=False` each gets a Spark with its own master and configuration, in the same JVM, which takes 2 s. A
program that is to be killed needs a `Child`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.processes import CHECKOUT, Child, ChildError, python_environment
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = CHECKOUT / "tests" / "support" / "programs" / "one_after_another.py"


def ended(number: int) -> str:
    """Return what begins the line that tells the end of a program."""
    return f"ENDED program {number} with"


def wait_for_executors(spark: SparkSession, count: int, limit_s: float = 240.0) -> None:
    """Return once so many executors of a cluster have run tasks: also those in place of one that a program killed."""
    context = spark.sparkContext
    java: Any = context._jsc
    tracker = java.sc().statusTracker()
    wait_until(lambda: len(tracker.getExecutorInfos()) == count + 1, f"{count} executors, and the driver", limit_s)
    slots = context.parallelize(range(4 * count), 4 * count)
    wait_until(lambda: len(set(slots.map(_executor).collect())) == count, f"tasks on {count} executors", limit_s)


def _executor(_: int) -> int:
    """Return the process from which an executor forks its workers."""
    time.sleep(0.1)  # so that no executor takes all tasks
    return os.getppid()


class Lasting:
    """The process. It starts with the first program, and again if a program did not end within its time.

    `folder` does not exist yet. `env` is added to the environment. `limit_s` is the longest time of a program.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        limit_s: float = 240.0,
        *,
        one_spark: bool = True,
    ) -> None:
        self._folder, self._env, self._one_spark, self.limit_s = folder, env, one_spark, limit_s
        self._host: Child | None = None
        self._lives = self._programs = 0

    def start(self, program: Path | str, *args: str | Path) -> Program:
        """Start a program: a file's `Path`, or source text. Use what is returned in a `with` block."""
        if self._host is None or not self._host.running:
            self.end()
            self._host = self._new_host()
        source = program.read_text() if isinstance(program, Path) else program
        name = str(program) if isinstance(program, Path) else "<program of a test>"
        order = self._orders / f"{self._programs}.json"
        hidden = order.with_suffix(".unfinished")
        hidden.write_text(json.dumps({"name": name, "source": source, "args": [str(arg) for arg in args]}))
        started = Program(self, self._host, self._programs, len(self._host.log.read_bytes()))
        hidden.rename(order)
        self._programs += 1
        return started

    def run(self, program: Path | str, *args: str | Path) -> str:
        """Run a program that succeeds. Return its output."""
        with self.start(program, *args) as started:
            return started.succeed()

    def end(self) -> None:
        """Kill the process, if it runs, with its JVM and workers."""
        if self._host is not None:
            self._host.kill()
            self._host = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def cwd(self) -> Path:
        """The current folder of the process and its JVM. It exists once a program has run."""
        return self._folder / "cwd"

    @property
    def _orders(self) -> Path:
        return self._folder / f"orders-{self._lives}"

    def _new_host(self) -> Child:
        self._lives, self._programs = self._lives + 1, 0
        self._orders.mkdir(parents=True)
        self.cwd.mkdir(exist_ok=True)
        log, env = self._folder / f"log-{self._lives}", python_environment(self._env)
        command: list[str | Path] = [sys.executable, HOST, self._orders, "one" if self._one_spark else "each"]
        return Child(command, log=log, env=env, cwd=self.cwd, limit_s=self.limit_s)


class Program:
    """A program that runs, or has ended, in a `Lasting`. One that still runs at the end of the `with` block is killed.

    Its methods are those of a `Child`.
    """

    def __init__(self, lasting: Lasting, host: Child, number: int, begin: int) -> None:
        self._lasting, self._host, self._number, self._begin = lasting, host, number, begin

    @property
    def output(self) -> str:
        """The text written so far by the program, its JVM and its workers."""
        return self._host.log.read_bytes()[self._begin :].decode(errors="replace").partition(ended(self._number))[0]

    @property
    def running(self) -> bool:
        """True until the program has ended."""
        return self._host.running and self._code() is None

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Wait until `condition()` holds. Raise `ChildError` with `what` if time is up or the program ended before."""
        self._host.wait_until(lambda: condition() or self._code() is not None, what, timeout_s)
        if not condition():
            raise ChildError(f"the program ended with {self._code()} before {what}\n{self._tail()}")

    def wait_for_output(self, text: str, timeout_s: float | None = None) -> None:
        """Wait until the output contains `text`."""
        self.wait_until(lambda: text in self.output, f"its output contained {text!r}", timeout_s)

    def succeed(self, timeout_s: float | None = None) -> str:
        """Wait for exit code 0 and return the output. Raise `ChildError` for any other code."""
        self._host.wait_until(lambda: self._code() is not None, "its program ended", timeout_s)
        if self._code() != 0:
            raise ChildError(f"the program ended with {self._code()}, expected 0\n{self._tail()}")
        return self.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._lasting.end()

    def _code(self) -> int | None:
        _, mark, after = (
            self._host.log.read_bytes()[self._begin :].decode(errors="replace").partition(ended(self._number))
        )
        line, newline, _ = after.partition("\n")
        return int(line) if mark and newline else None

    def _tail(self) -> str:
        return "\n".join(["--- last lines of its output:", *self.output.splitlines()[-60:]])

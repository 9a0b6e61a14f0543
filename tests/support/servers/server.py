"""The common part of the servers that tests start: a separate process on 127.0.0.1, from its start to its end."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

from tests.support.components import note_started, require
from tests.support.processes import Child, ChildError, python_environment
from tests.support.servers.ports import free_ports

START_S = 120.0
_FIRST_STARTS = 3
POSTGRESQL = Path("/usr/lib/postgresql")
"""Where Debian keeps the programs of PostgreSQL, by version."""
_numbers = itertools.count()


class Server(ABC):
    """A server with its own folder and ports. It runs in a `with` block, or from `start()` to `kill()`.

    Files and addresses outlive `kill()` and another `start()`.
    """

    product: ClassVar[str]
    """The name in `components.WHOLE`."""
    number_of_ports: ClassVar[int] = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(self.number_of_ports)
        self._child: Child | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def child(self) -> Child:
        """The process of the last start."""
        if self._child is None:
            raise RuntimeError("the server was not started")
        return self._child

    def start(self) -> None:
        """Start, and return when it answers. The first start uses other ports if another process has taken these."""
        for left in reversed(range(1 if self._child else _FIRST_STARTS)):
            try:
                self.prepare()
                log = self.folder.with_name(f"{self.folder.name}-{next(_numbers)}.log")
                self._child = Child(self.command(), log=log, env=environment(), limit_s=START_S)
                self._child.wait_until(self.answers, "it answered")
            except ChildError:
                self.kill()
                if not left:
                    raise
                self.ports = free_ports(self.number_of_ports)
            else:
                note_started(self.product, self.release())
                return

    def kill(self) -> None:
        """Kill it with SIGKILL, by its process id. Do nothing if it does not run."""
        if self._child is not None:
            self._child.kill()

    def prepare(self) -> None:
        """Write the files that a start needs and that do not exist yet."""
        self.folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    @abstractmethod
    def release(self) -> str:
        """Return the product's version."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def environment() -> dict[str, str]:
    """Return the environment of a server.

    Without the credentials of a test: SeaweedFS makes an administrator of such a key, and then refuses the secret in
    its configuration. Without Spark's options for JVMs, whose archive of classes is of no use to others.
    """
    without = ("AWS_", "JDK_JAVA_OPTIONS")
    return {name: value for name, value in python_environment().items() if not name.startswith(without)}


def program(name: str, package: str) -> Path:
    """Return a server's program. Debian keeps some outside of PATH. Skip or fail the test if it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec")
    newest = sorted(POSTGRESQL.glob(f"*/bin/{name}"))
    require(bool(found or newest), f"this needs {name}: apt-get install {package}")
    return Path(found) if found else newest[-1]


@cache
def version_of(started: Path, *arguments: str) -> str:
    """Ask a program for its version, and return the first number with a dot in its answer."""
    said = subprocess.run(
        [started, *(arguments or ["--version"])], capture_output=True, text=True, timeout=START_S, check=True
    )
    found = re.search(r"\d+(\.\d+)+", said.stdout)
    assert found, f"{started} told no version: {said.stdout!r}"
    return found[0]

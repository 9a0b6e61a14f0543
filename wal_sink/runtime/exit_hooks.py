"""Exit hooks, which belong to the process that registered them.

A forked child inherits exit hooks, objects with a `__del__` and signal handlers. It runs them when it ends, on
connections that it shares with its parent: it would stop the parent's query, or end the parent's transaction.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from wal_sink.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Owner:
    """The process in which something was made."""

    pid: int = field(default_factory=os.getpid)

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no forked child of it."""
        return os.getpid() == self.pid

    def refuse_child(self, what: str) -> None:
        """Raise `ConfigError` in a forked child of the process that opened `what`."""
        if not self.is_here:
            raise ConfigError(
                f"{what} was opened in process {self.pid}, of which this is a forked child: its threads and its query "
                "run there. Make a WalSink in the process that uses it; the end of this child touches neither"
            )


def at_exit(hook: Callable[[], object]) -> Callable[[], None]:
    """Call `hook` when this process ends normally, and in none of its forked children. Returns what takes it back."""
    owner = Owner()

    def run() -> None:
        if owner.is_here:
            hook()

    atexit.register(run)  # runs before what was registered earlier
    return partial(atexit.unregister, run)

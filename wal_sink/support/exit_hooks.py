"""Exit hooks that run only in the process that registered them.

A forked child inherits exit hooks, objects with a `__del__` and signal handlers. It would run them at its end, on
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
    """The process that created something."""

    pid: int = field(default_factory=os.getpid)

    @property
    def is_here(self) -> bool:
        """Return whether this is that process, and not a forked child of it."""
        return os.getpid() == self.pid

    def refuse_child(self, what: str) -> None:
        """Raise `ConfigError` in a forked child of the process that opened `what`."""
        if not self.is_here:
            raise ConfigError(
                f"{what} was opened in process {self.pid}, and this process is a forked child of that process. The "
                f"threads and the query of the WalSink run in process {self.pid}. Create the WalSink in the process "
                "that uses it. The end of this child affects neither the threads nor the query"
            )


def at_exit(hook: Callable[[], object]) -> Callable[[], None]:
    """Call `hook` when this process ends normally, but not in its forked children. Returns a function that unregisters
    it.
    """
    owner = Owner()

    def run() -> None:
        if owner.is_here:
            hook()

    atexit.register(run)  # runs before hooks that were registered earlier
    return partial(atexit.unregister, run)

"""How a command ends: its exit codes, and an orderly end with one line after SIGTERM or Ctrl-C.

Kubernetes, systemd and Docker send SIGTERM.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from wal_sink.cli.working import say

FOUND_SOMETHING = 1
"""A check found a problem, or delivery failed."""
BAD_USE = 2
"""Wrong usage or configuration: `ConfigError`, and click's own usage errors."""
ENDED_BY_CTRL_C = 128 + signal.SIGINT
"""130, the exit code that shells report for a process ended by this signal."""
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
"""143, the same for SIGTERM."""
STAYS = "undelivered batches stay in the WAL. Repeat the command to deliver them"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received. It is a `KeyboardInterrupt`, so all code that handles Ctrl-C handles it too."""


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Raise `TerminatedError` on the main thread for a SIGTERM inside the block.

    If the error leaves the block, the process ends with exit code 143, and with 130 for Ctrl-C. The text of the error
    is the line that it prints. Only the main thread may set a handler. A command on another thread belongs to a program
    with its own main thread, and that program decides what the signals do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        say(f"ended by {signal_of(error)}: {str(error) or STAYS}")
        sys.exit(ENDED_BY_SIGTERM if isinstance(error, TerminatedError) else ENDED_BY_CTRL_C)
    finally:
        # None: the handler was not set by Python, so Python cannot restore it. The default handler ends the process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def signal_of(error: KeyboardInterrupt) -> str:
    """The name of the signal that raised the error, for people."""
    return "SIGTERM" if isinstance(error, TerminatedError) else "Ctrl-C"


def _terminate(_number: int, _frame: object) -> NoReturn:
    # The shutdown takes a bounded time. A second SIGTERM would interrupt it before it recorded the end of the process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise TerminatedError

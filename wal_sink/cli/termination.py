"""SIGTERM, by which Kubernetes, systemd and Docker end a process, ends a command in order: as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import click

ENDED_BY_SIGTERM = 128 + signal.SIGTERM
"""143: the exit code of shells for a process that this signal ended."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. A kind of Ctrl-C, so that whatever ends in order by that does so by this."""


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Inside, SIGTERM raises `TerminatedError` on the main thread. One that leaves the block ends the process with 143.

    Only the main thread may set a handler. A command that another thread runs belongs to a program that has its own
    main thread: there the program alone decides what the signal does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except TerminatedError:
        click.echo("ended by SIGTERM: what is not delivered yet stays in the WAL; repeat the command", err=True)
        sys.exit(ENDED_BY_SIGTERM)
    finally:
        # None: the handler was not set by Python, and Python cannot put it back. The default one ends the process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _terminate(_number: int, _frame: object) -> NoReturn:
    # The end takes a bounded time. A second SIGTERM would interrupt it, before it left the record that it ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise TerminatedError

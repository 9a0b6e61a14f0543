"""Reports on stderr while a command does something that can take long. Never on stdout.

On a terminal: a line that moves, once the work has taken a second. Elsewhere: a plain line, once it has taken half a
minute, and again every half minute. `wal-sink --quiet` switches both off.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from wal_sink.cli.log_format import is_json, say
from wal_sink.cli.output import clean

FIRST_S = 1.0
"""Before the first report on a terminal."""
REFRESH_S = 0.5
"""Between two reports on a terminal."""
PLAIN_S = 30.0
"""Before the first plain line, and between two."""
LEAVE_S = 2.0
"""How long the end of the work waits for the thread that reports. It may be reading from a store that hangs."""


class Work:
    """Work in progress. `how_far` may be set at any time, by the thread that works."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.how_far = ""
        self.is_idle = False
        """Whether there is nothing to do right now. Elsewhere than on a terminal, that is told once."""
        self._began_s = time.monotonic()

    def count(self, done: int, total: int) -> None:
        """Note that so many of all are done."""
        self.how_far = f"{done:,} of {total:,}"

    def __str__(self) -> str:
        far = f": {self.how_far}" if self.how_far else ""
        return clean(f"{self.what}{far} ({time.monotonic() - self._began_s:.0f} s)")


@contextmanager
def working(what: str, *, look: Callable[[Work], None] | None = None) -> Iterator[Work]:
    """Report the block's work. `look`, called on another thread before each report, may set `how_far`."""
    work = Work(what)
    if is_quiet():
        yield work
        return
    done = threading.Event()
    as_json = is_json()
    on_terminal = sys.stderr.isatty() and not as_json
    report = _on_terminal if on_terminal else partial(_in_lines, tell=partial(say, as_json=as_json))
    thread = threading.Thread(target=report, args=(work, done, look or _nothing), name="wal-sink-progress", daemon=True)
    thread.start()
    try:
        yield work
    finally:
        done.set()
        thread.join(LEAVE_S)  # it may still be reading, and is a daemon thread


def is_quiet() -> bool:
    """Whether `wal-sink --quiet` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def _on_terminal(work: Work, done: threading.Event, look: Callable[[Work], None]) -> None:
    if done.wait(FIRST_S):
        return
    with Status(Text(str(work)), console=Console(stderr=True)) as shown:
        while not done.wait(REFRESH_S):
            look(work)
            shown.update(Text(str(work)))


def _in_lines(work: Work, done: threading.Event, look: Callable[[Work], None], *, tell: Callable[[str], None]) -> None:
    was_idle = False
    while not done.wait(PLAIN_S):
        look(work)
        if not done.is_set() and not (was_idle and work.is_idle):  # the work may have ended during a long look
            tell(f"wal-sink: {work}")
        was_idle = work.is_idle


def _nothing(_: Work) -> None:
    return

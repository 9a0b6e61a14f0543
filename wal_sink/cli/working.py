"""A command while it works and when it ends: lines on stderr, exit codes, and an orderly end after a signal.

Lines tell how far a command is if that takes long, and one comes at its end. Never on stdout. On a terminal: a line
that moves, once the work has taken a second. Elsewhere: a plain line, once it has taken half a minute, and again every
half minute. `wal-sink --quiet` switches both off. With `--log-format json` everything on stderr, log records too, is
one JSON object a line, for programs that collect logs.

After SIGTERM or Ctrl-C, a command that delivers ends with one line. Kubernetes, systemd and Docker send SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NoReturn

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from wal_sink.cli.printer import clean
from wal_sink.support.logs import FIELDS, RAISED_TOO
from wal_sink.support.secrets import redacted

FIRST_S = 1.0
"""Before the first report on a terminal."""
REFRESH_S = 0.5
"""Between two reports on a terminal."""
PLAIN_S = 30.0
"""Before the first plain line, and between two."""
LEAVE_S = 2.0
"""How long the end of the work waits for the thread that reports. It may be reading from a store that hangs."""
LogFormat = Literal["text", "json"]
OWN_LOGGER = "wal_sink"
POOL_LOGGER = "wal_sink.protocol.committer_pool"
"""The logger of the threads that deliver."""


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


@contextlib.contextmanager
def working(what: str, *, look: Callable[[Work], None] = lambda _: None) -> Iterator[Work]:
    """Report the block's work. `look`, called on another thread before each report, may set `how_far`."""
    work = Work(what)
    if is_quiet():
        yield work
        return
    done = threading.Event()
    as_json = is_json()
    on_terminal = sys.stderr.isatty() and not as_json
    report = _on_terminal if on_terminal else partial(_in_lines, tell=partial(say, as_json=as_json))
    thread = threading.Thread(target=report, args=(work, done, look), name="wal-sink-progress", daemon=True)
    thread.start()
    try:
        yield work
    finally:
        done.set()
        thread.join(LEAVE_S)  # it may still be reading, and is a daemon thread


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


def say(text: str, level: int = logging.INFO, *, as_json: bool | None = None) -> None:
    """Tell something on stderr, as a line of text or as a log record.

    `as_json`: the answer of `is_json`, which only the thread of the command knows.
    """
    if is_json() if as_json is None else as_json:
        record = logging.LogRecord(f"{OWN_LOGGER}.cli", level, "", 0, text, None, None)
        text = JsonFormatter().format(record)
    click.echo(text, err=True)


def is_quiet() -> bool:
    """Whether `wal-sink --quiet` was given."""
    return bool(_given("quiet"))


def is_json() -> bool:
    """Whether `wal-sink --log-format json` was given."""
    return _given("log_format") == "json"


def _given(option: str) -> object:
    """The value of an option of `wal-sink` itself; None outside of a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().params.get(option)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, then `wal`, `sink`, `batch` and `segment`.

    Secrets are removed from the message, the exception and the fields. A field that is unknown is null.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            line[name] = value if value is None or isinstance(value, int) else redacted(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = redacted("".join(traceback.format_exception(record.exc_info[1])))
        return json.dumps(line, ensure_ascii=False)


def begin_logging(context: click.Context, _option: click.Parameter, log_format: str) -> str:
    """The callback of `--log-format`: send log records to stderr as JSON, until the command ends. With `text` nothing
    changes.

    Records of wal-sink are shown from INFO on, those of other packages from WARNING on.
    """
    if log_format != "json":
        return log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root, own = logging.getLogger(), logging.getLogger(OWN_LOGGER)
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)

    def end() -> None:
        root.removeHandler(handler)
        own.setLevel(before)

    context.call_on_close(end)
    return log_format


@contextlib.contextmanager
def without_raised_errors() -> Iterator[None]:
    """Leave out the log records of errors that the block raises as well, and that the command then prints. With
    `--log-format json` they stay, since they name sink and batch.
    """
    if is_json():
        yield
        return

    def keep(record: logging.LogRecord) -> bool:
        return not all(getattr(record, name, False) for name in RAISED_TOO)

    logger = logging.getLogger(POOL_LOGGER)
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


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

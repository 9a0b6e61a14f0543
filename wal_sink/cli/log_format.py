"""`wal-sink --log-format json`: what goes to stderr is one JSON object a line, for programs that collect logs."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

import click

from wal_sink.redaction import redacted
from wal_sink.reporting.logs import FIELDS, RAISED_TOO

LogFormat = Literal["text", "json"]
OWN_LOGGER = "wal_sink"
POOL_LOGGER = "wal_sink.lifecycle.committer_pool"
"""The logger of the threads that deliver."""


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
        line |= {name: _plain(getattr(record, name, None)) for name in FIELDS}
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


def is_json() -> bool:
    """Whether `wal-sink --log-format json` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().params.get("log_format") == "json"


def say(text: str, level: int = logging.INFO, *, as_json: bool | None = None) -> None:
    """Tell something on stderr, as a line of text or as a log record.

    `as_json`: the answer of `is_json`, which only the thread of the command knows.
    """
    if not (is_json() if as_json is None else as_json):
        click.echo(text, err=True)
        return
    record = logging.LogRecord(f"{OWN_LOGGER}.cli", level, "", 0, text, None, None)
    click.echo(JsonFormatter().format(record), err=True)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, int) else redacted(value)

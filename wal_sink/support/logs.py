"""Loggers of this package. A handler or filter that raises never ends the thread that logs.

A committer logs that its sink gave up, and then stops the query. If the handler's exception escaped, the query would
continue, and its staged batches would not be delivered.

Each record has the attributes `wal`, `sink`, `batch` and `segment`: what the code was working on, None if nothing.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from wal_sink.support.texts import told

FIELDS = ("wal", "sink", "batch", "segment")
"""Attributes of each record."""
RAISED_TOO: Mapping[str, object] = MappingProxyType({"is_raised_too": True})
"""`extra` of the record of an error that the run raises as well. A program that prints that error may leave it out."""
Subject = Mapping[str, str | int | None]
"""The value of each field."""
_subject: ContextVar[Subject] = ContextVar("wal_sink_subject", default=MappingProxyType(dict.fromkeys(FIELDS)))


@contextlib.contextmanager
def logging_about(
    *, wal: str | None = None, sink: str | None = None, batch: int | None = None, segment: str | None = None
) -> Iterator[None]:
    """Name the subject of every record of this thread while the block runs. Each argument that is None stays as it is
    outside.
    """
    given = {"wal": wal, "sink": sink, "batch": batch, "segment": segment}
    with logging_as({**_subject.get(), **{name: value for name, value in given.items() if value is not None}}):
        yield


def subject() -> Subject:
    """The subject of this thread's records, for `logging_as` on another thread."""
    return _subject.get()


@contextlib.contextmanager
def logging_as(given: Subject) -> Iterator[None]:
    """Make this the subject of every record of this thread while the block runs. Nothing else of its context changes:
    a sink may keep values there from one call to the next.
    """
    token = _subject.set(given)
    try:
        yield
    finally:
        _subject.reset(token)


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `logging.Logger` does. An exception of a handler or filter goes to stderr.

    Only Ctrl-C passes: it is meant for the program, and may arrive in any handler.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: object) -> None:
        """Log as `Logger.log` does, with the caller's place in the record."""
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by a user's handler
            with contextlib.suppress(Exception):  # there is no other place to report it
                sys.stderr.write(f"{self.logger.name}: the log could not write {msg!r}: {told(error)}\n")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the subject to the record."""
        return msg, {**kwargs, "extra": {**_subject.get(), **(kwargs.get("extra") or {})}}


def logger_of(name: str) -> SafeLogger:
    """The logger of a module, by its `__name__`."""
    return SafeLogger(logging.getLogger(name))

"""The one line of a long Spark error that tells the cause."""

from __future__ import annotations

import re

from wal_sink.redaction import redacted

_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = re.compile(r"^\s*Caused by: (\S+: .+)$", re.MULTILINE)
_LONGEST = 300


def telling_line(error: BaseException | str) -> str:
    """The cause in one line, from an error of py4j or PySpark, or from its text.

    Of a Python worker's traceback it is the exception; of a Java trace the first line and the last cause. Any other
    text gives its first line. Passwords are masked.
    """
    text = redacted(error)  # first: a cut password cannot be recognised
    if isinstance(error, BaseException) and not text:
        text = type(error).__name__
    return (_of_traceback(text) or _of_java(text)).rstrip(".")


def _of_traceback(text: str) -> str:
    """The line after the indented frames of the last traceback; empty if there is no traceback."""
    _, found, last = text.rpartition(_TRACEBACK)
    lines = (line for line in last.splitlines() if line.strip() and not line[0].isspace())
    return next(lines, "")[:_LONGEST] if found else ""


def _of_java(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing"]
    first = lines[0]
    if first.startswith("An error occurred while calling") and len(lines) > 1:  # py4j's line: Java's follows
        first = lines[1].removeprefix(": ")
    causes: list[str] = _CAUSE.findall(text)
    caused = f"; caused by {causes[-1][:_LONGEST].rstrip()}" if causes and causes[-1] not in first else ""
    return first[:_LONGEST].rstrip(".") + caused

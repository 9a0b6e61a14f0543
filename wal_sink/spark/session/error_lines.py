"""The one line that tells, out of the page that Spark makes of an error."""

from __future__ import annotations

import re

from wal_sink.redaction import redacted

_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = re.compile(r"^\s*Caused by: (\S+: .+)$", re.MULTILINE)
_LONGEST = 300


def telling_line(error: BaseException | str) -> str:
    """What went wrong: of a Python worker's traceback its exception, of Java's what it says first and its last cause.

    Of py4j's and PySpark's errors, or of their text; one without either is told by its first line.
    """
    text = redacted(error if isinstance(error, str) else _text_of(error))  # before it is cut, amid a password perhaps
    return (_of_traceback(text) or _of_java(text)).rstrip(".")


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - py4j asks the JVM for the text, which may be gone
        return type(error).__name__


def _of_traceback(text: str) -> str:
    """The line after the frames of the last traceback, which are indented; empty if there is none."""
    _, found, last = text.rpartition(_TRACEBACK)
    lines = (line for line in last.splitlines() if line.strip() and not line[0].isspace())
    return next(lines, "")[:_LONGEST] if found else ""


def _of_java(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing"]
    first = lines[0]
    if first.startswith("An error occurred while calling") and len(lines) > 1:  # py4j: the next line is Java's own
        first = lines[1].removeprefix(": ")
    causes: list[str] = _CAUSE.findall(text)
    caused = f"; caused by {causes[-1][:_LONGEST].rstrip()}" if causes and causes[-1] not in first else ""
    return first[:_LONGEST].rstrip(".") + caused

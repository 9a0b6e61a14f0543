"""Texts of messages and tables: numbers of things, findings, and objects that others made. Making one never raises.

`str()`, `repr()` and `describe()` run code of a user or of a library. This code may raise (py4j asks a JVM that may be
gone), or return text that UTF-8 cannot hold. Such an exception would escape from the handler of another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

_PLURALS = {"batch": "batches"}


def counted(count: int, thing: str) -> str:
    """A number with its noun: `1 row`, `1,200 rows`. `thing` is the singular."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {_PLURALS.get(thing, f'{thing}s')}"


def in_ranges(numbers: Sequence[int]) -> list[str]:
    """Ascending numbers as few texts, such as `3-7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def pending_text(batches: int) -> str:
    """The batches that wait for the next start, at the end of a run that a signal ended."""
    if not batches:
        return "no batch is pending"
    return f"{counted(batches, 'batch')} pending, delivered at the next start"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as plain text: columns of equal width, two blanks apart. Without headings if each heading is empty."""
    lines = [headings, *rows] if any(headings) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)


_LONGEST = 200_000
"""Maximum length of a text. Masking secrets in a text of megabytes would take minutes."""
_NAME = r"(?:batch \d+|sink '[^']*'|chunk [\w-]+|segment [\w-]+)"
_NAMES = re.compile(rf"(?<!\w){_NAME}(?:, {_NAME})*: ")


class Described(Protocol):
    """The part of a sink that messages need."""

    def describe(self) -> str:
        """Short description of the sink."""
        ...


def text_of(thing: object) -> str:
    """`str(thing)`, or a text that says why it failed."""
    return _made("str()", str, thing)


def repr_of(thing: object) -> str:
    """`repr(thing)`, or a text that says why it failed."""
    return _made("repr()", repr, thing)


def told(error: BaseException) -> str:
    """Class and text of an exception: `ValueError: expected a number`."""
    return f"{type(error).__name__}: {text_of(error)}"


def name_of(sink: Described) -> str:
    """`sink.describe()`, or a text that says why it failed."""
    return _made("describe()", _describe, sink)


def said_once(text: str) -> str:
    """The text with each batch, sink, chunk and segment named once, at its first mention.

    `batch 3, sink 'a': gave up: batch 3, chunk k: no route` becomes `batch 3, sink 'a': gave up: chunk k: no route`.
    """
    said: set[str] = set()

    def rest(names: re.Match[str]) -> str:
        new = [name for name in names[0].removesuffix(": ").split(", ") if name not in said]
        said.update(new)
        return f"{', '.join(new)}: " if new else ""

    return _NAMES.sub(rest, text)


def _describe(sink: Described) -> object:
    return sink.describe()


def _made(name: str, make: Callable[..., object], thing: object) -> str:
    """A text that UTF-8 can hold: half a surrogate pair could not be written."""
    try:
        text = str(make(thing))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by a user's code, which must not end the program
        return f"<a {type(thing).__name__} without text: {name} raised {type(error).__name__}>"
    return _cut(text).encode(errors="backslashreplace").decode()


def _cut(text: str) -> str:
    """The beginning and the end of a long text, in whole words: half of a password would not be recognised as a
    secret.
    """
    if len(text) <= _LONGEST:
        return text
    head = text[: _LONGEST // 2].rsplit(maxsplit=1)
    tail = text[-_LONGEST // 2 :].split(maxsplit=1)
    first, last = head[0] if len(head) > 1 else "", tail[1] if len(tail) > 1 else ""
    return f"{first} … {len(text) - len(first) - len(last):,} characters are left out … {last}"


class Level(StrEnum):
    """How serious a finding is."""

    OK = "OK"
    WARNING = "warning"
    """It works, but something may hurt later. Something that is unknown is at least a warning."""
    ERROR = "error"
    """A query or a drain fails, or its guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at, and the result. It must not contain a secret."""

    check: str
    """A short name for machines, such as `store.race`."""
    level: Level
    found: str
    """The result as a sentence without a full stop."""
    next_step: str = ""
    """The next step as a sentence without a full stop; empty only if the level is `OK`."""


def fine(check: str, found: str) -> Finding:
    """A finding that needs no step."""
    return Finding(check, Level.OK, found)


def risk(check: str, found: str, next_step: str) -> Finding:
    """A finding that may hurt later, or something that is unknown."""
    return Finding(check, Level.WARNING, found, next_step)


def fault(check: str, found: str, next_step: str) -> Finding:
    """A finding that must be corrected first."""
    return Finding(check, Level.ERROR, found, next_step)

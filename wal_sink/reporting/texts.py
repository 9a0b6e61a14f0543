"""Texts of objects that others made: exceptions, reasons, return values, sinks. Making a text never raises.

`str()`, `repr()` and `describe()` run code of a user or of a library. This code may raise (py4j asks a JVM that may be
gone), or return text that UTF-8 cannot hold. Such an exception would escape from the handler of another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

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

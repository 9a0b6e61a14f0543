"""Texts of things that others made: exceptions, reasons, return values, sinks. Making one never raises.

`str()`, `repr()` and `describe()` run code of a user or of a library, which may raise, or return text that no UTF-8
file can hold. Such an exception would escape from the very handler that wants to report another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_LONGEST = 200_000
"""How many characters of a text are kept. Masking what is secret in one of megabytes would take minutes."""


class Described(Protocol):
    """A sink, as far as messages are concerned."""

    def describe(self) -> str:
        """What this is."""
        ...


def text_of(thing: object) -> str:
    """`str(thing)`, or what kept it from telling."""
    return _made("str()", str, thing)


def repr_of(thing: object) -> str:
    """`repr(thing)`, or what kept it from telling."""
    return _made("repr()", repr, thing)


def told(error: BaseException) -> str:
    """Class and text of an exception: `ValueError: expected a number`."""
    return f"{type(error).__name__}: {text_of(error)}"


def name_of(sink: Described) -> str:
    """`sink.describe()`, or what kept it from telling."""
    return _made("describe()", _describe, sink)


def _describe(sink: Described) -> object:
    return sink.describe()


def _made(name: str, make: Callable[..., object], thing: object) -> str:
    """A plain `str` that UTF-8 can hold: a subclass could raise later, and half a surrogate pair when it is written."""
    try:
        made = make(thing)
        text = "".join((made if isinstance(made, str) else repr(made),))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of a user's own; nothing of it may end the program
        return f"<a {type(thing).__name__} without text: {name} raised {type(error).__name__}>"
    return _cut(text).encode(errors="backslashreplace").decode()


def _cut(text: str) -> str:
    """Its beginning and its end, of whole words: nobody would know a part of a password for one."""
    if len(text) <= _LONGEST:
        return text
    head = text[: _LONGEST // 2].rsplit(maxsplit=1)
    tail = text[-_LONGEST // 2 :].split(maxsplit=1)
    first, last = head[0] if len(head) > 1 else "", tail[1] if len(tail) > 1 else ""
    return f"{first} … {len(text) - len(first) - len(last):,} characters are left out … {last}"

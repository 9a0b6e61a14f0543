"""The lines of a sink's own code, as points at which a process may die or a request may fail.

So a sink that sends several requests for one chunk can be interrupted between them. This needs neither a hook in the
target nor a special client.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")
OnLine = Callable[[str], None]
"""A function that is called before each line runs, with the line. Its exceptions are raised in the line."""

_CORE = f"{Path(__file__).resolve().parents[1]}/"


class OwnLines:
    """The lines of a sink: of its class's methods, or of its function, and of functions of their module that they call.

    All other code, classes of that module included, belongs to a client or to the target. It is not interrupted,
    because a target may do in one atomic step what takes several lines in a fake of it.
    """

    def __init__(self, sink: object) -> None:
        self._own = frozenset(_own_names(sink))
        self._known: dict[CodeType, str] = {}

    def call(self, function: Callable[..., T], *args: object, on_line: OnLine) -> T:
        """Call a method of the sink on this thread. Debuggers and coverage tools see nothing of the call."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                on_line(_place(frame))
                return trace
            return trace if self._is_own(frame) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return next(_apart(function, args))
        finally:
            sys.settrace(before)

    def _is_own(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        if (known := self._known.get(frame.f_code)) is None:
            known = self._known[frame.f_code] = self._kind(frame.f_code)
        return known == "own" or (known == "helper" and self._is_own(frame.f_back))

    def _kind(self, code: CodeType) -> str:
        if any(code.co_filename == file and _is_in(code.co_qualname, name) for file, name in self._own):
            return "own"
        return "helper" if _is_of_module(code) and any(code.co_filename == file for file, _ in self._own) else ""


def _apart(function: Callable[..., T], args: tuple[object, ...]) -> Iterator[T]:
    """Call the function in a generator, since a generator has a separate state of handled exceptions.

    If a trace function raises at the beginning of an `except` clause, the handled exception stays in that state.
    Without the generator it would become the context of everything that this thread raises later.
    """
    yield function(*args)


def _is_in(name: str, function: str) -> bool:
    return name == function or name.startswith(f"{function}.<locals>.")


def _is_of_module(code: CodeType) -> bool:
    """Tell whether the code is a function that a module defines, or a comprehension in one."""
    name, *inner = code.co_qualname.split(".<locals>.")
    return name != "<module>" and "." not in name and all(part.startswith("<") for part in inner)


def _own_names(sink: object) -> Iterator[tuple[str, str]]:
    """Yield file and qualified name of each function that belongs to the sink. Functions of the core do not."""
    yield from _names_in(sink)
    if type(sink).__module__.partition(".")[0] == "wal_sink":  # it wraps the user's function or writer
        for part in vars(sink).values():
            yield from _names_in(part)


def _names_in(part: object) -> Iterator[tuple[str, str]]:
    members = (member for kind in type(part).__mro__ for member in vars(kind).values())
    for member in (part, *members):
        function: Any = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and not code.co_filename.startswith(_CORE):
            yield code.co_filename, code.co_qualname


def _place(frame: FrameType) -> str:
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{code.co_qualname}, line {frame.f_lineno}: {text}"

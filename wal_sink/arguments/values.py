"""Checks of names, values and functions that callers pass to the public interface. They run before anything else.

Every mistake of one kind is answered here, by a `ConfigError` that spells out the right call.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeGuard, TypeVar

from wal_sink.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

LONGEST_S = 1_000_000_000
"""Maximum number of seconds, some 31 years. Python's locks and queues cannot wait much longer, or for ever."""
MOST = 2**63 - 1
"""Maximum count: Arrow and Parquet count rows and bytes in 64 bits."""

_NOWHERE: Mapping[str, str] = MappingProxyType({})


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean NAME?"` for a name that resembles a known one, otherwise an empty text."""
    shown = {each.lower(): each for each in known}
    text = name.lower()
    close = get_close_matches(text, shown) or [each for each in shown if len(each) > 3 and text.startswith(each)]
    return f"; did you mean {shown[close[0]]}?" if close else ""


def spelled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a `ConfigError` instead of Python's `TypeError` for a wrong name or number of arguments."""
    return spelled_as(function.__qualname__)(function)


def spelled_as(name: str, elsewhere: Mapping[str, str] = _NOWHERE) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`spelled` for a function that users call `name`. `elsewhere`: names that belong to another call, and the right
    form of that call.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ConfigError(_wrong_call(name, signature, kwargs, str(error), elsewhere)) from None
            return function(*args, **kwargs)

        return call

    return decorate


def spelled_class(kind: C) -> C:
    """The class, with a `spelled` constructor."""
    constructor: Any = kind
    constructor.__init__ = spelled_as(kind.__name__)(constructor.__init__)
    return kind


def _wrong_call(
    name: str, signature: inspect.Signature, given: Iterable[str], problem: str, elsewhere: Mapping[str, str]
) -> str:
    """The message for a wrong call. An unknown name tells more than the missing one, which Python reports first."""
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    known = [each.name for each in parameters]
    for unknown in given:
        if unknown not in known:
            meant = did_you_mean(unknown, known)
            problem = f"unknown name {unknown!r}{meant}"
            if unknown in elsewhere:
                problem = f"{unknown!r} does not belong here; write {elsewhere[unknown]}"
            break
    end = "" if problem.endswith("?") else "."
    return f"{name}: {problem}{end} Expected {name}({_shown(parameters)})"


def _shown(parameters: Iterable[inspect.Parameter]) -> str:
    """The parameters by name; the documents have their types and defaults."""
    shown: list[str] = []
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        required = each.default is inspect.Parameter.empty
        shown.append(each.name if required else f"{each.name}=…")
    return ", ".join(shown)


def check_text(name: str, value: object, example: str = "s3://lake/orders") -> str:
    """A URL or a path as text. Raises `ConfigError` if it is neither, or empty."""
    if not isinstance(value, str | os.PathLike):
        shown = repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
        raise ConfigError(f"{name}={shown}: expected text, such as {name}={example!r}")
    text = str(value)
    if not text.strip():
        raise ConfigError(f"{name} is empty: expected text, such as {name}={example!r}")
    return text


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number. True and False are not, although Python counts with them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(name: str, value: object, *, above_0: bool = False) -> None:
    """Raise `ConfigError` unless the value is a number of seconds that a lock or a queue can wait."""
    if not (is_number(value) and 0 <= value <= LONGEST_S and (value > 0 or not above_0)):
        above = " above 0" if above_0 else ""
        raise ConfigError(
            f"{name}={value!r}: expected a number of seconds{above}, at most {LONGEST_S:,}, such as {name}=30"
        )


def check_timeout(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is None or a number of seconds from 0 on."""
    if value is not None:
        check_seconds(name, value)


def check_count(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is a whole number from 1 on that fits into 64 bits."""
    if not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST):
        raise ConfigError(f"{name}={value!r}: expected a whole number, at least 1 and at most {MOST:,}")


def check_bool(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is True or False: Python would take the text "no" for true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False")


def check_options(name: str, value: object) -> Mapping[str, object] | None:
    """Options by name, or None. Messages never show their values. Raises `ConfigError` for anything else."""
    if value is None or (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        return value
    raise ConfigError(
        f'{name}: expected a mapping of names to values, such as {name}={{"name": value}}, found a '
        f"{type(value).__name__}"
    )


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise `ConfigError` for a value that is not allowed. The message suggests a similar one."""
    choices = list(allowed)
    if value not in choices:
        meant = did_you_mean(repr(value), [repr(choice) for choice in choices])
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name}={value!r}: expected one of {listed}{meant}")


def name_of(thing: object) -> str:
    """The name of an object for people. Never its values, which may be secret."""
    if isinstance(thing, partial):
        called: object = thing.func
        return name_of(called)
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def takes(function: Callable[..., object], count: int) -> bool:
    """Return whether the function accepts so many arguments. True if Python cannot tell.

    Some functions written in C have no signature. Their first call then raises its own error.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def check_runs(function: object, what: str) -> None:
    """Refuse a function that would return at once without any effect. Raises `ConfigError`."""
    bodies = (function, type(function).__call__)  # an object may be called through it
    if any(inspect.iscoroutinefunction(body) for body in bodies):
        raise ConfigError(
            f"{what} is async: wal-sink would never await it, so nothing would be written. Use a plain function"
        )
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in bodies):
        raise ConfigError(
            f"{what} contains yield: a call would run none of its code, so nothing would be written. Use a plain "
            "function that returns None"
        )


def check_method(owner: object, method: str, *arguments: str) -> None:
    """Refuse a method that cannot be called with these arguments, or that would have no effect. Raises
    `ConfigError`.
    """
    function = getattr(owner, method)
    what = f"{type(owner).__qualname__}.{method}"
    check_runs(function, what)
    if not takes(function, len(arguments)):
        raise ConfigError(f"{what} cannot be called as wal-sink calls it: expected {method}({', '.join(arguments)})")

"""The options of a sink: in its URL, and secrets from the environment.

The options in a URL are the arguments of the constructor that a text can hold.

An option has the name of the argument, and the type of the argument says how the text is read:

- `bool` is true or false (also 1 or 0, in any case), `int` and `float` are numbers.
- `Sequence[str]` and `tuple[…, ...]` are lists with commas, `Mapping[str, str]` is NAME:VALUE pairs with commas. A
  comma within a value is `%2C`.
- `Literal[…]` is one of these words, `str` is any text. In a union, the first type that can read the text does.

Arguments of other types, such as functions, are no options. An option that is not in the URL keeps the default of the
constructor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

import msgspec

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.support.arguments import did_you_mean
from wal_sink.support.secrets import MASK, is_secret_name, mask_url

Options: TypeAlias = Mapping[str, Sequence[Any]]
"""Names of options, each with the types that may read its text. A name that ends with a dot stands for all names that
begin with it, whose texts are kept.
"""

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_EXPECTED: Mapping[Any, str] = MappingProxyType(
    {
        bool: "true or false",
        int: "a whole number, such as {name}=100",
        float: "a number, such as {name}=30",
        tuple: "whole numbers with commas, such as {name}=409,410",
        Mapping: "NAME:VALUE pairs with commas, such as {name}=NAME:VALUE,NAME:VALUE",
    }
)


def options_of(kind: type[Any], *but: str) -> dict[str, Sequence[Any]]:
    """The options of a constructor. `but` names the arguments that are none although a text could hold them."""
    hints: dict[str, Any] = get_type_hints(kind.__init__)
    found = {name: _readable(hint) for name, hint in hints.items() if name not in but}
    return {name: types for name, types in found.items() if types}


def options_in(query: str, url: str, known: Options) -> dict[str, Any]:
    """The values of the options in a URL, by name.

    `query` is the part of the URL that holds the options: all of it behind the first `?`, not only the text before a
    `#`, which the standard parser cuts off. `url` is for messages, which never show its secrets. Raises `ConfigError`
    for an unknown option, one that stands twice, text without `name=value`, and a text that no type can read.
    """
    parts = [part.partition("=") for part in query.split("&")] if query else []
    if not all(equals for _, equals, _ in parts):
        raise ConfigError(f"{mask_url(url)}: expected options as name=value&name=value")
    names = [unquote(name) for name, _, _ in parts]
    _check_names(names, url, known)
    return {
        name: _value(name, text, url, known.get(name, [str])) for name, (_, _, text) in zip(names, parts, strict=True)
    }


def taken(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The values of these names, which are removed from `values`."""
    return {name: values.pop(name) for name in names if name in values}


def options_by_mode(query: str, url: str, name: str, modes: Mapping[str, Options]) -> tuple[str, dict[str, Any]]:
    """The mode that the option `name` chooses, by default the first of `modes`, and the values of its options.

    Raises `ConfigError` as `options_in`, and for values that are no options of this mode.
    """
    known = {name: [Literal[*modes]], **{option: types for of in modes.values() for option, types in of.items()}}
    values = options_in(query, url, known)
    mode = values.pop(name, next(iter(modes)))
    if unfit := sorted(values.keys() - modes[mode].keys()):
        told, listed = ", ".join(unfit), ", ".join(modes[mode])
        raise ConfigError(f"{mask_url(url)}: {name}={mode} has no options {told}; options of this mode: {listed}")
    return mode, values


def refuse_braces(name: str, text: str, known: str = "") -> None:
    """Raise `ConfigError` for braces other than `known` in an address or a name: nothing takes their place."""
    if re.search("[{}]", text.replace(known, "")):
        told = f" except {known}; write others as %7B and %7D" if known else ", because it is not a template"
        raise ConfigError(f"{name}={mask_url(text)!r}: expected no braces{told}")


def _readable(hint: Any) -> list[Any]:
    """The types of a hint that can read a text, in order."""
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    plain = (bool, int, float, str, Mapping[str, str])
    return [each for each in types if each in plain or get_origin(each) in (Literal, Sequence, tuple)]


def _check_names(names: Sequence[str], url: str, known: Options) -> None:
    families = tuple(name for name in known if name.endswith("."))
    if unknown := sorted({name for name in names if name not in known and not name.startswith(families)}):
        listed = ", ".join(f"{name}NAME" if name in families else name for name in known)
        # A name may be a part of a password that holds a `?` or a `&`.
        doubtful = _may_hide_password(url) or any(map(is_secret_name, set(names).difference(known)))
        plain = (name for name in unknown if _NAME.fullmatch(name) and (is_secret_name(name) or not doubtful))
        shown, meant = ", ".join(plain) or MASK, did_you_mean(unknown[0], known)
        raise ConfigError(f"{mask_url(url)}: unknown options {shown}; known are {listed}{meant}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{mask_url(url)}: options given twice: {', '.join(twice)}. Give each option only once")


def _may_hide_password(url: str) -> bool:
    return "@" in url.partition("?")[2]


def _value(name: str, text: str, url: str, types: Sequence[Any]) -> Any:
    """The value of a text that is still quoted, and in which `+` is no blank."""
    for each in types:
        with suppress(ValueError):  # msgspec's too
            return msgspec.convert(_split(text, get_origin(each)), each, strict=False)
    plain = unquote(text)
    shown = MASK if _may_hide_password(url) else repr(plain)
    expected = " or ".join(_expected(name, plain, each) for each in types)
    raise ConfigError(f"{mask_url(url)}: {name}={shown}: expected {expected}")


def _split(text: str, kind: Any) -> object:
    """The parts of a text for a list or a mapping. Raises `ValueError` for what is no NAME:VALUE."""
    if kind in (Sequence, tuple):
        return [unquote(part) for part in text.split(",") if part]
    if kind is Mapping:
        return dict([unquote(half) for half in pair.split(":")] for pair in text.split(","))
    return unquote(text)


def _expected(name: str, text: str, kind: Any) -> str:
    """The text that an option of this type takes, with an example."""
    if get_origin(kind) is Literal:
        words = get_args(kind)
        return f"one of {', '.join(map(repr, words))}{did_you_mean(text, words)}"
    return _EXPECTED[get_origin(kind) or kind].format(name=name)


def from_environment(names: Mapping[str, str], sink: str) -> dict[str, str]:
    """The values of environment variables by the keys of `names`. `PermanentError` names the first that is not set.

    `sink` is for the message, without secrets.
    """
    for name in names.values():
        if name not in os.environ:
            raise PermanentError(
                f"{sink}: the environment variable {name} is not set where the sink runs. Set this variable"
            )
    return {option: os.environ[name] for option, name in names.items()}

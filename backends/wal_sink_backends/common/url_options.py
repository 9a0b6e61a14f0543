"""The options in the URL of a sink: the arguments of its constructor, or fields of dataclasses. msgspec converts them.

A field of such a dataclass is the option of the same name. Its type says how the text is read:

- `bool` is true or false (also 1 or 0, in any case), `int` and `float` are numbers as Python writes them.
- `tuple[…, ...]` and `Sequence[…]` are lists with commas, `Mapping[str, str]` is NAME:VALUE pairs with commas. A comma
  as `%2C` is part of a value.
- `Literal[…]` is one of these words, `str` is any text. In a union, the first type that can read the text does.

`None` as the default means that the option is not in the URL, so that the default of the sink holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from inspect import signature
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

import msgspec

from wal_sink.arguments import did_you_mean
from wal_sink.errors import ConfigError
from wal_sink.redaction import MASK, is_secret_name, mask_url

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_PREFIX = "prefix"
_BOOLEANS: Mapping[str, bool] = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def family(prefix: str) -> Any:
    """A field for all options whose names begin with `prefix`: a mapping from the rest of each name to its text."""
    return field(default_factory=dict, metadata={_PREFIX: prefix})


def options_of(sink: type[Any], *, without: Collection[str] = (), **prefixes: str) -> type[Any]:
    """The arguments of `sink` that a URL may hold, as a dataclass: all but the first, which is its address, and
    `without`. `prefixes`: for an argument that is a family of options, with what their names begin.
    """
    given = [each for each in [*signature(sink).parameters.values()][1:] if each.name not in without]
    named: list[Any] = [
        (each.name, each.annotation, family(prefixes[each.name]) if each.name in prefixes else None) for each in given
    ]
    return make_dataclass(f"{sink.__name__}Options", named, namespace={"__module__": sink.__module__})


class UrlOptions:
    """The options of one URL, as the dataclasses `kinds` declare them.

    `query` is the part of the URL that holds the options: all of it behind the first `?`, not only the text before a
    `#`, which the standard parser cuts off. `url` is for messages, which never show its secrets. Raises
    `ConfigError` for an option that no kind declares, for one that stands twice, and for text without `name=value`.
    """

    def __init__(self, query: str, url: str, *kinds: type[Any]) -> None:
        self._url = mask_url(url)
        self._may_hide_password = "@" in url.partition("?")[2]
        pairs = self._pairs_in(query)
        self._check_names([name for name, _ in pairs], kinds)
        self._quoted = dict(pairs)
        self.texts: Mapping[str, str] = {name: unquote(text) for name, text in pairs}
        """The options as they stand in the URL, unquoted."""

    def read(self, kind: type[T]) -> T:
        """The options that `kind` declares. Raises `ConfigError` for a text that the option's type cannot read."""
        return kind(**self.arguments(kind))

    def arguments(self, kind: type[Any]) -> dict[str, Any]:
        """The same by name, without the options that are not in the URL."""
        hints, found = get_type_hints(kind), dict[str, Any]()
        for each in fields(kind):
            if prefix := each.metadata.get(_PREFIX):
                named = self.texts.items()
                found[each.name] = {name.removeprefix(prefix): text for name, text in named if name.startswith(prefix)}
            elif each.name in self.texts:
                found[each.name] = self._converted(each.name, hints[each.name])
        return found

    def not_of(self, *kinds: type[Any]) -> list[str]:
        """The names in the URL that none of these kinds declares, sorted."""
        return sorted(set(self.texts).difference(*map(names_of, kinds)))

    def _converted(self, name: str, hint: Any) -> Any:
        text = self.texts[name]
        try:
            return msgspec.convert(_plain(self._quoted[name], hint), hint)
        except ValueError:  # msgspec's too
            shown = MASK if self._may_hide_password else repr(text)
            raise ConfigError(f"{self._url}: {name}={shown}: expected {_expected(name, text, hint)}") from None

    def _pairs_in(self, query: str) -> list[tuple[str, str]]:
        """Names, and texts that are still quoted: a comma as `%2C` is part of a value, and `+` is no blank."""
        parts = [part.partition("=") for part in query.split("&")] if query else []
        if not all(equals for _, equals, _ in parts):
            raise ConfigError(f"{self._url}: expected options as name=value&name=value")
        return [(unquote(name), text) for name, _, text in parts]

    def _check_names(self, names: list[str], kinds: Iterable[type[Any]]) -> None:
        known = list(dict.fromkeys(name for kind in kinds for name in names_of(kind)))
        prefixes = tuple(each.metadata[_PREFIX] for kind in kinds for each in fields(kind) if each.metadata)
        if unknown := sorted({name for name in names if name not in known and not name.startswith(prefixes)}):
            listed = ", ".join((*known, *(f"{prefix}NAME" for prefix in prefixes)))
            shown, meant = self._shown(unknown, set(names).difference(known)), did_you_mean(unknown[0], known)
            raise ConfigError(f"{self._url}: unknown options {shown}; known are {listed}{meant}")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{self._url}: options given twice: {', '.join(twice)}. Give each option only once")

    def _shown(self, unknown: Iterable[str], undeclared: Iterable[str]) -> str:
        """Names in a message. One may be a part of a password that holds a `?` or a `&`."""
        doubtful = self._may_hide_password or any(map(is_secret_name, undeclared))
        plain = (name for name in unknown if _NAME.fullmatch(name) and (is_secret_name(name) or not doubtful))
        return ", ".join(plain) or MASK


def refuse_braces(name: str, text: str, known: str = "") -> None:
    """Raise `ConfigError` for braces other than `known` in an address or a name: nothing takes their place."""
    if re.search("[{}]", text.replace(known, "")):
        told = f" except {known}; write others as %7B and %7D" if known else ", because it is no template"
        raise ConfigError(f"{name}={mask_url(text)!r}: expected no braces{told}")


def names_of(kind: type[Any]) -> list[str]:
    """The options that a dataclass declares, in order, without its families."""
    return [each.name for each in fields(kind) if not each.metadata]


def _plain(text: str, hint: Any) -> object:
    """The plain value of a quoted text, which msgspec converts to this type. Raises `ValueError` if there is none."""
    if choices := _choices(hint):
        return _first_that_reads(text, choices)
    if hint is bool:
        return _boolean(unquote(text))
    if hint in (int, float):
        return hint(unquote(text))
    if get_origin(hint) in (tuple, Sequence):
        return [_plain(part, get_args(hint)[0]) for part in text.split(",") if part]
    if get_origin(hint) is Mapping:
        pairs = [pair.split(":") for pair in text.split(",")]
        return {unquote(name): unquote(value) for name, value in pairs}
    return unquote(text)


def _choices(hint: Any) -> list[Any]:
    """The types of a union, without None: an option in a URL has a text. Empty for a type that is no union."""
    if get_origin(hint) not in (Union, UnionType):
        return []
    return [each for each in get_args(hint) if each is not NoneType]


def _first_that_reads(text: str, choices: Iterable[Any]) -> object:
    for each in choices:
        try:
            return _plain(text, each)
        except ValueError:
            continue  # another type may read it; if none does, the error below says so
    raise ValueError(text)


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _expected(name: str, text: str, hint: Any) -> str:
    """The text that an option of this type takes, with an example."""
    if choices := _choices(hint):
        return " or ".join(_expected(name, text, each) for each in choices)
    if get_origin(hint) is Literal:
        words = get_args(hint)
        return f"one of {', '.join(map(repr, words))}{did_you_mean(text, words)}"
    return _EXPECTED.get(get_origin(hint) or hint, "text").format(name=name)


_EXPECTED: Mapping[Any, str] = MappingProxyType(
    {
        bool: "true or false",
        int: "a whole number, such as {name}=100",
        float: "a number, such as {name}=30",
        tuple: "whole numbers with commas, such as {name}=409,410",
        Mapping: "NAME:VALUE pairs with commas, such as {name}=NAME:VALUE,NAME:VALUE",
    }
)

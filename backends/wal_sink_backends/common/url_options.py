"""The options in the URL of a sink, each at most once, unknown ones refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl

from wal_sink.arguments.values import did_you_mean
from wal_sink.errors import ConfigError
from wal_sink.redaction import MASK, is_secret_name, mask_url

_NAME = re.compile(r"[A-Za-z][\w.-]*")


def options_in(query: str, known: Iterable[str], url: str, *, families: Iterable[str] = ()) -> dict[str, str]:
    """The options of a query (or fragment). A name of a family is any that begins so; `url` is for messages.

    Raises `ConfigError` for names that are unknown or stand twice, and for what is no `name=value`.
    """
    known, families = tuple(known), tuple(families)
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(f"{mask_url(url)}: expected options as name=value&name=value") from None
    names = [name for name, _ in given]
    if unknown := sorted({name for name in names if name not in known and not name.startswith(families)}):
        listed = ", ".join((*known, *(f"{family}NAME" for family in families)))
        meant, shown = did_you_mean(unknown[0], known), _shown(unknown, names, known, url)
        raise ConfigError(f"{mask_url(url)}: unknown options {shown}; known are {listed}{meant}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{mask_url(url)}: options given twice: {', '.join(twice)}")
    return dict(given)


def _shown(unknown: Iterable[str], given: Iterable[str], known: Iterable[str], url: str) -> str:
    """Names in a message. One may be a part of a password that holds a `?` or a `&`."""
    doubtful = "@" in url.partition("?")[2] or any(map(is_secret_name, {*given}.difference(known)))
    plain = (name for name in unknown if _NAME.fullmatch(name) and (is_secret_name(name) or not doubtful))
    return ", ".join(plain) or MASK

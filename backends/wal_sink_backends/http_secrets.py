"""What an API may echo and nobody may read."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

_SHORTEST_SECRET = 4
_SHORTEST_NAME = 6
_ORDINARY = frozenset({"basic", "bearer", "digest", "token", "true", "false", "none", "null", "json", "utf-8", "gzip"})
"""Words that stand in headers and queries, and in anything an API says."""


def secrets_in(urls: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """Credentials in the URLs, values of headers; the longest first."""
    found = {part for value in headers.values() for part in (value, *value.split())}
    for url in urls:
        found |= _secrets_of(url)
    hidden = (text for text in found if len(text) >= _SHORTEST_SECRET and text.lower() not in _ORDINARY)
    return tuple(sorted(hidden, key=len, reverse=True))


def _secrets_of(url: str) -> set[str]:
    """Those of a URL, as they stand there, plain, percent-encoded, and as httpx sends them (Base64)."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    plain = {password, *(value for _, value in parse_qsl(parts.query))}
    if len(user) >= _SHORTEST_NAME or not password:  # a short name is no secret, and a word of many messages
        plain.add(user)
    written = {parts.password or "", *(pair.partition("=")[2] for pair in parts.query.split("&"))}
    sent = {base64.b64encode(f"{user}:{password}".encode()).decode()} if user or password else set[str]()
    return plain | written | sent | {spelt(text) for text in plain for spelt in (quote_plus, _quoted)}


def _quoted(text: str) -> str:
    return quote(text, safe="")

"""Secrets that an API may echo in its answers, and that no message may show."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from wal_sink.redaction import Redactor, secrets_in_url


def hider_of(urls: Iterable[str], headers: Mapping[str, str]) -> Redactor:
    """A redactor that takes the credentials of these URLs and the values of these headers out of texts."""
    found = {part for value in headers.values() for part in (value, *value.split())}
    for url in urls:
        found |= secrets_in_url(url) | _sent(url)
    return Redactor(found)


def _sent(url: str) -> set[str]:
    """The credentials of a URL as httpx sends them (Base64)."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return {base64.b64encode(f"{user}:{password}".encode()).decode()} if user or password else set()

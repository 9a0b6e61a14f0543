"""Checks of the addresses of Redis servers."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url

_SCHEMES = ("redis", "rediss", "unix")


def refuse_sentinel(url: str) -> None:
    """Raise `ConfigError` for a URL of Sentinel, which knows servers but holds no rows."""
    if "sentinel" in urlsplit(url).scheme:
        raise ConfigError(
            f"{mask_url(url)}: Sentinel is not supported, so it cannot be used to find the primary. Use "
            "redis://host:6379/0 with a host name or a proxy that follows the primary. A replica refuses writes, and "
            "then delivery tries again"
        )


def check_address(url: str) -> None:
    """Raise `ConfigError` for a URL that does not name exactly one server."""
    refuse_sentinel(url)
    parts = urlsplit(url)
    if "," in parts.netloc:
        raise ConfigError(
            f"{mask_url(url)}: the URL names several hosts, but Sentinel and Redis Cluster are not supported. Use one "
            "host: a host name or a proxy that follows the primary"
        )
    try:
        database = re.fullmatch(r"(/\d*)?", parts.path) is not None
        there = len(parts.path) > 1 if parts.scheme == "unix" else bool(parts.hostname) and parts.port != 0 and database
        usable = parts.scheme in _SCHEMES and there and not parts.query
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ConfigError(
            f"{mask_url(url)}: expected redis://host:6379/0, rediss://host:6379/0 or unix:///path/of.sock"
        )

"""Sinks by URL. The entry points of group `wal_sink.backends` map a scheme to its sink, so that other packages can add
schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.sinks.base import BatchSink, Sink, as_sink
from wal_sink.support.arguments import did_you_mean
from wal_sink.support.secrets import mask_url

GROUP = "wal_sink.backends"

_DATABASE_FILES = {".db", ".sqlite", ".sqlite3"}
_SERVERS = {"postgresql", "mysql", "mariadb"}
_NONE = (
    "none, as in a copy of wal-sink that was not installed (for example from --py-files). Install it, or pass the sink "
    "itself instead of a URL"
)
_TOLD_BY = {"redis+sentinel": "redis", "rediss+sentinel": "redis", "sentinel": "redis"}
"""Schemes without a backend, and the scheme whose backend explains why in its error."""


def sink_from_url(url: str) -> Sink | BatchSink:
    """The sink for a URL such as `sqlite:///orders.db?table=orders`. Raises `ConfigError` if no backend supports its
    scheme.
    """
    scheme = urlsplit(url).scheme
    found = entry_points(group=GROUP, name=scheme) or entry_points(group=GROUP, name=_TOLD_BY.get(scheme, scheme))
    for entry in found:
        make = cast("Callable[[str], Sink | BatchSink]", entry.load())
        return as_sink(make(url))
    known = sorted({entry.name for entry in entry_points(group=GROUP)})
    if not url.strip():
        raise ConfigError("the URL of a target is empty: expected, for example, sqlite:///orders.db?table=orders")
    raise ConfigError(
        f"{mask_url(url)}: no backend serves the scheme {scheme!r}; installed are: {', '.join(known) or _NONE}"
        f"{_meant(url, scheme, known)}"
    )


def _meant(url: str, scheme: str, known: Iterable[str]) -> str:
    if scheme == "jdbc":
        return _instead_of_jdbc(url)
    if not scheme:
        return _instead_of_path(url)
    if scheme in {"s3", "s3a", "s3n"}:
        return f". For files on S3 write files+s3://{mask_url(url).partition('://')[2]}?format=parquet"
    if scheme == "file":
        return f". For files in a folder write files://{url.partition(':')[2].removeprefix('//')}?format=parquet"
    return did_you_mean(scheme, known)


def _instead_of_jdbc(url: str) -> str:
    """Advice for a database that JDBC reaches. The rest of the URL may hold a password, so it is not repeated."""
    server = urlsplit(url.partition(":")[2]).scheme
    own = ""
    if server in _SERVERS:
        own = f"{server}://user@host/database?table=NAME, which delivers exactly once, or "
    elif server == "sqlite":
        own = "sqlite:///file.db?table=NAME, which delivers exactly once, or "
    return (
        f'. Write {own}wrap.spark_writer(\'jdbc\', {{"url": "jdbc:…", "dbtable": "NAME"}}) to use Spark\'s own writer'
    )


def _instead_of_path(url: str) -> str:
    path = url.partition("?")[0]
    if Path(path).suffix in _DATABASE_FILES:
        return f". For an SQLite file write sqlite:///{path}?table=NAME"
    return (
        f". For files in a folder write files://{Path(path).absolute()}?format=parquet. Always name a target by a URL, "
        "scheme://…"
    )

"""Sinks by URL. A scheme is found through the entry points of group `wal_sink.backends`, so that others can add
theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.sink import BatchSink, Sink

GROUP = "wal_sink.backends"


def sink_from_url(url: str) -> Sink | BatchSink:
    """The sink a URL such as `sqlite:///orders.db?table=orders` names; `ConfigError` if no backend knows its scheme."""
    scheme = urlsplit(url).scheme
    found = entry_points(group=GROUP, name=scheme)
    for entry in found:
        make = cast("Callable[[str], Sink | BatchSink]", entry.load())
        return make(url)
    known = ", ".join(sorted({entry.name for entry in entry_points(group=GROUP)})) or "none"
    raise ConfigError(f"{mask_url(url)}: no backend serves the scheme {scheme!r}; installed are: {known}")

"""The sinks of web APIs by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.pacing import Pacing
from wal_sink_backends.common.url_options import UrlOptions, names_of, options_of
from wal_sink_backends.http.api import Statuses
from wal_sink_backends.http.lookup_sink import HttpLookupSink
from wal_sink_backends.http.sink import HttpSink

_OPTIONS = options_of(HttpSink, without={"headers", "statuses", "pacing", "check", "max_answer_bytes"})
_LOOKUP = options_of(HttpLookupSink, without={"more"})


def http_sink(url: str) -> HttpSink:
    """A sink by URL: the API's own, with options after `#`, which APIs never see.

    `https://api.example.com/orders?site=7#idempotent=true&headers_from_env=Authorization:ORDERS_AUTH`. Options are
    those of `HttpSink` and `HttpLookupSink` (`lookup_url`), of `Pacing` and of `Statuses` (`done`, `retry`, `refused`:
    numbers with commas).
    """
    address, _, fragment = url.partition("#")
    if "#" in fragment or ("@" in fragment and "@" not in address):  # it may end a secret, so it must not show
        raise ConfigError(
            f"{mask_url(url)}: expected one '#' before the options; write # as %23, and @ in options as %40"
        )
    ours = {name for kind in (_OPTIONS, _LOOKUP, Pacing, Statuses) for name in names_of(kind)}
    if misplaced := ours.intersection(part.partition("=")[0] for part in urlsplit(address).query.split("&")):
        raise ConfigError(
            f"{mask_url(url)}: {', '.join(sorted(misplaced))} stands before '#'. Options of wal-sink stand after it, "
            "https://…#idempotent=true. If this is an option of the API, pass HttpSink('https://…') instead of the URL"
        )
    options = UrlOptions(fragment, address, _OPTIONS, _LOOKUP, Pacing, Statuses)
    arguments = options.arguments(_OPTIONS) | options.arguments(_LOOKUP)
    kind = HttpLookupSink if "lookup_url" in arguments else HttpSink
    return kind(address, pacing=options.read(Pacing), statuses=options.read(Statuses), **arguments)

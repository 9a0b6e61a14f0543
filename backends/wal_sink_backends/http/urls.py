"""The sinks of web APIs by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import options_in, options_of, taken
from wal_sink_backends.common.pacing import Pacing
from wal_sink_backends.http.api import Statuses
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink

# `headers` would show secrets, and `max_answer_bytes` means nothing without a function that checks answers.
_OPTIONS = options_of(HttpSink, "url", "headers", "max_answer_bytes") | options_of(HttpLookupSink, "url")
_PACING, _STATUSES = options_of(Pacing), options_of(Statuses)


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
    known = _OPTIONS | _PACING | _STATUSES
    if misplaced := known.keys() & {part.partition("=")[0] for part in urlsplit(address).query.split("&")}:
        raise ConfigError(
            f"{mask_url(url)}: {', '.join(sorted(misplaced))} stands before '#'. Options of wal-sink stand after it, "
            "https://…#idempotent=true. If this is an option of the API, pass HttpSink('https://…') instead of the URL"
        )
    values = options_in(fragment, address, known)
    pacing, statuses = Pacing(**taken(values, _PACING)), Statuses(**taken(values, _STATUSES))
    kind = HttpLookupSink if "lookup_url" in values else HttpSink
    return kind(address, pacing=pacing, statuses=statuses, **values)

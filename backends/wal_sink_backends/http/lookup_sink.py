"""Rows to a web API that tells whether it has a chunk: a look-up comes before a chunk is sent again."""

from __future__ import annotations

from typing import Any

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.redaction import mask_url
from wal_sink.runtime.clock import SYSTEM
from wal_sink_backends.common.pacing import Patience
from wal_sink_backends.http.api import Call
from wal_sink_backends.http.sink import KEY, HttpSink, checked_url

_NO_CACHE = {"Cache-Control": "no-cache"}
"""A cache on the way may keep a 404 that was true before the chunk was sent."""


class HttpLookupSink(HttpSink):
    """An `HttpSink` whose API tells whether it has a chunk: at least once, and only late requests repeat rows.

    `lookup_url` holds `{key}`, which becomes the key of the chunk's request: `https://api.example.com/chunks/{key}`.
    GET must answer with 200 if the API has the whole chunk of that key, and with 404 if it has nothing of it. Anything
    else is an error. The look-up has the same headers. `body="rows"` is refused: its requests carry the keys of rows.
    """

    _is_looked_up = True

    def __init__(self, url: str, *, lookup_url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._lookup_url = lookup_url
        checked_url(lookup_url)
        if KEY not in lookup_url:
            raise ConfigError(f"lookup_url={mask_url(lookup_url)!r}: expected {{key}} in it, for the key of a chunk")
        if self._body == "rows":
            raise ConfigError(
                "lookup_url with body='rows': the API receives keys of rows, but never the key of a chunk. Omit "
                "lookup_url or body='rows'"
            )

    def _urls(self) -> list[str]:
        return [self._url, self._lookup_url]

    def was_applied(self, key: str) -> bool:
        """Ask the API, and not a cache before it. Raises what `write` raises.

        `PermanentError` if the API also answers 200 for a key that was never sent, as a login page in front of it does.
        """
        if not self._knows(self._own_key(key)):
            return False
        never_sent = self._own_key(SYSTEM.new_id())  # an API may look at the form of a key
        if self._knows(never_sent):
            raise PermanentError(
                f"chunk {key}: {mask_url(self._lookup_url)} answered 200 for this chunk, but also for {never_sent}. "
                "That key was never sent, so 404 was expected. So an answer of 200 proves nothing, and the chunk may "
                "be missing. Correct lookup_url, or the server that answers in place of the API"
            )
        return True

    def _knows(self, key: str) -> bool:
        call = Call("GET", self._lookup_url.replace(KEY, key), b"", _NO_CACHE, 0, f"chunk {key}")
        return self._opened().knows(call, Patience(self._pacing.max_wait_s))

"""Rows to a web API: `HttpSink`, by idempotency keys, and `HttpLookupSink`, by look-ups.

`api` sends one request and interprets its answer, `answers` reads bodies and runs a user's check, `ends` finds out
where an answer ends. Only `api` knows httpx.
"""

from wal_sink_backends.common.pacing import Pacing
from wal_sink_backends.http.api import Statuses
from wal_sink_backends.http.lookup_sink import HttpLookupSink
from wal_sink_backends.http.sink import HttpSink

__all__ = ["HttpLookupSink", "HttpSink", "Pacing", "Statuses"]

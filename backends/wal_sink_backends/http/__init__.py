"""Rows to a web API: `HttpSink`, by idempotency keys, and `HttpLookupSink`, by look-ups.

`api` sends one request, reads the body of its answer, finds out where it ends, and interprets it. Only `api` knows
httpx.
"""

from wal_sink_backends.common.pacing import Pacing
from wal_sink_backends.http.api import Statuses
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink

__all__ = ["HttpLookupSink", "HttpSink", "Pacing", "Statuses"]

"""`HttpSink` and `HttpLookupSink`: rows to a web API, by idempotency keys or look-ups."""

from wal_sink_backends.common.pacing import Pacing
from wal_sink_backends.http.api import Statuses
from wal_sink_backends.http.lookup_sink import HttpLookupSink
from wal_sink_backends.http.sink import HttpSink

__all__ = ["HttpLookupSink", "HttpSink", "Pacing", "Statuses"]

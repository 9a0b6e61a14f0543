"""Events of a run for `on_event`, and times of requests and chunks for metrics.

Off unless a user asks for it, and then it adds no request. An event tells of a batch, an attempt or a failure, never of
a row. A thread tells an event while it holds no lock; an event that comes up under one is told afterwards. A hook that
fails harms nothing.
"""

from wal_sink.support.events import (
    AttemptFailed,
    Began,
    Collected,
    Delivered,
    Ended,
    Event,
    FoundDelivered,
    GaveUp,
    Marked,
    Rejected,
    Released,
    Replayed,
    Sent,
    SlowStore,
    Staged,
    StreamHeld,
    StreamResumed,
)

__all__ = [
    "AttemptFailed",
    "Began",
    "Collected",
    "Delivered",
    "Ended",
    "Event",
    "FoundDelivered",
    "GaveUp",
    "Marked",
    "Rejected",
    "Released",
    "Replayed",
    "Sent",
    "SlowStore",
    "Staged",
    "StreamHeld",
    "StreamResumed",
]

"""Clock, calls with a limit of time, events, metrics, texts."""

from __future__ import annotations

from wal_sink.metrics.numbers import METRICS, Metric
from wal_sink.support.calls import CallTimedOutError, DirectCall, ThreadCall, side_by_side
from wal_sink.support.clock import SYSTEM, ProcessIdentity, Runtime, StoppedError, host_name, process_identity
from wal_sink.support.events import Events
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import Finding, Level
from wal_sink.telemetry import Began, Collected, Ended, Event, GaveUp, Marked, Replayed, Sent, Staged

__all__ = [
    "METRICS",
    "Metric",
    "SYSTEM",
    "Began",
    "CallTimedOutError",
    "Collected",
    "DirectCall",
    "Ended",
    "Event",
    "Events",
    "Finding",
    "GaveUp",
    "Level",
    "Marked",
    "ProcessIdentity",
    "Replayed",
    "Runtime",
    "Sent",
    "Staged",
    "StoppedError",
    "ThreadCall",
    "host_name",
    "logger_of",
    "process_identity",
    "side_by_side",
]

"""Clock, calls with a limit of time, events, metrics, texts."""

from __future__ import annotations

from wal_sink.metrics.numbers import METRICS
from wal_sink.reporting.findings import Finding, Level
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import SYSTEM, ProcessIdentity, Runtime, process_identity
from wal_sink.runtime.side_by_side import side_by_side
from wal_sink.runtime.stopped import StoppedError
from wal_sink.runtime.timed_calls import CallTimedOutError, DirectCall, ThreadCall
from wal_sink.telemetry import Began, Collected, Ended, Event, GaveUp, Marked, Replayed, Staged

__all__ = [
    "METRICS",
    "SYSTEM",
    "Began",
    "CallTimedOutError",
    "Collected",
    "DirectCall",
    "Ended",
    "Event",
    "Finding",
    "GaveUp",
    "Level",
    "Marked",
    "ProcessIdentity",
    "Replayed",
    "Runtime",
    "Staged",
    "StoppedError",
    "ThreadCall",
    "logger_of",
    "process_identity",
    "side_by_side",
]

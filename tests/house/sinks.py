"""Targets, and the chunks that they get."""

from __future__ import annotations

from wal_sink.sinks.base import (
    BatchCommit,
    BatchSink,
    CommitPosition,
    CommitSink,
    Rejected,
    ReleasedBatch,
    SegmentSink,
    Sink,
    SinkContext,
    StagedSegment,
    TransactionalSink,
    as_sink,
)
from wal_sink.sinks.calls import SinkSession, check_returned
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.failures import Failure, FailureKind, ForgottenError, SinkFailedError
from wal_sink.sinks.guarantees import Ability, promise
from wal_sink.sinks.ledger import LedgerEntry, slot_name
from wal_sink.sinks.urls import sink_from_url

__all__ = [
    "Ability",
    "BatchCommit",
    "BatchSink",
    "Chunk",
    "CommitPosition",
    "CommitSink",
    "Failure",
    "FailureKind",
    "ForgottenError",
    "LedgerEntry",
    "Position",
    "Rejected",
    "ReleasedBatch",
    "SegmentSink",
    "Sink",
    "SinkContext",
    "SinkFailedError",
    "SinkSession",
    "StagedSegment",
    "TransactionalSink",
    "as_sink",
    "check_returned",
    "promise",
    "sink_from_url",
    "slot_name",
]

"""wal-sink: a write-ahead-log sink for Spark Structured Streaming."""

from wal_sink import wrap
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    DeliveryError,
    DivergentReplay,
    FencedError,
    ForgottenError,
    HandleGoneError,
    HeldError,
    HistoryError,
    HistoryGone,
    MissingBatch,
    ObjectLost,
    OutcomeUnknownError,
    PermanentError,
    RetryLaterError,
    StoreError,
    UndeliveredError,
    WalSinkError,
)
from wal_sink.inspection import Status
from wal_sink.replay import DeadLetters, ReplayResult
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import (
    BatchSink,
    Rejected,
    SegmentSink,
    Sink,
    SinkContext,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
    idempotent,
)
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.walsink import WalSink

__all__ = [
    "BatchSink",
    "Chunk",
    "ConfigError",
    "CorruptError",
    "DeadLetters",
    "Delivery",
    "DeliveryError",
    "DivergentReplay",
    "FencedError",
    "ForgottenError",
    "HandleGoneError",
    "HeldError",
    "HistoryError",
    "HistoryGone",
    "LedgerEntry",
    "MissingBatch",
    "ObjectLost",
    "OutcomeUnknownError",
    "PermanentError",
    "Position",
    "Rejected",
    "ReplayResult",
    "RetryLaterError",
    "SegmentSink",
    "Settings",
    "Sink",
    "SinkContext",
    "Status",
    "StoreError",
    "Transaction",
    "TransactionalSink",
    "TwoPhaseSink",
    "UndeliveredError",
    "WalSink",
    "WalSinkError",
    "idempotent",
    "wrap",
]

"""wal-sink: a write-ahead-log sink for Spark Structured Streaming.

The public names are those of `__all__` here and in `wal_sink.wrap`, `wal_sink.sinks` (for authors of backends),
`wal_sink.spark`, `wal_sink.telemetry`, `wal_sink.testing`, `wal_sink_backends` and its packages. Everything else may
change without notice.
"""

from wal_sink import wrap
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    DeliveryError,
    FencedError,
    HandleGoneError,
    HeldError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
    RetryLaterError,
    StoreError,
    UndeliveredError,
    WalSinkError,
)
from wal_sink.metrics.prometheus import Metrics
from wal_sink.operate.replay import DeadLetters
from wal_sink.operate.status import Status
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.sinks.base import (
    BatchSink,
    Rejected,
    ReleasedBatch,
    Sink,
    SinkContext,
    TransactionalSink,
    TwoPhaseSink,
    idempotent,
)
from wal_sink.sinks.chunk import Chunk
from wal_sink.walsink import WalSink

__all__ = [
    "BatchSink",
    "Chunk",
    "ConfigError",
    "CorruptError",
    "DeadLetters",
    "Delivery",
    "DeliveryError",
    "FencedError",
    "HandleGoneError",
    "HeldError",
    "HistoryError",
    "Metrics",
    "OutcomeUnknownError",
    "PermanentError",
    "Rejected",
    "ReleasedBatch",
    "Retry",
    "RetryLaterError",
    "Settings",
    "Sink",
    "SinkContext",
    "Status",
    "StoreError",
    "TransactionalSink",
    "TwoPhaseSink",
    "UndeliveredError",
    "WalSink",
    "WalSinkError",
    "idempotent",
    "wrap",
]

__version__: str
"""The installed version, read when it is first used: a copy shipped with `--py-files` has no metadata."""


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - at the top it would be a name of this package

        return version("wal-sink")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

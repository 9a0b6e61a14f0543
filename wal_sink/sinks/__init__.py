"""The interface for targets: `Sink` and its kinds, chunks, positions, guarantees. Also the code that calls a sink.

The ready-made sinks are in `wal_sink_backends`, not here; `urls` finds them by the scheme of a URL.

The names below are for authors of sinks: values and kinds that few sinks need, such as those of a ledger, and tools
that the ready-made sinks share (rows as plain values and as JSON, removal of secrets from texts, loggers). `wal_sink`
holds the other classes that a sink implements, and the errors that it raises.
"""

from wal_sink.sinks.base import (
    BatchCommit,
    CommitPosition,
    CommitSink,
    Lookup,
    SegmentSink,
    StagedSegment,
    Transaction,
)
from wal_sink.sinks.calls import is_certificate_error
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.json_rows import Maps, check_maps, decimal_texts, plain_values, to_json_lines
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import Redactor, is_secret_name, mask_url, named_secrets, secrets_in_url

__all__ = [
    "BatchCommit",
    "CommitPosition",
    "CommitSink",
    "LedgerEntry",
    "Lookup",
    "Maps",
    "Position",
    "Redactor",
    "SegmentSink",
    "StagedSegment",
    "Transaction",
    "check_maps",
    "decimal_texts",
    "is_certificate_error",
    "is_secret_name",
    "logger_of",
    "mask_url",
    "named_secrets",
    "plain_values",
    "secrets_in_url",
    "to_json_lines",
]

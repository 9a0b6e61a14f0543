"""Objects on the store: paths, records, terms, holders, segments."""

from __future__ import annotations

from wal_sink.log import paths, segment_writer, terms
from wal_sink.log.holders import Holding, TakeOver, holder_of, note_end
from wal_sink.log.log import NOTHING, Log, Stamp
from wal_sink.log.records import (
    FORMAT,
    LowWater,
    Manifest,
    Marker,
    Move,
    OlderSlots,
    PreparedRecord,
    Progress,
    Record,
    Release,
    SegmentRef,
    SinkRecord,
    TermRecord,
    WalRecord,
    decode,
    encode,
)
from wal_sink.log.segment_reader import Rows, chunk_ends, load_segment, read_parquet
from wal_sink.log.segment_writer import SegmentLimits, SegmentWriter
from wal_sink.log.sink_records import ErrorRecord, NameRecord, OwnerRecord, RenamedRecord, RetiredRecord
from wal_sink.log.terms import MARGIN, Term, claim

__all__ = [
    "FORMAT",
    "MARGIN",
    "NOTHING",
    "ErrorRecord",
    "Holding",
    "Log",
    "LowWater",
    "Manifest",
    "Marker",
    "Move",
    "NameRecord",
    "OlderSlots",
    "OwnerRecord",
    "PreparedRecord",
    "Progress",
    "Record",
    "Release",
    "RenamedRecord",
    "RetiredRecord",
    "Rows",
    "SegmentLimits",
    "SegmentRef",
    "SegmentWriter",
    "SinkRecord",
    "Stamp",
    "TakeOver",
    "Term",
    "TermRecord",
    "WalRecord",
    "chunk_ends",
    "claim",
    "decode",
    "encode",
    "holder_of",
    "load_segment",
    "note_end",
    "paths",
    "read_parquet",
    "segment_writer",
    "terms",
]

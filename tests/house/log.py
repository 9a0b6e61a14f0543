"""Objects on the store: paths, records, terms, holders, segments."""

from __future__ import annotations

from wal_sink.wal import fencing, paths, segment_writer
from wal_sink.wal.fencing import MARGIN, Term, claim
from wal_sink.wal.holders import Holding, TakeOver, holder_of, note_end
from wal_sink.wal.log import NOTHING, Log, Stamp
from wal_sink.wal.records import (
    FORMAT,
    LowWater,
    Manifest,
    Marker,
    Move,
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
from wal_sink.wal.segment_reader import Rows, chunk_ends, load_segment, read_parquet
from wal_sink.wal.segment_writer import SegmentLimits, SegmentWriter
from wal_sink.wal.sink_records import RetiredRecord

__all__ = [
    "FORMAT",
    "MARGIN",
    "NOTHING",
    "Holding",
    "Log",
    "LowWater",
    "Manifest",
    "Marker",
    "Move",
    "PreparedRecord",
    "Progress",
    "Record",
    "Release",
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
    "fencing",
    "holder_of",
    "load_segment",
    "note_end",
    "paths",
    "read_parquet",
    "segment_writer",
]

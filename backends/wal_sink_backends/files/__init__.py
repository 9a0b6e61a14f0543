"""`FilesSink` and `TwoPhaseFilesSink`: rows as files on any store, one a chunk or one a segment."""

from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink

__all__ = ["FilesSink", "TwoPhaseFilesSink"]

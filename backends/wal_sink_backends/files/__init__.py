"""Rows as files: `FilesSink`, one file per chunk on any store, and `TwoPhaseFilesSink`, one file per segment.

`formats` encodes rows, `names` checks and fills the templates of file names, `folder` opens the store, and has the
interface of two-phase files. Local folders (`local`) and S3 (`s3`) implement it. Names of files, handles and tokens lie
in targets and WALs: they must stay readable.
"""

from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink

__all__ = ["FilesSink", "TwoPhaseFilesSink"]

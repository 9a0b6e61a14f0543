"""Ready sinks, one file each.

A sink whose driver is an optional dependency is imported from its own module, and that names the extra to install.
"""

from __future__ import annotations

from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink
from wal_sink_backends.sql.sink import SqlSink

__all__ = ["FilesSink", "SqlSink", "TwoPhaseFilesSink"]

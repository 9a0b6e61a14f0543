"""The ready sinks, one package per target: `files`, `sql`, `kafka`, `redis`, `http`, `dynamodb`, `delta`;
`common` is for all, and `changes` reads change events of Debezium.

Each target has its sink in `sink` (files: `chunk_sink`, `two_phase_sink`) and its options in URLs in `urls`. A sink
whose client is an optional dependency is imported from its own package, and an error names the extra to install.
"""

from __future__ import annotations

from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink
from wal_sink_backends.sql.sink import SqlSink

__all__ = ["FilesSink", "SqlSink", "TwoPhaseFilesSink"]

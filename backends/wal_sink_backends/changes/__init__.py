"""Change events of other systems as rows, for sinks that take change streams: `debezium`."""

from __future__ import annotations

from wal_sink_backends.changes.events import debezium

__all__ = ["debezium"]

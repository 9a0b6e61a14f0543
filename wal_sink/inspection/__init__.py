"""Looking at a WAL: its sinks, their backlog, its batches and rows. Reads only, claims no term, needs no Spark."""

from wal_sink.inspection.backlog import Backlog
from wal_sink.inspection.batches import (
    BatchDetail,
    BatchView,
    Delivered,
    read_batch,
    read_batches,
    read_manifest,
)
from wal_sink.inspection.commits import SparkCommit, read_commit
from wal_sink.inspection.health import Health, SinkHealth, read_health
from wal_sink.inspection.rows import StagedRows, plain_rows, read_rows
from wal_sink.inspection.sink_errors import SinkError
from wal_sink.inspection.status import SinkStatus, Status, read_status
from wal_sink.inspection.timeline import SinkTimeline, Timeline, read_timeline

__all__ = [
    "Backlog",
    "BatchDetail",
    "BatchView",
    "Delivered",
    "Health",
    "SinkError",
    "SinkHealth",
    "SinkStatus",
    "SinkTimeline",
    "SparkCommit",
    "StagedRows",
    "Status",
    "Timeline",
    "plain_rows",
    "read_batch",
    "read_batches",
    "read_commit",
    "read_health",
    "read_manifest",
    "read_rows",
    "read_status",
    "read_timeline",
]

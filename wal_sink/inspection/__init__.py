"""Looking at a WAL: its sinks, their backlog, its batches and rows. Reads only, claims no term, needs no Spark.

The names here are for this package; they are no public interface, so there is no `__all__`.
"""

# It would put each of these names into a statement by itself.
# isort: skip_file
from wal_sink.inspection.backlog import Backlog as Backlog
from wal_sink.inspection.batches import (
    BatchDetail as BatchDetail,
    BatchView as BatchView,
    Delivered as Delivered,
    read_batch as read_batch,
    read_batches as read_batches,
    read_manifest as read_manifest,
)
from wal_sink.inspection.commits import (
    SparkCommit as SparkCommit,
    older_checkpoint as older_checkpoint,
    read_commit as read_commit,
)
from wal_sink.inspection.health import Health as Health, SinkHealth as SinkHealth, read_health as read_health
from wal_sink.inspection.rows import StagedRows as StagedRows, plain_rows as plain_rows, read_rows as read_rows
from wal_sink.inspection.sink_errors import SinkError as SinkError
from wal_sink.inspection.status import SinkStatus as SinkStatus, Status as Status, read_status as read_status
from wal_sink.inspection.timeline import (
    SinkTimeline as SinkTimeline,
    Timeline as Timeline,
    read_timeline as read_timeline,
)

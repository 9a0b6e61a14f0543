"""Opening a run, staging, releasing, delivering, marking; the checkpoint."""

from __future__ import annotations

from wal_sink.checkpoint.formats import planned_ms
from wal_sink.checkpoint.reader import Checkpoint, Gate
from wal_sink.committer.collection import COLLECT_EVERY_BATCHES, Collector
from wal_sink.committer.committer import Committer
from wal_sink.dead_letters.files import keep_rejected, keep_unknown, read_dead_letter
from wal_sink.dead_letters.rejections import Rejections
from wal_sink.delivery.dispatch import DispatcherLostError, ServedSink
from wal_sink.delivery.segment import RECORD_S, SegmentDelivery, chunks_of
from wal_sink.lifecycle.committer_pool import CommitterPool
from wal_sink.lifecycle.committer_thread import CommitterThread
from wal_sink.lifecycle.run import Run
from wal_sink.messages import SMALL_BATCH_BYTES, ByTime, DeliveryContext, SegmentResult, SegmentTask
from wal_sink.recovery.location import GonePlace, canonical, check_location
from wal_sink.recovery.sinks import read_names
from wal_sink.staging.partitions import StagedPartition, StagingContext
from wal_sink.staging.stager import Staged

__all__ = [
    "COLLECT_EVERY_BATCHES",
    "RECORD_S",
    "SMALL_BATCH_BYTES",
    "ByTime",
    "Checkpoint",
    "Collector",
    "Committer",
    "CommitterPool",
    "CommitterThread",
    "DeliveryContext",
    "DispatcherLostError",
    "Gate",
    "GonePlace",
    "Rejections",
    "Run",
    "SegmentDelivery",
    "SegmentResult",
    "SegmentTask",
    "ServedSink",
    "Staged",
    "StagedPartition",
    "StagingContext",
    "canonical",
    "check_location",
    "chunks_of",
    "keep_rejected",
    "keep_unknown",
    "planned_ms",
    "read_dead_letter",
    "read_names",
]

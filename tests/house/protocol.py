"""Opening a run, staging, releasing, delivering, marking; the checkpoint."""

from __future__ import annotations

from wal_sink.protocol.checkpoint import Checkpoint, Gate
from wal_sink.protocol.checkpoint_formats import planned_ms
from wal_sink.protocol.collect import COLLECT_EVERY_BATCHES, Collector
from wal_sink.protocol.committer import Committer
from wal_sink.protocol.committer_pool import CommitterPool
from wal_sink.protocol.committer_thread import CommitterThread
from wal_sink.protocol.dispatch import DispatcherLostError, LocalDispatcher, ServedSink
from wal_sink.protocol.letters import Rejections, keep_rejected, keep_unknown, read_dead_letter
from wal_sink.protocol.location import GonePlace, canonical, check_location
from wal_sink.protocol.messages import SMALL_BATCH_BYTES, ByTime, DeliveryContext, SegmentResult, SegmentTask
from wal_sink.protocol.partitions import StagedPartition, StagingContext
from wal_sink.protocol.run import Run
from wal_sink.protocol.segment_delivery import RECORD_S, SegmentDelivery, chunks_of
from wal_sink.protocol.sinks import read_names
from wal_sink.protocol.stage import Staged

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
    "LocalDispatcher",
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

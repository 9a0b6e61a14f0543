"""Looking at a whole log, and changing it: verify, status, repair."""

from __future__ import annotations

from wal_sink.checking.against_checkpoint import AgainstCheckpoint
from wal_sink.checking.against_target import AgainstTarget
from wal_sink.checking.findings import Fault, Finding
from wal_sink.checking.kinds import KINDS
from wal_sink.checking.verify import Check
from wal_sink.estimation import Plan, Requests
from wal_sink.inspection.batches import read_batch, read_batches
from wal_sink.inspection.commits import SparkCommit, read_commit
from wal_sink.inspection.health import read_health
from wal_sink.inspection.status import read_status
from wal_sink.repair.changes import read_changes, write_down
from wal_sink.repair.outcomes import changes_of
from wal_sink.repair.sinks import retire_as_ordered
from wal_sink.repair.skip import plan_skip, skip, skip_order

__all__ = [
    "KINDS",
    "AgainstCheckpoint",
    "AgainstTarget",
    "Check",
    "Fault",
    "Finding",
    "Plan",
    "Requests",
    "SparkCommit",
    "changes_of",
    "plan_skip",
    "read_batch",
    "read_batches",
    "read_changes",
    "read_commit",
    "read_health",
    "read_status",
    "retire_as_ordered",
    "skip",
    "skip_order",
    "write_down",
]

"""Looking at a whole log, and changing it: verify, status, repair."""

from __future__ import annotations

from wal_sink.operate.against import AgainstCheckpoint, AgainstTarget
from wal_sink.operate.batches import read_batch, read_batches
from wal_sink.operate.changes import read_changes, write_down
from wal_sink.operate.estimate import Plan, Requests
from wal_sink.operate.findings import Fault, Finding
from wal_sink.operate.health import read_health
from wal_sink.operate.kinds import KINDS
from wal_sink.operate.look import WalFacts
from wal_sink.operate.sinks import changes_of, rename, retire
from wal_sink.operate.skip import plan_skip, skip, skip_order
from wal_sink.operate.status import SparkCommit, read_commit, read_status
from wal_sink.operate.verify import Check

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
    "WalFacts",
    "changes_of",
    "plan_skip",
    "read_batch",
    "read_batches",
    "read_changes",
    "read_commit",
    "read_health",
    "read_status",
    "rename",
    "retire",
    "skip",
    "skip_order",
    "write_down",
]

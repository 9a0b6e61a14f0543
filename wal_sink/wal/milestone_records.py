"""The record from which a collection learns how old and how large the kept batches are."""

from __future__ import annotations

from wal_sink.wal import paths
from wal_sink.wal.records import Record


class Milestone(Record, frozen=True, kw_only=True):
    """Every sink had every batch up to this one. Made once for many batches, and only if the retention has an age or
    bytes.
    """

    kind = "milestone"
    batch_id: int
    at_ms: int
    """Time at which a process found this out, in milliseconds since 1970, UTC, by its own clock."""
    since: int
    """First batch that `total_bytes` counts. Of milestones with different ones, the bytes cannot be compared."""
    total_bytes: int
    """Segment bytes of the batches from `since` up to this one."""
    age_s: float | None = None
    """`Settings.retention_age_s` of the process, for processes without a setting."""
    bytes: int | None = None
    """`Settings.retention_bytes` of the process."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.milestone(self.batch_id)

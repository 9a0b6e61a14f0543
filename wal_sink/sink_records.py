"""Records that end something: the holding of a term, a sink, or a sink's name. Each is a new object beside the old."""

from __future__ import annotations

from wal_sink import paths
from wal_sink.records import Record


class EndedRecord(Record, frozen=True, kw_only=True):
    """The holder of a term ended in order: it sends nothing any more."""

    kind = "ended"
    role: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.ended(self.role, self.term)

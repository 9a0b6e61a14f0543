"""Records about the place of a WAL. See also `wal_sink.wal.records.Move`."""

from __future__ import annotations

from wal_sink.wal import paths
from wal_sink.wal.records import Record


class CopyRecord(Record, frozen=True, kw_only=True):
    """This folder is a copy of a WAL. The copy is complete once `wal.json` exists."""

    kind = "copy"
    wal_id: str
    location: str
    """Place of the copy, see `wal_sink.recovery.location.canonical`."""
    copied_from: str
    who: str
    """User, host and process id of the command that began the copy, as in `ada@host/4711`."""
    why: str = ""
    """The reason, as the user gave it."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.COPY


class CopiedRecord(Record, frozen=True, kw_only=True):
    """Everything but `wal.json` was copied into this folder.

    If there is no `wal.json`, the copy was ended right before it, or the WAL was in use and lost it. The digest tells.
    """

    kind = "copied"
    wal_id: str
    objects: int
    """Number of objects, without `wal.json`."""
    digest: str
    """Digest of their names, see `wal_sink.moving.folders.Survey.digest`."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.COPIED

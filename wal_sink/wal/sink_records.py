"""Records that end something: the holding of a term, a sink, or a sink's name. Each is a new object beside the old."""

from __future__ import annotations

from wal_sink.wal import paths
from wal_sink.wal.records import Record


class EndedRecord(Record, frozen=True, kw_only=True):
    """The holder of a term ended in order: it sends nothing any more."""

    kind = "ended"
    role: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.ended(self.role, self.term)


class RetiredRecord(Record, frozen=True, kw_only=True):
    """A sink was retired: it gets nothing any more, holds nothing back, and its name is not used again."""

    kind = "retired"
    through: int
    """The newest batch it had; -1 if none."""
    dropped: tuple[int, ...] = ()
    """Batches that the WAL held then, and that it did not get."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.retired(paths.sink_of(path))


class NameRecord(Record, frozen=True, kw_only=True):
    """What a sink is called from now on; of several, the one of the highest number counts. In the sink's folder."""

    kind = "name"
    number: int
    name: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.sink_name(paths.sink_of(path), self.number)


class RenamedRecord(Record, frozen=True, kw_only=True):
    """A name that a sink was given later: everything of the sink lies in the folder of its first name."""

    kind = "renamed"
    name: str
    folder: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.renamed(self.name)


class OwnerRecord(Record, frozen=True, kw_only=True):
    """Whose a name is: that of a sink which is renamed to it, or of one which is registered under it. Whoever creates
    the record decides.
    """

    kind = "owner"
    name: str
    folder: str
    """The first name of the sink; the name itself for a sink which is registered under it."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.owner(self.name)

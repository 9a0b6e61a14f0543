"""Records that end something: a process's hold on a term, a sink, or a sink's name; and the error that stops a sink.
Each is a new object beside the old one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wal_sink.log import paths
from wal_sink.log.records import Record


class EndedRecord(Record, frozen=True, kw_only=True):
    """The holder of a term ended in order. It sends nothing any more."""

    kind = "ended"
    role: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.ended(self.role, self.term)


class RetiredRecord(Record, frozen=True, kw_only=True):
    """A sink was retired: it gets no more batches, delays no collection, and its name is not used again."""

    kind = "retired"
    through: int
    """The newest batch that it had; -1 if none."""
    dropped: tuple[int, ...] = ()
    """Batches in the WAL at that time that it did not get."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.retired(paths.sink_of(path))


class NameRecord(Record, frozen=True, kw_only=True):
    """A new name of a sink, in the sink's folder. Of several, the record with the highest number counts."""

    kind = "name"
    number: int
    name: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.sink_name(paths.sink_of(path), self.number)


class RenamedRecord(Record, frozen=True, kw_only=True):
    """A name that a sink got later. All objects of the sink stay in the folder of its first name."""

    kind = "renamed"
    name: str
    folder: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.renamed(self.name)


class OwnerRecord(Record, frozen=True, kw_only=True):
    """Owner of a name: a sink that is renamed to it, or a sink that is registered under it. The process that creates
    this record first decides.
    """

    kind = "owner"
    name: str
    folder: str
    """The first name of the sink; the name itself if the sink is registered under it."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.owner(self.name)


class ChangeRecord(Record, frozen=True, kw_only=True):
    """A person ordered a change of a sink from the command line. It was created before the first change."""

    kind = "change"
    number: int
    verb: str
    """`skip`, `catch-up`, `sinks retire` or `sinks rename`."""
    arguments: dict[str, Any]
    """Arguments of the command, without secrets. Names that begin with `--` are options; the others stand in place."""
    who: str
    """User, host and process id, as in `ada@host/4711`."""
    why: str = ""
    """The reason, as the user gave it."""
    plan: dict[str, Any]
    """Everything that the command was to do, as it was decided before the first change."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.change(paths.sink_of(path), self.number)


class ErrorRecord(Record, frozen=True, kw_only=True):
    """The last error of a sink's committer, for people. It is over once the sink has the batch. Of several, the record
    with the highest number counts.
    """

    kind = "error"
    number: int
    batch_id: int
    """The batch that the sink lacked."""
    attempts: int
    """Failed attempts in a row when it was recorded. Repetitions of the same error are not recorded."""
    error_class: str = msgspec.field(name="class")
    """Class of the error that ended the delivery, or the kind of a failure that is retried."""
    text: str
    """Without secrets, and bounded."""
    since: str
    """When the first of these attempts failed, ISO 8601, UTC."""
    run_id: str
    term: int
    """Term of the committer."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.error(paths.sink_of(path), self.number)

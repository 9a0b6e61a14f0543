"""Records of repairs: changes of a WAL that a person ordered from the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from wal_sink.runtime.clock import ProcessIdentity
from wal_sink.wal import paths
from wal_sink.wal.records import Record


class RepairRecord(Record, frozen=True, kw_only=True):
    """A repair began. It was created before the first change that the repair makes."""

    kind = "repair"
    number: int
    verb: str
    """Command of the repair, such as `skip` or `sinks retire`."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of the command, without secrets. Names that begin with `--` are options; the others stand in place."""
    touches: tuple[str, ...] = ()
    """Paths that the repair may change, each with everything that it is the beginning of. `""` is the whole WAL."""
    who: str
    """User, host and process id, as in `ada@host/4711`."""
    holder: ProcessIdentity | None = None
    """The same process, in a form that finds it."""
    why: str = ""
    """The reason, as the user gave it."""
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    """Everything that the repair will do, as it was decided before the first change."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.repair(self.number)


class RepairedRecord(Record, frozen=True, kw_only=True):
    """A repair ended. It was created after the last change that the repair made."""

    kind = "repaired"
    number: int
    outcome: str = "done"
    """`done`; or `given up`: a person decided that it will not be completed."""
    who: str = ""
    why: str = ""
    result: dict[str, Any] = msgspec.field(default_factory=dict)
    """The effect, as the command reported it."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.repaired(self.number)

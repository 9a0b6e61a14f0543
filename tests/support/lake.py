"""A lake table in memory, with a log of versions as Delta and Iceberg have one, and a `CommitSink` for it."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import pyarrow.parquet as pq

from tests.house.sinks import BatchCommit, CommitPosition, CommitSink, SinkContext, StagedSegment


class LostRaceError(Exception):
    """Another writer made the version first."""


@dataclass(frozen=True)
class Version:
    files: tuple[str, ...] = ()
    positions: dict[str, tuple[CommitPosition, int]] = field(default_factory=dict)
    """By slot: the position, and the version of the commit that stored it."""
    restored_to: int | None = None


@dataclass
class Lake:
    """The table. Every version is kept. A sink that is pickled, as for another process, reaches the same one."""

    written: dict[str, bytes] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=lambda: [Version()])

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        _lakes[id(self)] = self
        return _lakes.__getitem__, (id(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lake:
        return Lake(dict(self.written), copy.deepcopy(self.versions, memo))

    def append(self, version: Version, *, number: int) -> None:
        """Make the version of this number, as one atomic step."""
        if number != len(self.versions):
            raise LostRaceError(f"version {number} is there")
        self.versions.append(version)

    def rows(self) -> list[dict[str, Any]]:
        tables = [pq.read_table(io.BytesIO(self.written[name])) for name in self.versions[-1].files]
        return [row for table in tables for row in table.to_pylist()]

    def restore(self, number: int) -> None:
        """Show the files of an earlier version; the positions stay, as RESTORE keeps them."""
        self.versions.append(replace(self.versions[-1], files=self.versions[number].files, restored_to=number))

    def shown(self, slot: str) -> CommitPosition | None:
        """The newest commit of a sink that is part of the present state."""
        at = len(self.versions) - 1
        while at >= 0:
            version = self.versions[at]
            position, number = version.positions.get(slot, (None, -1))
            if number == at:
                return position
            at = at - 1 if version.restored_to is None else version.restored_to
        return None

    @property
    def commits(self) -> int:
        return len(self.versions) - 1


_lakes = WeakValueDictionary[int, Lake]()


class LakeSink(CommitSink):
    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.slot = ""

    def describe(self) -> str:
        return "LakeSink"

    def open(self, context: SinkContext) -> None:
        self.slot = f"{context.wal_id}/{context.sink}"

    def prepare(self, segment: StagedSegment) -> str:
        self.lake.written[segment.id] = segment.data
        return segment.id

    def position(self) -> CommitPosition | None:
        stored, _ = self.lake.versions[-1].positions.get(self.slot, (None, 0))
        shown = self.lake.shown(self.slot)
        if stored is None or (shown is not None and shown.batch_id >= stored.batch_id):
            return shown
        return replace(stored, is_shown=False, held_through=-1 if shown is None else shown.batch_id)

    def commit(self, batch: BatchCommit) -> None:
        number = len(self.lake.versions)
        found = self.position()
        if found == batch.position:
            return
        if found != batch.follows:
            raise LostRaceError(f"expected {batch.follows}, found {found}")
        self.lake.append(self.next_version(batch, number), number=number)

    def next_version(self, batch: BatchCommit, number: int) -> Version:
        head = self.lake.versions[-1]
        positions = {**head.positions, self.slot: (batch.position, number)}
        return Version((*head.files, *batch.handles), positions)

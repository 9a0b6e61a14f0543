"""`Log`: the records on a store. Every durable fact of the protocol passes through here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict, TypeVar

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.log.records import LowWater, Record, decode, encode
from wal_sink.log.segment_reader import SegmentReader, read_parquet
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.stores.creation import create_once
from wal_sink.support.clock import Runtime
from wal_sink.support.events import OFF, Events

R = TypeVar("R", bound=Record)

NOTHING = -1
"""A batch id below every batch."""
_NOBODY: Mapping[str, int] = MappingProxyType({})


class Stamp(TypedDict):
    """Fields of every new record."""

    id: str
    created: str


@dataclass(frozen=True, slots=True)
class Log:
    """The records of one WAL, as one run sees and writes them."""

    store: Store
    runtime: Runtime
    run_id: str
    segment_reader: SegmentReader = read_parquet
    events: Events = OFF
    """Where the run tells what it does."""

    def stamp(self) -> Stamp:
        """A fresh id and the time, for a new record."""
        return Stamp(id=self.runtime.new_id(), created=self.runtime.timestamp())

    def create(self, path: str, record: Record) -> bool:
        """Create a record. Returns True if it exists now, False if another writer's record exists. If an answer was
        lost, the object is read back: each record names its writer. Raises `OutcomeUnknownError` if that is impossible.
        """
        return create_once(self.store, path, encode(record), runtime=self.runtime)

    def create_or_find(self, path: str, record: R) -> tuple[R, bool]:
        """Create a record, or read the existing one. Returns the record under `path`, and True if it is the given one.

        Raises `CorruptError` if another writer's record vanished before it could be read, and the errors of `create`
        and `find`.
        """
        return (record, True) if self.create(path, record) else (self.require(type(record), path), False)

    def find(self, kind: type[R], path: str) -> R | None:
        """The record under `path`, None if there is none. Raises `CorruptError` if its bytes were changed, or if it was
        written for another path.
        """
        try:
            data = self.store.read(path)
        except ObjectMissing:
            return None
        record = decode(kind, data, self.store.url_of(path))
        if not belongs(record, path):
            raise CorruptError(
                f"{self.store.url_of(path)}: this {kind.kind} record (id {record.id}) was written for another path; "
                "restore the object that belongs here"
            )
        return record

    def require(self, kind: type[R], path: str) -> R:
        """The record under `path`, which must exist: a create has just met it, or a listing showed it. Raises
        `CorruptError` if it is gone.

        It is read twice before that, since the first answer of a store may be stale.
        """
        record = self.find(kind, path) or self.find(kind, path)
        if record is None:
            raise CorruptError(
                f"{self.store.url_of(path)} disappeared while it was read: it existed a moment ago. Objects of this "
                "WAL are being deleted (by a life-cycle rule of the bucket or a manual clean-up). Stop this deletion, "
                "restore the object, then start the query or command again"
            )
        return record

    def numbers(self, folder: str, *, after: int = NOTHING) -> list[int]:
        """The numbers that name the records or folders in `folder`, ascending."""
        start = paths.batch_name(after) if after > NOTHING else ""
        return [number for number in numbers_of(self.store.list(folder, after=start)) if number > after]

    def low_water(self) -> int:
        """The newest batch whose objects may be gone; -1 if none may.

        Low water is a series of created objects. The highest counts, so a stalled process cannot move it back.
        """
        return max(self.numbers(paths.LOW_WATER), default=NOTHING)

    def raise_low_water(self, batch_id: int, marked: Mapping[str, int] = _NOBODY) -> None:
        """Raise low water to this batch. `marked`: the newest marked batch of each registered sink, by name."""
        self.create(paths.low_water(batch_id), LowWater(batch_id=batch_id, marked=dict(marked), **self.stamp()))


def numbers_of(names: Iterable[str]) -> list[int]:
    """The numbers that names of records or folders hold, ascending. Other names are left out."""
    found = {paths.parse_number(name) for name in names}
    return sorted(number for number in found if number is not None)


def belongs(record: Record, path: str) -> bool:
    """Return whether a record was written for this path. A record with a number that no path can hold was not."""
    try:
        return record.belongs_at(path)
    except ConfigError:
        return False

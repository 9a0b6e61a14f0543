"""Objects of an unfinished copy that the WAL has no more.

The WAL collected it since the first part of the copy, so it is deleted from the copy. But the folder may also be a copy
that was completed and used, and that lost `wal.json`. Then its objects exist nowhere else. So only objects that
wal-sink itself deletes from a WAL are deleted, and nothing at all if there is any other one: each use leaves one.
"""

from __future__ import annotations

import re

from wal_sink.checking.kinds import Lives, kind_of
from wal_sink.errors import ObjectLost
from wal_sink.moving.folders import Part, listed_again, survey, walk
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.move_records import CopiedRecord

_BATCH = re.compile(rf"/(\d{{{paths.BATCH_DIGITS}}})(?=[/.-])", re.ASCII)


class Leftovers:
    """The objects of an unfinished copy that the WAL has no more."""

    def __init__(self, source: Log, target: Log) -> None:
        self._source = source
        self._target = target
        self._low_water = NOTHING
        self._are_there = False

    def refuse_others(self) -> None:
        """Raise `ObjectLost` if the WAL cannot have collected one of them. A listing of each folder in both."""
        for part in walk(self._target):
            gone = self._gone(part)
            self._are_there = self._are_there or bool(gone)
            for path in gone:
                if not self._is_collected(path):
                    raise self._used(path)

    def delete(self) -> None:
        """Delete them. Call it after `refuse_others`, and after all objects that both have were compared: a process
        that used the copy claimed a term, so one of its terms is another object or is refused. No request if there are
        none, otherwise a listing of each folder in both.
        """
        for part in walk(self._target) if self._are_there else ():
            if gone := [path for path in self._gone(part) if self._is_collected(path)]:
                self._target.store.delete(gone)

    def _gone(self, part: Part) -> list[str]:
        kept = set(listed_again(self._source, part))
        return [path for name, path in zip(part.names, part.paths, strict=True) if name not in kept]

    def _is_collected(self, path: str) -> bool:
        """Whether wal-sink itself may have deleted this object from the WAL. A listing if low water may have moved."""
        kind = kind_of(path)
        if kind is None or kind.lives is Lives.FOR_EVER or "/dead-letters/" in path:
            return False
        if kind.lives is Lives.FREELY and not path.startswith(f"{paths.LOW_WATER}/"):
            return True
        batch_id = max(map(int, _BATCH.findall(path)))
        if batch_id > self._low_water:  # low water moves before anything below it is deleted
            self._low_water = self._source.low_water()
        return batch_id <= self._low_water

    def _used(self, path: str) -> ObjectLost:
        here, there = self._target.store, self._source.store
        return ObjectLost(
            f"{here.url_of(path)} exists, but {there.root} has no such object, and no collection deletes it. So "
            f"{here.root} was used as a WAL after it was copied, and lost {paths.WAL}; or somebody deleted objects of "
            f"{there.root}. Nothing was copied or deleted. If a query or a drain ever ran on {here.root}, copy the one "
            f"object {there.url_of(paths.WAL)} into it: the two WALs have the same {paths.WAL}. Only if none ever ran "
            "there, delete it, and repeat the command"
        )


def refuse_used(source: Log, target: Log) -> None:
    """Raise `ObjectLost` if a copy was complete, was changed since, and has no `wal.json`. One read, and a listing of
    each folder if everything was copied.
    """
    record = target.find(CopiedRecord, paths.COPIED)
    if record is None or survey(target).digest == record.digest:
        return
    here, there = target.store, source.store
    raise ObjectLost(
        f"{here.root} was used as a WAL after it was copied, and lost {here.url_of(paths.WAL)}. It may hold batches "
        "that were not delivered, so do not delete it. Nothing was copied or deleted. Stop the life-cycle rule or the "
        f"clean-up that deleted the object, then copy the one object {there.url_of(paths.WAL)} into it: the two WALs "
        f"have the same {paths.WAL}"
    )

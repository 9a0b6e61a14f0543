"""Collection: deleting objects that no run needs any more. Low water moves first, then objects below it are deleted.

A sink may be registered while low water moves. It is registered before it looks at low water, and the sinks are listed
once more after low water moved. So one of the two sees the other: either nothing of its batches is deleted, or it
begins with the oldest batch that is held (`progress.first_due`).

Three more kinds of objects are deleted elsewhere: records of transactions that were begun (`two_phase`), superseded
error records (`retry`), and probes of the store (`Run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.log.records import SinkRecord
from wal_sink.log.sink_records import OwnerRecord, RetiredRecord
from wal_sink.log.terms import Term
from wal_sink.protocol.inventory import Lost, find_again, newest_marker, sink_folders
from wal_sink.protocol.release import CommitContext

COLLECT_EVERY_BATCHES = 16
"""How many batches are collected together, so that listings cost almost nothing per batch."""

GROUP_PATHS = 1000
"""How many objects are deleted together: as many as one request of S3 takes."""

KEPT_LOW_WATERS = 16
"""How many low-water records stay, so that a listing during a collection cannot miss them all."""


class Collector:
    """Advances low water and deletes below it. Used by the committers of one run, one at a time."""

    def __init__(self, shared: CommitContext, *, retention_batches: int) -> None:
        self._shared = shared
        self._log = shared.log
        self._retention = retention_batches
        self._low_water: int | None = None
        self._cleared = NOTHING
        """This run deleted batches up to this one twice. A versioned bucket may list their empty folders for ever."""
        self._put_off_at = NOTHING
        self._sinks: set[str] = set()
        self._served: set[str] = set()
        self._marked: dict[str, int] = {}  # the newest marked batch of each sink that has one, at the last look

    def expect(self, others: Iterable[str], *, served: Iterable[str]) -> None:
        """Note registered sinks: from now on each must exist whenever batches are collected.

        A sink that this run serves is not retired, since retiring it would have claimed its term.
        """
        self._served.update(served)
        self._sinks.update(others, self._served)

    def let_go(self, name: str) -> None:
        """Note that a sink of this run may be retired by now."""
        self._served.discard(name)

    def is_due(self, marked_through: int) -> bool:
        """Whether a committer that marked so far should collect. Reads low water in the first call only."""
        if self._low_water is None:
            self._low_water = self._log.low_water()
        floor = max(self._low_water, self._shared.history.first_batch - 1)
        since = max(floor + self._retention, self._put_off_at)
        return marked_through - since >= COLLECT_EVERY_BATCHES

    def put_off(self, marked_through: int) -> None:
        """Make no collection due for another `COLLECT_EVERY_BATCHES`, even if a sink holds all batches back."""
        self._put_off_at = marked_through

    def collect(self, term: Term) -> int:
        """Collect the batches that every registered sink has, less those that are kept. Returns the new low water."""
        present = self._log.low_water()
        target = self._delivered_everywhere() - self._retention
        self._low_water = max(present, target)
        if target <= present:
            return present
        term.check(self._log.store)
        self._log.raise_low_water(target, self._marked)
        self._delete_through(through := min(target, self._delivered_everywhere()))
        self._cleared = min(present, through)
        return target

    def _delivered_everywhere(self) -> int:
        """The newest batch that every registered sink has, also those that nobody serves; -1 if one has none."""
        self._marked = {}
        newest = [self._marked_through(name) for name in sorted({*sink_folders(self._log), *self._sinks})]
        return min((batch_id for batch_id in newest if batch_id is not None), default=NOTHING)

    def _marked_through(self, name: str) -> int | None:
        """The newest batch a sink has; None if it is retired, or if only objects of a former sink are left.

        One more read where this run does not serve it, and another if it has no marker.
        """
        if name not in self._served and self._log.find(RetiredRecord, paths.retired(name)) is not None:
            return None
        marker = newest_marker(self._log, name)
        if marker is not None:
            self._marked[name] = marker.batch_id
            self._sinks.add(name)
            return marker.batch_id
        sink = self._log.find(SinkRecord, paths.sink(name))
        if sink is None and name in self._sinks:
            sink = find_again(self._log, SinkRecord, paths.sink(name), Lost.SINK, "what this run has seen of the sink")
        if sink is None or (name not in self._served and self._is_of_another(name)):
            return None
        self._sinks.add(name)
        return sink.first_batch - 1

    def _is_of_another(self, name: str) -> bool:
        """Whether a sink was registered under a name that was just given to another, so that no process serves it."""
        record = self._log.find(OwnerRecord, paths.owner(name))
        return record is not None and record.folder != name

    def _delete_through(self, batch_id: int) -> None:
        """Delete the objects of batches up to this one: batches, then progress and markers of each sink, then old
        low-water records. After a crash the next collection deletes the rest.

        They are listed and deleted in groups, so that a collection of many batches makes progress.
        """
        doomed = self._doomed(batch_id)
        while group := list(islice(doomed, GROUP_PATHS)):
            self._log.store.delete(group)
            self._shared.sleep_s(0)  # shows progress; raises `StoppedError` if the run is ending

    def _doomed(self, batch_id: int) -> Iterator[str]:
        """Paths to delete. Each folder is listed when it is reached."""
        store = self._log.store
        yield from self._doomed_in(paths.BATCHES, batch_id)
        for sink in sink_folders(self._log):
            yield from self._doomed_in(paths.progress_batches(sink), batch_id)
            markers = paths.markers(sink)
            yield from (f"{markers}/{name}" for name in store.list(markers) if _is_through(name, batch_id))
        waters = store.list(paths.LOW_WATER)
        yield from (f"{paths.LOW_WATER}/{name}" for name in waters[:-KEPT_LOW_WATERS])

    def _doomed_in(self, root: str, batch_id: int) -> Iterator[str]:
        """The objects in the folders of batches in `root` that are to be deleted."""
        numbers = (number for number in self._log.numbers(root, after=self._cleared) if number <= batch_id)
        folders = (f"{root}/{paths.batch_name(number)}" for number in numbers)
        return (f"{each}/{name}" for each in folders for name in self._log.store.list(each, recursive=True))


def _is_through(name: str, batch_id: int) -> bool:
    number = paths.parse_number(name)
    return number is not None and number <= batch_id

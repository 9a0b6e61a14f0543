"""Retention by age and bytes: which batches beyond `retention_batches` are deleted.

Of a batch in the WAL, neither its age since delivery nor its bytes are known without a request. So a collection, which
comes once in 16 batches, leaves a milestone: the time, and the sum of bytes up to a batch. The next ones compare the
oldest milestones with the newest. That is one create and about one read for 16 batches. Without such a setting, and
without milestones in the WAL, there is no request at all.

A milestone is never needed for correctness: a lost one, or a clock that jumps, only makes history longer or shorter.
`retention_batches` holds in any case.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.recovery.history import History
from wal_sink.reporting.logs import logger_of
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.milestone_records import Milestone
from wal_sink.wal.records import Manifest, Release

MOST_READ_SIZES = 64
"""Most batches whose sizes are read for one milestone. If more are unknown, bytes are counted from there on."""

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the history that a WAL keeps beyond `retention_batches`. A batch is deleted if one of them permits."""

    age_s: float | None = None
    bytes: int | None = None

    @property
    def are_given(self) -> bool:
        return self != NO_LIMITS


NO_LIMITS = Limits()


class Milestones:
    """The milestones of a WAL, as one run reads and makes them. Used by one thread at a time."""

    def __init__(self, log: Log, history: History, given: Limits, *, every: Callable[[], int]) -> None:
        self._log = log
        self._history = history
        self._given = given
        self._every = every
        self._batches: list[int] | None = None
        """Batches of the milestones, ascending; None: not listed yet."""
        self._had_any = False
        self._known: dict[int, Milestone] = {}

    def expired_through(self, everywhere: int, most: int) -> int:
        """The newest batch up to which everything may be deleted, at most `most`. Makes a milestone if one is due.

        `everywhere`: the newest batch that every sink has.
        """
        if everywhere == NOTHING or not (self._given.are_given or self._history.has_milestones):
            return most
        newest = self._newest()
        limits = self._given
        if not limits.are_given:  # as in a drain: those of the run that made the newest milestone
            if newest is None:
                return NOTHING if self._had_any else most  # there are limits, but they cannot be read
            limits = Limits(newest.age_s, newest.bytes)
        if newest is None or everywhere - newest.batch_id >= self._every():
            newest = self._make(everywhere, newest, limits)
        return self._expired(newest, limits, most)

    def passed(self, low_water: int) -> list[str]:
        """Paths of the milestones that say nothing any more. One listing, in a WAL that has any."""
        if self._batches is None:
            return []
        listed = self._log.numbers(paths.MILESTONES)  # other processes make some, too
        gone = listed[: bisect_right(listed[:-1], low_water)]
        self._batches = listed[len(gone) :]
        for batch_id in gone:
            self._known.pop(batch_id, None)
        return [paths.milestone(batch_id) for batch_id in gone]

    def _listed(self) -> list[int]:
        if self._batches is None:
            self._batches = self._log.numbers(paths.MILESTONES)
            self._had_any = bool(self._batches)
        return self._batches

    def _newest(self) -> Milestone | None:
        """The newest milestone that can be read."""
        return next((found for each in reversed(list(self._listed())) if (found := self._find(each))), None)

    def _find(self, batch_id: int) -> Milestone | None:
        """A milestone; None if it is gone, or cannot be read. A read, if it is not in memory."""
        if batch_id not in self._known:
            try:
                found = self._log.find(Milestone, paths.milestone(batch_id))
            except (CorruptError, ConfigError) as error:
                _logger.warning(
                    "%s keeps batches longer, since a milestone is ignored: %s", self._log.store.root, error
                )
                found = None
            if found is None:
                self._listed().remove(batch_id)
                return None
            self._known[batch_id] = found
        return self._known[batch_id]

    def _make(self, through: int, before: Milestone | None, limits: Limits) -> Milestone:
        size = None if before is None else self._size_between(before.batch_id, through)
        since, total = (through + 1, 0) if before is None or size is None else (before.since, before.total_bytes + size)
        at_ms = int(self._log.runtime.now().timestamp() * 1000)
        milestone = Milestone(
            batch_id=through,
            at_ms=at_ms,
            since=since,
            total_bytes=total,
            age_s=limits.age_s,
            bytes=limits.bytes,
            **self._log.stamp(),
        )
        if self._log.create(paths.milestone(through), milestone):
            self._known[through] = milestone
        if through not in self._listed():
            insort(self._listed(), through)
        self._history.forget_sizes(through)
        return self._find(through) or milestone  # another process may have made it

    def _size_between(self, after: int, through: int) -> int | None:
        """Segment bytes of the batches after one, up to another. Sizes that this run did not learn are read: two reads
        a batch. None if a batch is gone, or if they are too many.
        """
        sizes = {batch_id: self._history.size(batch_id) for batch_id in range(after + 1, through + 1)}
        unknown = [batch_id for batch_id, size in sizes.items() if size is None]
        if len(unknown) > MOST_READ_SIZES:
            return None
        read = dict(zip(unknown, self._log.runtime.side_by_side(self._read_size, unknown), strict=True))
        found = [read.get(batch_id) if size is None else size for batch_id, size in sizes.items()]
        known = [size for size in found if size is not None]
        return sum(known) if len(known) == len(found) else None

    def _read_size(self, batch_id: int) -> int | None:
        release = self._log.find(Release, paths.release(batch_id))
        if release is None:
            return None
        manifest = self._log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
        return None if manifest is None else manifest.bytes

    def _expired(self, newest: Milestone, limits: Limits, most: int) -> int:
        """The newest milestone that a limit gives up, up to `most`. They expire in their order."""
        expired = NOTHING
        for batch_id in list(self._listed()):
            if batch_id > most:
                break
            milestone = self._find(batch_id)
            if milestone is None:
                continue  # another process deleted it; the next one tells more
            if self._is_kept(milestone, newest, limits):
                break
            expired = batch_id
        return expired

    def _is_kept(self, milestone: Milestone, newest: Milestone, limits: Limits) -> bool:
        age_s = (self._log.runtime.now().timestamp() * 1000 - milestone.at_ms) / 1000
        # Bytes that are counted from a later batch on are a part of those after this milestone.
        after = newest.total_bytes - (milestone.total_bytes if milestone.since == newest.since else 0)
        is_old = limits.age_s is not None and age_s >= limits.age_s
        is_beyond = limits.bytes is not None and after >= limits.bytes
        return not (is_old or is_beyond)

"""Retention by age and bytes: which batches beyond `retention_batches` are deleted.

Of a batch in the WAL, neither its age since delivery nor its bytes are known without a request. So a collection, which
comes once in 16 batches, leaves a milestone: the time, and the sum of bytes up to a batch. The next ones compare the
oldest milestones with the newest. That is a listing, a create and about one read for 16 batches. Without such a setting
and without milestones in the WAL, it is the listing: another run may make some at any time.

A milestone is never needed for correctness: a lost one, or a clock that jumps, only makes history longer or shorter.
`retention_batches` holds in any case.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.recovery.history import History
from wal_sink.reporting.logs import logger_of
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.milestone_records import Milestone
from wal_sink.wal.records import Manifest, Release

AHEAD_S = 86_400.0
"""A milestone that lies more than so many seconds ahead is told: the clock of a machine was wrong."""
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
        self._batches: list[int] = []
        """Batches of the milestones, ascending, as this collection found them."""
        self._unreadable: set[int] = set()
        self._told: set[int] = set()
        self._known: dict[int, Milestone] = {}

    def expired_through(self, everywhere: int, most: int) -> int:
        """The newest batch up to which everything may be deleted, at most `most`. Makes a milestone if one is due.

        `everywhere`: the newest batch that every sink has. One listing.
        """
        if everywhere == NOTHING:
            return most
        self._list()
        if not (self._given.are_given or self._batches):
            return most
        newest = self._newest()
        limits = self._given
        if not limits.are_given:  # as in a drain: those of the run that made the newest milestone
            if newest is None:
                return NOTHING  # there are limits, but they cannot be read
            limits = _limits_of(newest)
        if newest is None or everywhere - newest.batch_id >= self._every() or self._differs(newest, everywhere):
            newest = self._make(everywhere, newest, limits)
        return self._expired(newest, limits, most)

    def announce(self, everywhere: int) -> bool:
        """Let runs without a setting follow the limits of this one, before its first collection. False: not yet.

        `everywhere`: the newest batch that every sink has, or another one from which on they count.
        """
        self._list()
        newest = self._newest()
        if newest is None or self._differs(newest, everywhere):
            self._make(everywhere, newest, self._given)
        newest = self._newest()
        return newest is not None and _limits_of(newest) == self._given

    def _differs(self, newest: Milestone, everywhere: int) -> bool:
        """Whether the limits of this run must be told: another run, without any, would go on with those before."""
        return self._given.are_given and _limits_of(newest) != self._given and everywhere > newest.batch_id

    def passed(self, low_water: int) -> list[str]:
        """Paths of the milestones that say nothing any more. The newest that can be read stays, since it has the
        limits. No request.
        """
        newest = max((each for each in self._batches if each not in self._unreadable), default=NOTHING)
        gone = [each for each in self._batches if each <= low_water and each != newest]
        for batch_id in gone:
            self._known.pop(batch_id, None)
        return [paths.milestone(batch_id) for batch_id in gone]

    def _list(self) -> None:
        """Look which milestones there are: other processes make and delete some, too."""
        self._batches = self._log.numbers(paths.MILESTONES)
        if self._batches:
            self._history.keeps_sizes = True

    def _newest(self) -> Milestone | None:
        """The newest milestone that can be read."""
        return next((found for each in reversed(self._batches) if (found := self._find(each))), None)

    def _find(self, batch_id: int) -> Milestone | None:
        """A milestone; None if it is gone, or cannot be read. A read, if it is not in memory."""
        if batch_id not in self._known and batch_id not in self._unreadable:
            try:
                found = self._log.find(Milestone, paths.milestone(batch_id))
            except (CorruptError, ConfigError) as error:
                self._unreadable.add(batch_id)
                _logger.warning(
                    "%s keeps batches longer, since a milestone is ignored: %s", self._log.store.root, error
                )
                return None
            if found is None:
                return None
            self._known[batch_id] = found
        return self._known.get(batch_id)

    def _make(self, through: int, before: Milestone | None, limits: Limits) -> Milestone:
        size = None if before is None else self._size_between(before.batch_id, through)
        since, total = (through + 1, 0) if before is None or size is None else (before.since, before.total_bytes + size)
        milestone = Milestone(
            batch_id=through,
            at_ms=self._now_ms(),
            since=since,
            total_bytes=total,
            age_s=limits.age_s,
            bytes=limits.bytes,
            **self._log.stamp(),
        )
        if self._log.create(paths.milestone(through), milestone):
            self._known[through] = milestone
        if through not in self._batches:
            insort(self._batches, through)
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
        """Segment bytes of a batch; None if its records are gone. Damaged ones are not needed here, so none ends the
        delivery.
        """
        try:
            release = self._log.find(Release, paths.release(batch_id))
            if release is None:
                return None
            manifest = self._log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
        except (CorruptError, ConfigError) as error:
            _logger.warning(
                "%s keeps batches longer, since the size of batch %d cannot be read: %s",
                self._log.store.root, batch_id, error,
            )  # fmt: skip
            return None
        return None if manifest is None else manifest.bytes

    def _expired(self, newest: Milestone, limits: Limits, most: int) -> int:
        """The newest milestone that a limit gives up, up to `most`. They expire in their order."""
        expired = NOTHING
        for index, batch_id in enumerate(self._batches):
            if batch_id > most:
                break
            milestone = self._find(batch_id)
            if milestone is None:
                continue  # another process deleted it; the next one tells more
            if self._is_kept(milestone, index, newest, limits):
                break
            expired = batch_id
        return expired

    def _is_kept(self, milestone: Milestone, index: int, newest: Milestone, limits: Limits) -> bool:
        # Bytes that are counted from a later batch on are a part of those after this milestone.
        after = newest.total_bytes - (milestone.total_bytes if milestone.since == newest.since else 0)
        if limits.bytes is not None and after >= limits.bytes:
            return False
        return limits.age_s is None or self._age_s(milestone, index, newest) < limits.age_s

    def _age_s(self, milestone: Milestone, index: int, newest: Milestone) -> float:
        """Seconds since a milestone. If a later one has an earlier time, a clock was ahead, and that time counts.

        Reads the next milestone, and further ones while the time lies ahead of this clock or of the newest milestone.
        """
        now_ms, at_ms = self._now_ms(), milestone.at_ms
        self._warn_if_ahead(milestone, now_ms)
        for later in self._batches[index + 1 :]:
            if (following := self._find(later)) is None:
                continue
            if following.at_ms >= at_ms and at_ms <= min(now_ms, newest.at_ms):
                break
            at_ms = min(at_ms, following.at_ms)
        return (now_ms - at_ms) / 1000

    def _warn_if_ahead(self, milestone: Milestone, now_ms: int) -> None:
        ahead_s = (milestone.at_ms - now_ms) / 1000
        if ahead_s > AHEAD_S and milestone.batch_id not in self._told:
            self._told.add(milestone.batch_id)
            _logger.warning(
                "%s: the milestone of batch %d lies %.0f days ahead of the clock of this machine. One "
                "of the two clocks is wrong; the times of later milestones count in its place",
                self._log.store.root, milestone.batch_id, ahead_s / 86_400,
            )  # fmt: skip

    def _now_ms(self) -> int:
        return int(self._log.runtime.now().timestamp() * 1000)


def _limits_of(milestone: Milestone) -> Limits:
    return Limits(milestone.age_s, milestone.bytes)

"""A standby's view of the process that holds a role, until the standby may claim the next term."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.stores.base import ObjectMissing
from wal_sink.wal import paths
from wal_sink.wal.holders import Holder, Holding, holder_of, state_of
from wal_sink.wal.lease import Lease, LeaseRecord
from wal_sink.wal.log import Log
from wal_sink.wal.records import decode

FREE = 0
"""The newest term of a role that nobody ever held."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest term of a role, the newest renewal of its lease (0: none), and the process that holds it."""

    term: int
    number: int
    holder: Holder


class Watch:
    """Watches one role. A look costs one small read while the holder lives.

    `accept_unknown`: the holder that the first look finds may be fenced although it is not known whether it ended. A
    holder with a lease is not meant: its lease tells.
    """

    def __init__(self, log: Log, role: str, lease: Lease, *, accept_unknown: bool = False) -> None:
        self._log = log
        self._role = role
        self._lease = lease
        self._accept_unknown = accept_unknown
        self._looks = 0
        self._silent_s = 0.0  # watched without a renewal
        self._looked_s = self._now_s()
        self.seen: Seen | None = None
        """The findings of the last look at everything; None before the first one."""

    def look(self) -> int | None:
        """The newest term, once its holder may be fenced; `FREE` if there is none. None: the role is held."""
        seen = self.seen
        if seen is None:
            return self._look_at_all()
        self._looks += 1
        if seen.holder.lease_s is None:
            return self._look_at_all() if self._has_changed(seen) else None
        if (renewed := self._find(paths.lease(self._role, seen.term, seen.number + 1))) is not None:
            self._note(Seen(seen.term, seen.number + 1, seen.holder))
            return self._look_at_all(released=seen.term) if _is_released(renewed) else None
        self._count_silence()
        is_over = self._silent_s >= self._limit_s(seen) or state_of(seen.holder.identity) is Holding.GONE
        return self._look_at_all() if is_over else None

    def _look_at_all(self, *, released: int | None = None) -> int | None:
        """Two listings and two reads. `released`: the term whose holder said that it ended."""
        before, self.seen = self.seen, None
        term = max(self._log.numbers(paths.terms(self._role)), default=FREE)
        if term == FREE:
            return FREE
        holder = holder_of(self._log, self._role, term)
        seen = Seen(term, self._newest_renewal(term), holder)
        is_same = before is not None and (before.term, before.number) == (seen.term, seen.number)
        if not is_same:
            self._note(seen)
        self.seen = seen
        has_ended = holder.state in {Holding.ENDED, Holding.GONE} or term == released
        accept, self._accept_unknown = self._accept_unknown, False
        if holder.lease_s is None:
            return term if has_ended or (accept and holder.state is Holding.UNKNOWN) else None
        return term if has_ended or self._silent_s >= self._limit_s(seen) else None

    def _has_changed(self, seen: Seen) -> bool:
        """Whether a holder without a lease may be gone or superseded. At most one read: for each in turn."""
        if state_of(seen.holder.identity) is Holding.GONE:
            return True
        ended, newer = paths.ended(self._role, seen.term), paths.term(self._role, seen.term + 1)
        return self._find(ended if self._looks % 2 else newer) is not None

    def _newest_renewal(self, term: int) -> int:
        found = map(paths.parse_lease, self._log.store.list(paths.leases(self._role)))
        return max((lease.number for lease in found if lease is not None and lease.term == term), default=0)

    def _find(self, path: str) -> bytes | None:
        try:
            return self._log.store.read(path)
        except ObjectMissing:
            return None

    def _note(self, seen: Seen) -> None:
        """The holder lived: the silence begins now, after the answer."""
        self.seen = seen
        self._silent_s = 0.0
        self._looked_s = self._now_s()

    def _count_silence(self) -> None:
        """Count the time since the last answer. Not in full if this process was stopped, the machine was suspended or
        the store did not answer: then nobody could see a renewal.
        """
        now_s = self._now_s()
        self._silent_s += min(now_s - self._looked_s, 2 * self._lease.look_every_s)
        self._looked_s = now_s

    def _limit_s(self, seen: Seen) -> float:
        return max(self._lease.duration_s, seen.holder.lease_s or 0.0)

    def _now_s(self) -> float:
        return self._log.runtime.monotonic_s()


def _is_released(renewal: bytes) -> bool:
    """Whether the holder said that it ended. A renewal that cannot be read counts by its name, as one that it sent."""
    try:
        return decode(LeaseRecord, renewal, "a renewal").released
    except (CorruptError, ConfigError):
        return False

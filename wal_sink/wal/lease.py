"""Leases: how several processes share a sink and take over from each other within seconds.

The process that serves the sink renews its lease every few seconds: it creates one small object and deletes an older
one. A standby looks for the next renewal. If it sees none for the duration of the lease, by its own monotonic clock, it
claims the next term. No clocks of two hosts are compared.

A lease is opt-in, since it costs requests, and it protects nothing: the terms do that. A take-over from a process that
was only slow costs what any take-over costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.wal import paths
from wal_sink.wal.records import Record

SHORTEST_S = 1.0
LONGEST_S = 3600.0
RENEWALS = 3
"""Renewals during a lease: so many requests in a row may fail or be late before a standby takes over."""
LOOKS = 5
"""Looks of a standby during a lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Lets standbys (`wal-sink drain --standby`) take over from this process once it sends no renewal any more.

    Costs three small requests for each sink every third of `duration_s`. Without a lease, an idle run sends none.
    """

    duration_s: float = 15.0
    """Seconds without a renewal after which a standby takes over: 1 to 3600."""
    ran_out: Mapping[str, int] = field(default_factory=dict)
    """By role, the newest term whose lease this process saw run out. For standbys; nobody else sets it."""

    def __post_init__(self) -> None:
        value: object = self.duration_s
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and SHORTEST_S <= self.duration_s <= LONGEST_S):
            raise ConfigError(
                f"lease: duration_s={value!r} (--lease): expected seconds from {SHORTEST_S:g} to {LONGEST_S:g}"
            )

    @property
    def renew_every_s(self) -> float:
        return self.duration_s / RENEWALS

    @property
    def look_every_s(self) -> float:
        return self.duration_s / LOOKS


class LeaseRecord(Record, frozen=True, kw_only=True):
    """A renewal of a lease. Its name alone tells that the holder of the term lived."""

    kind = "lease"
    role: str
    term: int
    number: int
    run_id: str
    released: bool = False
    """The holder ended in order: a standby need not wait."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.lease(self.role, self.term, self.number)

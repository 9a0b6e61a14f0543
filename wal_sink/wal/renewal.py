"""Renewing the leases of the roles that a run holds. See `wal_sink.wal.lease`."""

from __future__ import annotations

import math
import threading
from collections import deque

from wal_sink.errors import ConfigError, CorruptError, OutcomeUnknownError, StoreError
from wal_sink.reporting.logs import logger_of
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term
from wal_sink.wal.lease import Lease, LeaseRecord
from wal_sink.wal.log import Log
from wal_sink.wal.records import TermRecord

KEPT = 2
"""Renewals that are kept, so that a standby which is late by one still finds the one that it looks for."""

_logger = logger_of(__name__)


class Renewal:
    """Renews the lease of one role. Its methods may be called from several threads."""

    def __init__(self, log: Log, role: str, lease: Lease) -> None:
        self._log = log
        self._role = role
        self._lease = lease
        self._lock = threading.Lock()
        self._number = 0
        self._due_s = -math.inf
        self._kept: deque[str] = deque()
        self._has_failed = False
        self._is_over = False

    @property
    def due_in_s(self) -> float:
        """Seconds until the next renewal; 0 if it is due."""
        return max(0.0, self._due_s - self._log.runtime.monotonic_s())

    def renew_if_due(self, term: Term) -> None:
        """Renew the lease of the present term, if that is due. One read, one create and one deletion; the first time a
        listing more.

        If the store fails, that is logged once, and tried again when the next renewal is due. Raises `FencedError` if
        another process claimed the role.
        """
        with self._lock:
            if self._is_over or self.due_in_s > 0:
                return
            self._due_s = self._log.runtime.monotonic_s() + self._lease.renew_every_s
            try:
                self._refuse_superseded(term)
                self._create(term, released=False)
            except (StoreError, OutcomeUnknownError) as error:
                self._warn(error)
            else:
                self._has_failed = False

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _logger.warning(
                "%s of %s: the lease was not renewed, and this will be tried again. A standby may take over: %s",
                paths.described_role(self._role),
                self._log.store.root,
                error,
            )

    def release(self, term: Term) -> None:
        """Tell standbys that the holder ended in order. A failure is only a warning: they take over a little later."""
        with self._lock:
            self._is_over = True
            try:
                self._create(term, released=True)
            except (StoreError, OutcomeUnknownError, RuntimeError) as error:  # as in `note_end`
                what = paths.described_role(self._role)
                _logger.warning("%s of %s: the lease was not released: %s", what, self._log.store.root, error)

    def _refuse_superseded(self, term: Term) -> None:
        """The next term may be of this run: it claims one to fence its own late requests."""
        try:
            newer = self._log.find(TermRecord, paths.term(self._role, term.number + 1))
        except (ConfigError, CorruptError):
            raise term.superseded(self._log.store) from None  # the name of a term alone counts
        if newer is not None and newer.run_id != self._log.run_id:
            raise term.superseded(self._log.store)

    def _create(self, term: Term, *, released: bool) -> None:
        number = self._number + 1
        path = paths.lease(self._role, term.number, number)
        record = LeaseRecord(
            role=self._role,
            term=term.number,
            number=number,
            run_id=self._log.run_id,
            released=released,
            **self._log.stamp(),
        )
        self._log.create(path, record)  # if it was there, an earlier try of this process made it
        self._delete_old(term, is_first=self._number == 0)
        self._number = number
        self._kept.append(path)

    def _delete_old(self, term: Term, *, is_first: bool) -> None:
        """Delete renewals that no standby looks for any more. One that a crash leaves goes with the next holder."""
        if is_first:
            names = self._log.store.list(paths.leases(self._role))
            found = [(paths.parse_lease(name), name) for name in names]
            old = [name for lease, name in found if lease is not None and lease.term < term.number]
            self._log.store.delete(f"{paths.leases(self._role)}/{name}" for name in old)
        while len(self._kept) >= KEPT:
            self._log.store.delete([self._kept[0]])
            self._kept.popleft()

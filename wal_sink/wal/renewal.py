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

MOST_UNDELETED = 1000
"""Most renewals that are remembered to be deleted, where the store refuses that. Others go with the next holder."""

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
        self._kept: deque[str] = deque(maxlen=KEPT + MOST_UNDELETED)
        self._is_tidy = False  # whether the renewals of earlier holders are deleted
        self._has_failed = False
        self._has_kept_old = False
        self._is_over = False

    @property
    def due_in_s(self) -> float:
        """Seconds until the next renewal; 0 if it is due, infinite after the release."""
        return math.inf if self._is_over else max(0.0, self._due_s - self._log.runtime.monotonic_s())

    def renew_if_due(self, term: Term) -> None:
        """Renew the lease of the present term, if that is due. One read, one create and one deletion; the first time a
        listing more.

        If the store fails, that is logged once, and tried again when the next renewal is due. Raises `FencedError` if
        another process claimed the role.
        """
        with self._lock:
            if self.due_in_s > 0:
                return
            self._due_s = self._log.runtime.monotonic_s() + self._lease.renew_every_s
            try:
                self._refuse_superseded(term)
                self._create(term)
            except (StoreError, OutcomeUnknownError) as error:
                self._warn(error)
            else:
                self._has_failed = False
                self._delete_old(term)

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
            if self._is_over:
                return
            self._is_over = True
            try:
                # A renewal whose outcome was unknown may have this number: then the next one tells the end.
                if not self._create(term, released=True):
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

    def _create(self, term: Term, *, released: bool = False) -> bool:
        """Create the next renewal. False if it was there: an earlier try of this process made it."""
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
        is_new = self._log.create(path, record)
        self._number = number  # at once: a standby looks for the next one, whatever becomes of the old ones
        self._kept.append(path)
        return is_new

    def _delete_old(self, term: Term) -> None:
        """Delete renewals that no standby looks for any more. One that stays goes with the next holder.

        A failure is only a warning, told once: the lease is renewed in any case.
        """
        try:
            if not self._is_tidy:
                self._delete_of_others(term)
            old = list(self._kept)[:-KEPT]
            if old:
                self._log.store.delete(old)
                for _ in old:
                    self._kept.popleft()
        except (StoreError, OutcomeUnknownError) as error:
            if not self._has_kept_old:
                self._has_kept_old = True
                what = paths.described_role(self._role)
                _logger.warning(
                    "%s of %s: the lease was renewed, but older renewals were not deleted: %s",
                    what, self._log.store.root, error,
                )  # fmt: skip
        else:
            self._has_kept_old = False

    def _delete_of_others(self, term: Term) -> None:
        names = self._log.store.list(paths.leases(self._role))
        found = [(paths.parse_lease(name), name) for name in names]
        old = [name for lease, name in found if lease is not None and lease.term < term.number]
        self._log.store.delete(f"{paths.leases(self._role)}/{name}" for name in old)
        self._is_tidy = True

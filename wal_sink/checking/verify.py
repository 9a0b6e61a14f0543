"""`Check`: all checks of a WAL, part by part. Memory and the number of requests are bounded by the largest batch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from wal_sink.checking.batch import BatchFacts, check_batch
from wal_sink.checking.deliveries import check_deliveries, check_letters
from wal_sink.checking.findings import Finding, Findings, in_both
from wal_sink.checking.kinds import TOP
from wal_sink.checking.look import Known, Look
from wal_sink.checking.root import check_root
from wal_sink.checking.sink import check_sink, check_sinks
from wal_sink.errors import WalSinkError
from wal_sink.recovery.inventory import take
from wal_sink.recovery.location import canonical, current_location
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import Log


class Comparison(Protocol):
    """A comparison of a WAL with something outside of it."""

    def whole(self, look: Look) -> None:
        """Compare what is told of the whole WAL. Called once the WAL's own records were read."""
        ...

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Compare one batch."""
        ...

    def left_out(self) -> list[str]:
        """Parts that could not be compared, each with the reason."""
        ...


OnBatch = Callable[[int, int], None]


class Check:
    """A check of one WAL. It reads only, and claims nothing.

    `batches`: those to check, as far as the WAL holds them. `left_out`: what the caller does not compare.
    """

    def __init__(
        self,
        store: Store | Log,
        batches: range = range(sys.maxsize),
        *,
        reads_segments: bool = True,
        comparisons: Sequence[Comparison] = (),
        left_out: Sequence[str] = (),
        on_batch: OnBatch = lambda _done, _total: None,
    ) -> None:
        self.log = store if isinstance(store, Log) else Log(store, SYSTEM, run_id="")
        self.known = Known(self.log)
        self.found = Findings(self.log.store.root)
        self._range = batches
        self._reads_segments = reads_segments
        self._comparisons = comparisons
        self._left_out = left_out
        self._on_batch = on_batch

    def run(self) -> list[Finding]:
        """Check part by part, and return `found.faults`. If it ends early, `found` holds what it found before.

        Raises `StoreError`, and `ConfigError` for the folder of a checkpoint.
        """
        try:
            self._run()
        finally:
            told = (line for comparison in self._comparisons for line in comparison.left_out())
            self.found.not_compared = [*self._left_out, *told]
        return self.found.faults

    def _run(self) -> None:
        self._look(check_root)
        self._locate()
        self._look(check_sinks)
        for comparison in self._comparisons:
            self._look(comparison.whole)
        wanted = [batch_id for batch_id in self.known.batches if batch_id in self._range]
        self._on_batch(0, len(wanted))
        for done, batch_id in enumerate(wanted, 1):
            self._look(partial(self._batch, batch_id=batch_id))
            self.found.through = batch_id
            self._on_batch(done, len(wanted))
        for folder in list(self.known.sinks):
            self._look(partial(check_sink, folder=folder))
            self._letters(folder)
        self.found.complete = True

    def _locate(self) -> None:
        """Compare the place that the WAL records with its own. One listing, and a read if there are moves."""
        if self.known.wal is None:
            return
        self.found.exists = True
        with contextlib.suppress(WalSinkError):  # the check itself tells of damaged records
            said = current_location(self.log, self.known.wal, moved=True)
            self.found.recorded_location = None if said == canonical(self.log.store.root) else said

    def _batch(self, look: Look, batch_id: int) -> None:
        facts = check_batch(look, batch_id, reads_segments=self._reads_segments)
        check_deliveries(look, facts)
        for comparison in self._comparisons:
            comparison.batch(look, facts)

    def _letters(self, folder: str) -> None:
        batches: list[int] = []

        def listed(look: Look) -> None:
            batches[:] = look.numbers(paths.dead_letter_batches(folder), of_folders=True)

        if "dead-letters/" in self.known.sinks[folder].names:
            self._look(listed)
        for batch_id in [number for number in batches if number in self._range]:
            self._look(partial(check_letters, folder=folder, batch_id=batch_id))

    def _look(self, check: Callable[[Look], None]) -> None:
        """Look at a part. Its findings are those that two looks agree on."""
        look = Look(self.known)
        check(look)
        first = look.found
        if first:
            look = Look(self.known)
            check(look)
        self.found.seen.add(look.seen)
        self.found.add(in_both(first, look.found))


def holds_wal(store: Store) -> bool:
    """Whether a folder holds anything that wal-sink makes. One listing. Raises `ConfigError` for a checkpoint."""
    if TOP.isdisjoint(store.list("")):
        take(Log(store, SYSTEM, run_id=""))
        return False
    return True

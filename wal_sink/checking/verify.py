"""`Check`: all checks of a WAL, part by part. Memory and the number of requests are bounded by the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from wal_sink.checking.batch import BatchFacts, check_batch
from wal_sink.checking.findings import Finding, Seen, in_both
from wal_sink.checking.kinds import TOP
from wal_sink.checking.letters import check_letters, letter_batches
from wal_sink.checking.look import Known, Look
from wal_sink.checking.root import check_root
from wal_sink.checking.sink import check_sink, check_sinks
from wal_sink.checking.sink_batch import check_deliveries
from wal_sink.recovery.inventory import take
from wal_sink.recovery.location import canonical, current_location
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.wal.log import NOTHING, Log


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


@dataclass(frozen=True, slots=True)
class Range:
    """The batches to check. Those that the WAL does not hold are left out."""

    first: int = 0
    last: int | None = None
    after: int = NOTHING
    """The newest batch that an earlier check looked at."""

    def __contains__(self, batch_id: int) -> bool:
        return batch_id >= self.first and batch_id > self.after and (self.last is None or batch_id <= self.last)


OnBatch = Callable[[int, int], None]


class Check:
    """A check of one WAL. It reads only, and claims nothing.

    `through` is the newest batch that was checked: pass it as `Range.after` to go on there.
    """

    def __init__(
        self,
        store: Store | Log,
        batches: Range = Range(),
        *,
        reads_segments: bool = True,
        comparisons: Sequence[Comparison] = (),
        left_out: Sequence[str] = (),
        on_batch: OnBatch = lambda _done, _total: None,
    ) -> None:
        self.log = store if isinstance(store, Log) else Log(store, SYSTEM, run_id="")
        self.known = Known(self.log)
        self.seen = Seen()
        self.through = batches.after
        self.is_complete = False
        """Whether every part was looked at."""
        self._range = batches
        self._reads_segments = reads_segments
        self._comparisons = comparisons
        self._left_out = left_out
        self._on_batch = on_batch

    def run(self) -> Iterator[Finding]:
        """Every finding, part by part. Raises `StoreError`, and `ConfigError` for the folder of a checkpoint."""
        yield from self._confirmed(check_root)
        yield from self._confirmed(check_sinks)
        for comparison in self._comparisons:
            yield from self._confirmed(comparison.whole)
        wanted = [batch_id for batch_id in self.known.batches if batch_id in self._range]
        self._on_batch(0, len(wanted))
        for done, batch_id in enumerate(wanted, 1):
            yield from self._confirmed(partial(self._batch, batch_id=batch_id))
            self.through = batch_id
            self._on_batch(done, len(wanted))
        for folder in list(self.known.sinks):
            yield from self._confirmed(partial(check_sink, folder=folder))
            yield from self._letters(folder)
        self.is_complete = True

    def elsewhere(self) -> str:
        """The place that the WAL records, if it is another one: then this is a copy, or the WAL was moved. Else empty.

        One listing, and a read if there are moves.
        """
        if self.known.wal is None:
            return ""
        said = current_location(self.log, self.known.wal, moved=True)
        return "" if said == canonical(self.log.store.root) else said

    def left_out(self) -> list[str]:
        """Parts that were not compared, each with the reason."""
        return [*self._left_out, *(line for comparison in self._comparisons for line in comparison.left_out())]

    def _batch(self, look: Look, batch_id: int) -> None:
        facts = check_batch(look, batch_id, reads_segments=self._reads_segments)
        check_deliveries(look, facts)
        for comparison in self._comparisons:
            comparison.batch(look, facts)

    def _letters(self, folder: str) -> Iterator[Finding]:
        batches: list[int] = []

        def listed(look: Look) -> None:
            batches[:] = letter_batches(look, folder) if "dead-letters/" in self.known.sinks[folder].names else []

        yield from self._confirmed(listed)
        for batch_id in [number for number in batches if number in self._range]:
            yield from self._confirmed(partial(check_letters, folder=folder, batch_id=batch_id))

    def _confirmed(self, check: Callable[[Look], None]) -> list[Finding]:
        """The findings of a part that two looks agree on."""
        look = Look(self.known)
        check(look)
        first = look.found
        if first:
            look = Look(self.known)
            check(look)
        self.seen.add(look.seen)
        return in_both(first, look.found)


def holds_wal(store: Store) -> bool:
    """Whether a folder holds anything that wal-sink makes. One listing. Raises `ConfigError` for a checkpoint."""
    if TOP.isdisjoint(store.list("")):
        take(Log(store, SYSTEM, run_id=""))
        return False
    return True

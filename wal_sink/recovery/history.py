"""What one run knows of its WAL's past: whose it is, which batches it holds, and what this run staged itself."""

from __future__ import annotations

import threading

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import DivergentReplay, HistoryError, HistoryGone, MissingBatch
from wal_sink.recovery.inventory import Inventory, Lost, find_again, find_wal, held_batches, sink_folders, take
from wal_sink.recovery.location import canonical, check_location
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import LowWater, Manifest, WalRecord

KEPT_MANIFESTS = 256
"""How many manifests of its own a run keeps in memory; of more it knows the size alone, and reads them again."""


class History:
    """Shared by the stager and the committers of one run. Safe to share between threads."""

    def __init__(self, log: Log, checkpoint: Checkpoint) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._staged: dict[int, Manifest] = {}
        self._pending: dict[int, int] = {}
        self._wal: WalRecord | None = None
        self._newest_known = NOTHING
        self._held: tuple[int, int] | None = None
        self._low_water: LowWater | None = None
        self._newest_marked = NOTHING
        self._moved_from: str | None = None
        self._known_owners: set[str] = set()
        self._complete_before: int | None = None
        """The newest batch that was complete when the WAL was opened; None if it was not new then."""

    @property
    def wal(self) -> WalRecord | None:
        """The WAL's own record; None before its first batch."""
        return self._wal

    @property
    def newest_known(self) -> int:
        """The newest batch that had a trace in the WAL at the start, or was staged since."""
        return self._newest_known

    @property
    def has_batches(self) -> bool:
        return self._newest_known > NOTHING

    @property
    def accounted_through(self) -> int:
        """The batch after which the next one comes: the newest known, or the one before the first of a bound WAL.

        A WAL is bound by its first batch before that is staged. Where that failed, the first batch is missing.
        """
        begins = NOTHING if self._wal is None else self._wal.first_batch - 1
        return max(self._newest_known, begins)

    @property
    def oldest_held(self) -> int | None:
        """The oldest batch above low water when batches were last looked at; None if there was none."""
        return self._held[0] if self._held else None

    @property
    def newest_held(self) -> int | None:
        """The newest of them."""
        return self._held[1] if self._held else None

    def load_owner(self) -> WalRecord | None:
        """Read whose the WAL is; None before its first batch. `HistoryError` if it belongs to another query,
        `ObjectLost` if its record is gone.
        """
        return self._wal_of_its_owner(self._wal or find_wal(self._log))

    def poll_owner(self) -> WalRecord | None:
        """`load_owner` by one read at most: what was absent at the start is absent still, or made since."""
        return self._wal_of_its_owner(self._wal or self._log.find(WalRecord, paths.WAL))

    def adopt(self, inventory: Inventory, *, moved_from: str | None) -> None:
        """`load_owner` from what was found when the WAL was opened.

        Raises `ConfigError` for a WAL that says it lies elsewhere, unless it was moved here from `moved_from`.
        """
        self._moved_from = moved_from
        if self._wal_of_its_owner(inventory.wal, moved=inventory.has_moved) is None:
            self._complete_before = self._checkpoint.newest_commit()

    def _wal_of_its_owner(self, wal: WalRecord | None, *, moved: bool = True) -> WalRecord | None:
        """`moved`: whether it may have been moved, if it is seen for the first time; then a listing tells."""
        if wal is None:
            return None
        self._check_owner(wal)
        if self._wal is None:
            check_location(self._log, wal, moved=moved, moved_from=self._moved_from)
            self._wal = wal
        return wal

    def require_wal(self) -> WalRecord:
        """The WAL's own record, for who has found a batch or a marker in it. Reads it where this run has not yet.

        Raises `ObjectLost` if it is not there: without its id no slot and no transaction of a target can be named.
        """
        wal = self._wal or self.load_owner()
        return wal or find_again(self._log, WalRecord, paths.WAL, Lost.WAL, f"what lies in {paths.BATCHES}/")

    def ask_owner_again(self) -> WalRecord | None:
        """`load_owner`, as if the checkpoint had never been asked: it may have been replaced since."""
        self._known_owners.clear()
        return self.poll_owner()

    def load_batches(self) -> None:
        """Read which batches left a trace. To be called once the run's terms are claimed."""
        if self._wal is not None:
            low_water, held = held_batches(self._log, self._wal)
            if low_water > (self._low_water.batch_id if self._low_water else NOTHING):
                self._low_water = self._log.require(LowWater, paths.low_water(low_water))
            with self._lock:
                self._newest_known = max(self._newest_known, low_water, *held)
                self._held = (held[0], held[-1]) if held else None

    @property
    def low_water(self) -> LowWater | None:
        """The newest low-water record when batches were last looked at; None if there was none."""
        return self._low_water

    @property
    def newest_marked(self) -> int:
        """The newest batch for which this run met a marker; -1 if none."""
        return self._newest_marked

    def note_marked(self, through: int) -> None:
        """A sink has every batch up to this one."""
        with self._lock:
            self._newest_marked = max(self._newest_marked, through)

    def is_owned_by(self, query_id: str) -> bool:
        """Whether the checkpoint is that of the query. Reads only until the answer was yes once."""
        if query_id not in self._known_owners and self._checkpoint.query_id() == query_id:
            self._known_owners.add(query_id)
        return query_id in self._known_owners

    def refuse_other_query(self, running: str) -> None:
        """Refuse a running query that is not the WAL's own, which the checkpoint at hand belongs to. No request.

        The checkpoint may have been deleted after the owner was asked and before Spark looked at it.
        """
        if self._wal is not None and running != self._wal.query_id:
            raise self._not_the_owner(self._wal, running)

    def bind(self, batch_id: int) -> WalRecord:
        """Make sure that the WAL belongs to the running query, creating its record at the first batch."""
        wal = self._wal or self._create(batch_id)
        self._check_owner(wal)
        if batch_id < wal.first_batch:
            raise HistoryGone(
                f"batch {batch_id} of {self._log.store.root}: the WAL begins with batch {wal.first_batch}; the "
                f"checkpoint {self._checkpoint.root} was rolled back beyond it. Restore a newer checkpoint, or "
                "start a new WAL"
            )
        self._wal = wal
        return wal

    def first_since_opened(self, batch_id: int) -> int:
        """The first batch that Spark completed since this run opened a new WAL; if none, `batch_id`, which runs now.

        No request. A batch runs once the one before it is complete.
        """
        if self._complete_before is None:
            return batch_id
        return min(batch_id, self._complete_before + 1)

    def refuse_unstaged(self) -> None:
        """Raise `MissingBatch` if the WAL is new still, and Spark completed batches since it was opened.

        At most a listing and a read. The checkpoint is asked first: a WAL is made before Spark completes its first
        batch.
        """
        if self._wal is not None or self._complete_before is None:
            return
        newest = self._checkpoint.newest_commit()
        if newest > self._complete_before and self.poll_owner() is None:
            raise MissingBatch(
                f"batches {self._complete_before + 1} to {newest} of {self._checkpoint.root}: Spark completed them "
                f"while the new WAL {self._log.store.root} was open, but none of them was staged. foreachBatch did not "
                "call stage(), did not wait for the thread that calls it, or did not raise what it raised. Correct "
                "foreachBatch; to get their rows, restore the checkpoint to before them, then start again"
            )

    def note_staged(self, manifest: Manifest) -> None:
        with self._lock:
            self._staged.pop(manifest.batch_id, None)
            if len(self._staged) < KEPT_MANIFESTS:
                self._staged[manifest.batch_id] = manifest
            self._pending[manifest.batch_id] = manifest.bytes
            self._newest_known = max(self._newest_known, manifest.batch_id)

    def staged(self, batch_id: int) -> Manifest | None:
        """What this run itself staged of a batch, last; None if it is no longer, or was never, in memory."""
        with self._lock:
            return self._staged.get(batch_id)

    def is_pending(self, batch_id: int) -> bool:
        """Whether this run staged the batch and some sink of it does not have it."""
        return batch_id in self._pending

    def pending(self, *, before: int) -> tuple[int, int]:
        """Batches below `before`, and their segment bytes, that this run staged and some sink of it does not have."""
        with self._lock:
            sizes = [size for batch_id, size in self._pending.items() if batch_id < before]
        return len(sizes), sum(sizes)

    def note_delivered(self, everywhere: int, *, where_alive: int) -> None:
        """Forget batches that every sink of this run has, and the manifests of those that every living one has."""
        with self._lock:
            self._pending = {batch_id: size for batch_id, size in self._pending.items() if batch_id > everywhere}
            self._staged = {batch_id: staged for batch_id, staged in self._staged.items() if batch_id > where_alive}

    def _create(self, batch_id: int) -> WalRecord:
        query_id = self._checkpoint.query_id()
        if query_id is None:
            raise HistoryError(
                f"{self._checkpoint.root} holds no query id although batch {batch_id} runs; is this the "
                "checkpointLocation of the query?"
            )
        # It may have been made, and lost, since this run looked: then it must not be made again for a later batch.
        if (wal := take(self._log).wal) is not None:
            return self._made_meanwhile(wal)
        record = WalRecord(
            wal_id=self._log.runtime.new_id(),
            query_id=query_id,
            checkpoint=self._checkpoint.root,
            first_batch=batch_id,
            location=canonical(self._log.store.root),
            sinks=tuple(sink_folders(self._log)),
            **self._log.stamp(),
        )
        found, is_own = self._log.create_or_find(paths.WAL, record)
        return found if is_own else self._made_meanwhile(found)

    def _made_meanwhile(self, wal: WalRecord) -> WalRecord:
        """Another process made it, or somebody copied a WAL to this place since this run opened it."""
        self._check_owner(wal)
        check_location(self._log, wal, moved=True, moved_from=self._moved_from)
        return wal

    def _check_owner(self, wal: WalRecord) -> None:
        if self.is_owned_by(wal.query_id):
            return
        raise self._not_the_owner(wal, self._checkpoint.query_id())

    def _not_the_owner(self, wal: WalRecord, query_id: str | None) -> HistoryError:
        found = "no query yet (it is new or was deleted)" if query_id is None else f"query {query_id}"
        return HistoryError(
            f"{self._log.store.root} belongs to query {wal.query_id}, but the checkpoint {self._checkpoint.root} "
            f"belongs to {found}. Its batch ids would mean other rows. Restore the checkpoint of that query, or "
            "give this one a new WAL"
        )


def divergence(log: Log, checkpoint: Checkpoint, batch_id: int, expected: str, found: str) -> DivergentReplay:
    """The error of a known batch id under which the checkpoint reads something else."""
    return DivergentReplay(
        f"batch {batch_id} of {log.store.root}: the WAL holds it with source offsets {expected[:12]}, but the "
        f"checkpoint {checkpoint.root} now has {found[:12]} under the same id; it was restored to an older state "
        "or rewritten. Nothing of the other was staged or delivered. Restore the checkpoint that belongs to this WAL, "
        "or start a new WAL"
    )

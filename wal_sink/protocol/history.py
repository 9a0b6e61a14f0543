"""`History`: the owner of a WAL, the batches that it holds, and those that this run staged."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

from wal_sink.errors import HistoryError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import LowWater, Manifest, WalRecord
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.checkpoint_formats import FileEntry, OffsetsEntry, planned_at, read_offsets
from wal_sink.protocol.inventory import Inventory, find_wal, held_batches, marked_through, require_wal, take_again
from wal_sink.protocol.location import GonePlace, canonical, check_location
from wal_sink.protocol.sinks import read_names
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import counted

_logger = logger_of(__name__)
KEPT_MANIFESTS = 256
"""Most manifests that a run keeps in memory. Of later batches it keeps the size alone, and reads the manifest again."""
_MOST_SOURCES = 3
_LONGEST = 120
"""Longest offset that is shown as a whole."""
_LOWEST = 0
"""Term and attempt of such a manifest. If Spark runs the batch after all, the stager's manifest has a higher term."""


class MissingBatchError(HistoryError):
    """Spark completed a batch whose manifest the WAL does not hold.

    `WalSink` decides by it: it raises the error that kept the batch from being staged, if there was one.
    """


class History:
    """The past of a WAL, shared by the stager and the committers of one run. Threads may share it."""

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
        self._moved_from: str | GonePlace | None = None
        self._take_over = TakeOver.ALWAYS
        self._known_owners: set[str] = set()
        self._complete_before: int | None = None
        """The newest batch that was complete when the WAL was opened; None if it was not new then."""

    @property
    def wal(self) -> WalRecord | None:
        """The WAL's own record; None before its first batch."""
        return self._wal

    @property
    def first_batch(self) -> int:
        """The batch with which the WAL begins; 0 before its first batch."""
        return 0 if self._wal is None else self._wal.first_batch

    @property
    def newest_known(self) -> int:
        """The newest batch that had any object in the WAL at the start, or was staged since."""
        return self._newest_known

    @property
    def has_batches(self) -> bool:
        return self._newest_known > NOTHING

    @property
    def accounted_through(self) -> int:
        """The batch that the next one must follow: the newest known, or the one before the first of a bound WAL.

        A WAL is bound to its query just before its first batch is staged. If that staging failed, the first batch is
        missing.
        """
        return max(self._newest_known, self.first_batch - 1)

    @property
    def oldest_held(self) -> int | None:
        """The oldest batch above low water when batches were last looked at; None if there was none."""
        return None if self._held is None else self._held[0]

    @property
    def newest_held(self) -> int | None:
        """The newest batch above low water, read at the same time as `oldest_held`."""
        return None if self._held is None else self._held[1]

    def load_owner(self) -> WalRecord | None:
        """Read the WAL's record; None before its first batch.

        Raises `HistoryError` if the WAL belongs to another query, `CorruptError` if the record is gone.
        """
        return self._wal_of_its_owner(self._wal or find_wal(self._log))

    def poll_owner(self) -> WalRecord | None:
        """`load_owner` by one read at most: a record that was absent at the start is absent still, or new."""
        return self._wal_of_its_owner(self._wal or self._log.find(WalRecord, paths.WAL))

    def adopt(
        self, inventory: Inventory, *, moved_from: str | GonePlace | None, take_over: TakeOver = TakeOver.ALWAYS
    ) -> None:
        """`load_owner` from the inventory that was taken when the WAL was opened.

        Raises what `check_location` does for a WAL that says it lies elsewhere; for a new WAL also `ConfigError` if the
        checkpoint is the folder of another WAL.
        """
        self._moved_from, self._take_over = moved_from, take_over
        if self._wal_of_its_owner(inventory.wal, moved=inventory.has_moved) is None:
            self._checkpoint.refuse_wal()
            self._complete_before = self._checkpoint.newest_commit()

    def _wal_of_its_owner(self, wal: WalRecord | None, *, moved: bool = True) -> WalRecord | None:
        """Check a record and remember it. `moved`: whether the WAL may have been moved; then a listing shows it."""
        return None if wal is None else self._own(wal, moved=moved)

    def _own(self, wal: WalRecord, *, moved: bool = True) -> WalRecord:
        """`_wal_of_its_owner` where there is a record: also one that another process made meanwhile, or a copy."""
        self._check_owner(wal)
        if self._wal is None:
            check_location(self._log, wal, moved=moved, moved_from=self._moved_from, take_over=self._take_over)
            self._wal = wal
        return wal

    def require_wal(self) -> WalRecord:
        """The WAL's record, where a batch or a marker was found. Reads it if this run has not read it yet.

        Raises `CorruptError` if it is gone: slots and transactions of targets are named by the WAL's id.
        """
        return self.load_owner() or require_wal(self._log, f"the content of {paths.BATCHES}/")

    def ask_owner_again(self) -> WalRecord | None:
        """`load_owner`, with the checkpoint read anew: it may have been replaced since."""
        self._known_owners.clear()
        return self.poll_owner()

    def load_batches(self) -> None:
        """Read which batches the WAL holds. Call it once the run's terms are claimed."""
        if self._wal is not None:
            low_water, held = held_batches(self._log, self._wal)
            if low_water > (NOTHING if self._low_water is None else self._low_water.batch_id):
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
        """Note that a sink has every batch up to this one."""
        with self._lock:
            self._newest_marked = max(self._newest_marked, through)

    def is_owned_by(self, query_id: str) -> bool:
        """Whether the checkpoint belongs to the query. Once the answer was yes, nothing is read any more."""
        if query_id not in self._known_owners and self._checkpoint.query_id() == query_id:
            self._known_owners.add(query_id)
        return query_id in self._known_owners

    def refuse_other_query(self, running: str) -> None:
        """Refuse a running query that does not own the WAL. No request unless it is refused.

        The checkpoint may have been deleted after this run read its owner and before Spark looked at it.
        """
        if self._wal is not None and running != self._wal.query_id:
            raise self._not_the_owner(self._wal, running)

    def bind(self, batch_id: int) -> bool:
        """Make sure that the WAL belongs to the running query. At the first batch, create its record.

        Returns whether this call made the record. Everything else of a WAL's batches is made after it.
        """
        wal, is_made = (self._wal, False) if self._wal is not None else self._create(batch_id)
        self._check_owner(wal)
        if batch_id < wal.first_batch:
            raise HistoryError(
                f"batch {batch_id} of {self._log.store.root}: the WAL begins with batch {wal.first_batch}, but the "
                f"checkpoint {self._checkpoint.root} was rolled back to an earlier batch. Restore a newer "
                "checkpoint, or deliver what this WAL holds (wal-sink settle WAL FOLDER, then a drain) and start a "
                "new WAL"
            )
        self._wal = wal
        return is_made

    def first_since_opened(self, batch_id: int) -> int:
        """The first batch that Spark completed since this run opened a new WAL; `batch_id`, which runs now, if none.

        No request. A batch runs only after the one before it is complete.
        """
        if self._complete_before is None:
            return batch_id
        return min(batch_id, self._complete_before + 1)

    def refuse_unstaged(self) -> None:
        """Raise `MissingBatchError` if Spark completed batches since this run opened the WAL, and the WAL is still new.

        At most a listing and a read. The checkpoint is read first, since a WAL is made before Spark completes its first
        batch.
        """
        if self._wal is not None or self._complete_before is None:
            return
        newest = self._checkpoint.newest_commit()
        if newest > self._complete_before and self.poll_owner() is None:
            raise MissingBatchError(
                f"Spark completed batches {self._complete_before + 1} to {newest} of {self._checkpoint.root} while the "
                f"new WAL {self._log.store.root} was open, but none of these batches was staged. Possible causes: "
                "foreachBatch did not call stage(), did not wait for the thread that calls stage(), or caught the "
                "error of stage() and did not raise it again. Correct foreachBatch. To get the rows of these batches, "
                f"restore the checkpoint to its state before batch {self._complete_before + 1}, then start the query "
                "again"
            )

    def note_begun(self, batch_id: int) -> None:
        """Note that an attempt at a batch began here, and that another process may create its manifest.

        If Spark runs the batch again, it may have been released since. If it runs the next one, this one was staged.
        """
        with self._lock:
            self._newest_known = max(self._newest_known, batch_id)

    def note_staged(self, manifest: Manifest) -> None:
        with self._lock:
            self._staged.pop(manifest.batch_id, None)
            if len(self._staged) < KEPT_MANIFESTS:
                self._staged[manifest.batch_id] = manifest
            self._pending[manifest.batch_id] = manifest.bytes
            self._newest_known = max(self._newest_known, manifest.batch_id)

    def staged(self, batch_id: int) -> Manifest | None:
        """The manifest that this run staged last of a batch; None if it is not in memory."""
        with self._lock:
            return self._staged.get(batch_id)

    def pending(self, *, before: int) -> tuple[int, int]:
        """Number and segment bytes of the batches below `before` that this run staged, and that at least one of its
        sinks does not have.
        """
        with self._lock:
            sizes = [size for batch_id, size in self._pending.items() if batch_id < before]
        return len(sizes), sum(sizes)

    def note_delivered(self, everywhere: int, *, where_alive: int) -> None:
        """Forget the batches through `everywhere`, which every sink of this run has.

        Forget the manifests through `where_alive`, which every sink has whose delivery did not fail for good.
        """
        with self._lock:
            self._pending = {batch_id: size for batch_id, size in self._pending.items() if batch_id > everywhere}
            self._staged = {batch_id: staged for batch_id, staged in self._staged.items() if batch_id > where_alive}

    def _create(self, batch_id: int) -> tuple[WalRecord, bool]:
        """The WAL's record, and whether it was made here."""
        query_id = self._checkpoint.query_id()
        if query_id is None:
            raise HistoryError(
                f"{self._checkpoint.root} holds no query id, but batch {batch_id} is running. So this is probably not "
                "the checkpoint of the running query. Pass the checkpointLocation of the running query"
            )
        # Another process may have made the record since this run looked, and it may be lost by now. Then it must not be
        # made again for a later batch.
        made, sinks = take_again(self._log)
        if made is not None:
            return self._own(made), False
        record = WalRecord(
            wal_id=self._log.runtime.new_id(),
            query_id=query_id,
            checkpoint=self._checkpoint.root,
            first_batch=batch_id,
            location=canonical(self._log.store.root),
            sinks=tuple(sinks),
            **self._log.stamp(),
        )
        wal, is_own = self._log.create_or_find(paths.WAL, record)
        if not is_own:
            return self._own(wal), False
        if batch_id > 0:
            _logger.warning(
                "%s is a new WAL and begins with batch %d. Spark completed the batches before it, and wal-sink "
                "delivers none of them. This is right if the query wrote them to its target without wal-sink. If an "
                "earlier WAL of this checkpoint was deleted, restore it: only that WAL holds the batches that it "
                "had not delivered",
                self._log.store.root, batch_id,
            )  # fmt: skip
        return wal, True

    def _check_owner(self, wal: WalRecord) -> None:
        if self.is_owned_by(wal.query_id):
            return
        raise self._not_the_owner(wal, self._checkpoint.query_id())

    def _not_the_owner(self, wal: WalRecord, query_id: str | None) -> HistoryError:
        found = "no query yet (it is new or was deleted)" if query_id is None else f"query {query_id}"
        return HistoryError(
            f"{self._log.store.root} belongs to query {wal.query_id}, but the checkpoint {self._checkpoint.root} "
            f"belongs to {found}. The batch ids of another query mean other rows. Restore the checkpoint of query "
            f"{wal.query_id}, or use a new WAL for this query. If only the file metadata of the checkpoint was lost, "
            f'write {{"id":"{wal.query_id}"}} into it and delete .metadata.crc. {_held(self._log, wal)}. Before a '
            "new WAL, deliver what this WAL holds: wal-sink settle WAL FOLDER, then a drain"
        )


def _held(log: Log, wal: WalRecord) -> str:
    """The newest batch of a WAL and of each sink, for a message. A few requests for each sink."""
    try:
        low_water, held = held_batches(log, wal)
        sinks = [sink for sink in read_names(log).sinks if not sink.is_retired]
        have = [f"sink {sink.name!r} has batches up to {marked_through(log, sink.folder)}" for sink in sinks]
    except WalSinkError:
        return "It is not known which batches its sinks lack"
    return ", ".join([f"This WAL holds batches up to {max([low_water, wal.first_batch - 1, *held])}", *have])


def divergence(
    log: Log, checkpoint: Checkpoint, batch_id: int, expected: str, found: str, *, held: tuple[int, int]
) -> HistoryError:
    """The error for a batch id that the WAL knows, and for which the checkpoint names other source offsets.

    `held`: term and attempt of the WAL's manifest.
    """
    return HistoryError(
        f"batch {batch_id} of {log.store.root}: the WAL holds this batch with source offsets {expected[:12]}, but "
        f"the checkpoint {checkpoint.root} now has {found[:12]} under the same id. The checkpoint was restored to "
        f"an older state or rewritten. {difference(log, checkpoint, batch_id, held)}. No row of the other history "
        "was staged or delivered. Restore the checkpoint that belongs to this WAL, or deliver what this WAL still "
        "holds (wal-sink settle WAL FOLDER, then a drain) and start a new WAL. After a restore, Spark plans other "
        "batches under the same ids if the source has new input, or if an option changed that limits a batch "
        "(maxFilesPerTrigger, maxOffsetsPerTrigger). Then set the option back, and restore the whole checkpoint "
        "again, because it now holds the other plan"
    )


def difference(log: Log, checkpoint: Checkpoint, batch_id: int, held: tuple[int, int]) -> str:
    """The difference in sentences. Never raises `WalSinkError`: what cannot be read is told.

    `held`: term and attempt of the WAL's manifest. Two reads, one more if a source reads files, and those of its log.
    """
    try:
        manifest = log.require(Manifest, paths.manifest(batch_id, *held))
        text = checkpoint.offsets_text(batch_id)
        if text is None:
            return f"{_rows(manifest)}. The checkpoint has no entry of the batch any more"
        return redacted(_compared(manifest, text, checkpoint))
    except WalSinkError as error:
        return f"The difference cannot be shown: {redacted(error)}"


def _compared(manifest: Manifest, text: str, checkpoint: Checkpoint) -> str:
    before = read_offsets(manifest.offsets, "the manifest")
    now = read_offsets(text, f"{checkpoint.root}/offsets/{manifest.batch_id}")
    told = [f"{_rows(manifest)}, {_planned(before)}. The batch in the checkpoint was {_planned(now)}"]
    sources = sorted(before.sources.keys() | now.sources.keys())
    differing = [source for source in sources if before.sources.get(source) != now.sources.get(source)]
    told += [
        f"Source {source}: the WAL has {_shown(before.sources.get(source))}, "
        f"the checkpoint {_shown(now.sources.get(source))}"
        for source in differing[:_MOST_SOURCES]
    ]
    if len(differing) > _MOST_SOURCES:
        told.append(f"{counted(len(differing) - _MOST_SOURCES, 'more source')} differ")
    files = checkpoint.files(manifest.batch_id, now)
    told += [_files(source, files[source], differs=source in differing) for source in sorted(files)[:_MOST_SOURCES]]
    return ". ".join(told)


def _rows(manifest: Manifest) -> str:
    if manifest.passed_over:
        return "The WAL has it as a batch that no query ran"
    return f"The WAL has {counted(manifest.rows, 'row')} of it, in {counted(len(manifest.segments), 'segment')}"


def _planned(entry: OffsetsEntry) -> str:
    at_ms = planned_at(entry.metadata)
    if at_ms is None:
        return "planned at an unknown time"
    return f"planned at {datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec='milliseconds')}"


def _shown(offset: str | None) -> str:
    if offset is None:
        return "no offset"
    return offset if len(offset) <= _LONGEST else f"{offset[:_LONGEST]}… ({len(offset):,} characters)"


def _files(source: str, files: Sequence[FileEntry], *, differs: bool) -> str:
    names = [file.path.rpartition("/")[2] for file in files]
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "none"
    same = "" if differs else " under the same offset"
    return f"Source {source} reads files: now {counted(len(files), 'file')}{same} ({which})"


def pass_over(log: Log, checkpoint: Checkpoint, batch_id: int) -> Manifest | None:
    """The empty manifest of a batch that was not staged; None unless the checkpoint proves that no query ran it.

    The first stager or committer that meets the batch creates the manifest, and every other one finds it. Call this
    only for a completed batch without a manifest. Four reads and a create.
    """
    offsets = checkpoint.repartition(batch_id)
    if offsets is None:
        return None
    manifest = Manifest(
        batch_id=batch_id,
        term=_LOWEST,
        attempt=_LOWEST,
        run_id=log.run_id,
        fingerprint=offsets.fingerprint,
        offsets=offsets.text,
        columns=(),
        spark_schema="",
        chunk_rows=1,
        segments=(),
        passed_over=True,
        **log.stamp(),
    )
    return log.create_or_find(paths.manifest(batch_id, _LOWEST, _LOWEST), manifest)[0]

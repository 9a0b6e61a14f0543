"""Releasing a batch: a durable decision, for all sinks, which of its staged attempts is delivered. And what the
committers of one run share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, Move, Release
from wal_sink.protocol.checkpoint import Checkpoint, Gate
from wal_sink.protocol.checkpoint_formats import planned_ms
from wal_sink.protocol.history import History, MissingBatchError, divergence, pass_over
from wal_sink.protocol.inventory import Lost, require
from wal_sink.support.clock import StoppedError


@dataclass(frozen=True, slots=True)
class Released:
    """A released batch. It never changes again."""

    manifest: Manifest
    run_id: str
    """The run that released it. If it is another run, that one may have begun to deliver it."""
    is_present_plan: bool = False
    """Whether the checkpoint has the same plan of the batch that was staged, not another plan of the same input."""


class Releaser:
    """Releases batches for all committers of one run. Call it only after the batch's gate was seen open."""

    def __init__(self, log: Log, checkpoint: Checkpoint, gate: Gate, history: History) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._gate = gate
        self._history = history
        self._lock = threading.Lock()
        self._released: dict[int, Released] = {}

    def release(self, batch_id: int, staged: Manifest | None, *, sink: str) -> Released | None:
        """Release the batch, or find its release. Return None if its gate is closed after all.

        `staged`: this run's manifest of the batch, looked up *before* the gate was read. A later manifest would have to
        wait for another commit of Spark. `sink`: the sink it is released for, which has every earlier batch. Raises
        `HistoryError` or `CorruptError`.
        """
        with self._lock:
            released = self._released.get(batch_id)
            if released is None and (released := self._decide(batch_id, staged, sink)) is not None:
                released = self._released[batch_id] = self._confirmed(released)
            return released

    def forget_through(self, batch_id: int) -> None:
        """Free the memory of batches that every sink of this run has."""
        with self._lock:
            for known in [known for known in self._released if known <= batch_id]:
                del self._released[known]

    def _decide(self, batch_id: int, staged: Manifest | None, sink: str) -> Released | None:
        manifest = staged
        if manifest is None:
            existing = self._log.find(Release, paths.release(batch_id))
            if existing is not None:
                return self._adopt(existing)
            manifest = self._highest_manifest(batch_id)
            self._check_against_checkpoint(manifest)
            if not self._gate.ask_now(batch_id):
                return None  # the gate was open in a past that the checkpoint has lost
        release = Release(
            batch_id=batch_id,
            term=manifest.term,
            attempt=manifest.attempt,
            fingerprint=manifest.fingerprint,
            run_id=self._log.run_id,
            sink=sink,
            **self._log.stamp(),
        )
        existing, is_own = self._log.create_or_find(paths.release(batch_id), release)
        if is_own:
            return Released(manifest, self._log.run_id)
        self._refuse_other_release(existing, manifest)
        return self._adopt(existing)

    def _refuse_other_release(self, existing: Release, manifest: Manifest) -> None:
        """Refuse a release that another process created meanwhile for other source offsets."""
        if existing.fingerprint != manifest.fingerprint:
            raise divergence(self._log, self._checkpoint, manifest.batch_id, existing.fingerprint, manifest.fingerprint,
                             held=(existing.term, existing.attempt))  # fmt: skip

    def _adopt(self, release: Release) -> Released:
        path = paths.manifest(release.batch_id, release.term, release.attempt)
        manifest = require(self._log, Manifest, path, Lost.MANIFEST, paths.release(release.batch_id))
        if manifest.fingerprint != release.fingerprint:
            raise CorruptError(
                f"batch {release.batch_id}: the release and the manifest {self._log.store.url_of(path)} name different "
                "source offsets. Restore the objects of the WAL"
            )
        return Released(manifest, release.run_id)

    def _highest_manifest(self, batch_id: int) -> Manifest:
        names = [paths.parse_manifest(name) for name in self._log.store.list(paths.batch(batch_id))]
        highest = max((name for name in names if name is not None), default=None)
        found = None
        if highest is not None:
            found = self._log.find(Manifest, paths.manifest(batch_id, highest.term, highest.attempt))
        if found is None and highest is None:
            found = pass_over(self._log, self._checkpoint, batch_id)
        if found is None:
            raise self._missing(batch_id)
        return found

    def _missing(self, batch_id: int) -> MissingBatchError:
        """The error for a batch without a manifest: what is left of it, likely causes, and the ways out. Two listings,
        and perhaps a read.
        """
        folder = paths.batch(batch_id)
        is_left = any(paths.parse_segment(name) for name in self._log.store.list(folder, recursive=True))
        left = "Some of its rows are still there" if is_left else "This folder holds no rows either"
        return MissingBatchError(
            f"Spark completed batch {batch_id} in {self._checkpoint.root}, but {self._log.store.url_of(folder)} holds "
            f"no manifest. The rows of this batch cannot be delivered, and later batches must wait. {left}. Likely "
            f"causes: {self._moved()}a life-cycle rule of the bucket or a clean-up deleted objects, only a part of "
            "the WAL was copied, or the query ran without the WAL. Delete nothing. Stop the deletions, and restore "
            "the manifest: from a version (in a versioned bucket, remove the delete marker) or from a backup. Then "
            "run wal-sink verify WAL, and start again. If it cannot be restored, wal-sink skip gives up this batch "
            "for one sink, and all later batches are delivered. Another possible cause: Spark's offline repartition "
            "of state wrote a batch without rows. wal-sink recognises such a batch, unless the repartition skipped a "
            "batch that failed"
        )

    def _moved(self) -> str:
        """The likeliest cause, if the WAL was declared to be moved; else empty."""
        numbers = self._log.numbers(paths.MOVES)
        move = self._log.find(Move, paths.move(max(numbers))) if numbers else None
        if move is None:
            return ""
        return (
            f"this WAL was moved here from {move.moved_from}, and the query still stages there (then two copies are in "
            "use: end the drain here, and go on at the place that has every batch); "
        )

    def _check_against_checkpoint(self, manifest: Manifest) -> None:
        """Refuse a manifest of another run that does not match the checkpoint as it is now."""
        text = self._checkpoint.offsets_text(manifest.batch_id)
        if text is None:
            # This reads the newest commit again, since the checkpoint may have been rolled back meanwhile.
            if manifest.batch_id < self._checkpoint.newest_commit():
                return  # Spark deleted the entry, as it does with old ones
            raise HistoryError(
                f"batch {manifest.batch_id}: {self._checkpoint.root} has no offsets/{manifest.batch_id}. Restore the "
                "checkpoint"
            )
        if not _is_same_plan(manifest, text):
            self._refuse_other_offsets(manifest, text)

    def _confirmed(self, released: Released) -> Released:
        """Compare a release with the checkpoint *after* it was created or found.

        The stager looks for a release after Spark wrote the offsets. So one of two histories of a batch sees the other.
        """
        manifest = released.manifest
        text = self._checkpoint.offsets_text(manifest.batch_id)
        if _is_same_plan(manifest, text):
            return Released(manifest, released.run_id, is_present_plan=True)
        self._history.ask_owner_again()
        if text is not None:
            self._refuse_other_offsets(manifest, text)
        return released

    def _refuse_other_offsets(self, manifest: Manifest, text: str) -> None:
        """Refuse a manifest whose input is not that of the batch's entry in the checkpoint."""
        repartition = self._checkpoint.repartition(manifest.batch_id)
        if repartition is not None:
            found = repartition.fingerprint
        else:
            found = self._checkpoint.fingerprint(manifest.batch_id, text)
        if found != manifest.fingerprint:
            raise divergence(self._log, self._checkpoint, manifest.batch_id, manifest.fingerprint, found,
                             held=(manifest.term, manifest.attempt))  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The objects that the committers of one run share."""

    log: Log
    gate: Gate
    history: History
    releaser: Releaser
    pause: Callable[[float], bool]
    """Wait so many seconds. True if the run is ending."""

    def sleep_s(self, seconds: float) -> None:
        """Wait. Raises `StoppedError` if the run is ending."""
        if self.pause(seconds):
            raise StoppedError("the run is ending")


def _is_same_plan(manifest: Manifest, text: str | None) -> bool:
    """Whether the entry is that of the staged plan itself: no other plan of any query has an equal entry."""
    return text == manifest.offsets and planned_ms(manifest.offsets) is not None

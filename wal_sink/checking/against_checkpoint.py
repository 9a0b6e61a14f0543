"""Comparison of a WAL with Spark's checkpoint: same query, no batch missing, no batch too many, same input.

Spark writes `offsets/N`, then the batch is staged, then Spark writes `commits/N`, then the batch is released. So each
comparison reads the later object first, then the earlier one, and holds although both grow meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from wal_sink.checking.batch import BatchFacts, is_passed_over
from wal_sink.checking.findings import Fault
from wal_sink.checking.look import Look
from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING
from wal_sink.wal.records import Manifest


class AgainstCheckpoint:
    """The comparison with one checkpoint. Reads only."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._checkpoint = Checkpoint(files)
        self._is_comparable = False
        self._why_not = ""
        self._committed = NOTHING
        self._planned = NOTHING
        """The newest batch of the checkpoint, when it was read first."""
        self._forgotten: set[int] = set()
        """Batches whose offsets Spark has deleted."""
        self._newer: set[int] = set()
        """Batches that the checkpoint does not have yet, or not any more since it was restored."""

    def whole(self, look: Look) -> None:
        """Compare the query, and the newest batches. Three requests, and a listing of the WAL's batches."""
        self._is_comparable, self._why_not = False, ""
        wal = look.known.wal
        if wal is None:
            self._why_not = "the WAL has no wal.json, which names its query"
            return
        try:
            query_id = self._checkpoint.query_id()
        except (CorruptError, ConfigError) as error:
            self._damaged(look, "metadata", error)
            return
        if query_id != wal.query_id:
            found = "no query (it is new, or was deleted)" if query_id is None else f"query {query_id}"
            look.fault(Fault.OTHER_QUERY, self._where(""), f"the checkpoint belongs to {found}, but the WAL to "
                       f"query {wal.query_id}")  # fmt: skip
            self._why_not = "the checkpoint belongs to another query"
            return
        self._is_comparable = True
        self._refuse_later(look)
        self._refuse_missing(look, wal.first_batch)

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Compare one batch: Spark completed it if it is released, and its input is the same. One or two reads."""
        if not self._is_comparable:
            return
        batch_id, manifest = facts.batch_id, facts.manifest
        is_complete = self._is_complete(batch_id)
        if facts.is_released and not is_complete and batch_id not in self._newer:
            what = f"the batch was released, but the newest batch that Spark completed is {self._committed}"
            look.fault(Fault.ROLLED_BACK, paths.release(batch_id), what)
        elif is_complete and manifest is None and not any(facts.manifests.values()):
            self._refuse_unstaged(look, facts)
        if manifest is not None and batch_id not in self._newer and (is_complete or facts.is_released):
            self._compare(look, manifest)

    def left_out(self) -> list[str]:
        """Parts that could not be compared, each with the reason."""
        if not self._is_comparable:
            return [f"the checkpoint {self._checkpoint.root}: {self._why_not or 'it cannot be read'}"]
        lines = []
        if self._forgotten:
            which = _described(self._forgotten)
            lines = [f"the source offsets of {which}: Spark has deleted these entries of the checkpoint, as it does"]
        if self._newer:
            newest = "has no batch" if self._planned == NOTHING else f"ends with batch {self._planned}"
            lines.append(f"the source offsets of {_described(self._newer)}: the checkpoint is older, and {newest}")
        return lines

    def _refuse_later(self, look: Look) -> None:
        """The WAL holds no batch that the checkpoint has not planned."""
        held = look.known.batches[-1] if look.known.batches else look.known.low_water
        planned = max(self._checkpoint.newest_planned(), self._checkpoint.newest_commit())
        self._planned, self._newer = planned, set()
        if held > planned:
            first = max(planned + 1, look.known.wal.first_batch if look.known.wal else 0)
            self._newer = {batch_id for batch_id in look.known.batches if batch_id > planned}
            which = _described(range(first, held + 1))
            what = f"the newest batch of the checkpoint is {planned}, but the WAL knows {which}"
            look.fault(Fault.ROLLED_BACK, self._where("offsets"), what)

    def _refuse_missing(self, look: Look, first_batch: int) -> None:
        """Every batch that Spark completed is in the WAL, or was collected."""
        self._committed = self._checkpoint.newest_commit()
        known = look.known
        if self._committed < first_batch or self._committed in known.held or known.is_collected(self._committed):
            return
        held = max([*look.log.numbers(paths.BATCHES, after=known.low_water), known.low_water, first_batch - 1])
        missing = [number for number in range(held + 1, self._committed + 1) if not self._was_passed_over(number)]
        if missing:
            what = f"Spark completed {_described(missing)}, but the WAL holds nothing of it"
            look.fault(Fault.MISSING_BATCH, f"{paths.batch(missing[0])}/", what)

    def _refuse_unstaged(self, look: Look, facts: BatchFacts) -> None:
        """A completed batch has a manifest, unless Spark wrote the batch without running it."""
        batch_id = facts.batch_id
        names = [paths.parse_manifest(name) for name in look.log.store.list(paths.batch(batch_id))]
        if (
            any(names)
            or is_passed_over(look, facts)
            or look.known.is_collected(batch_id)
            or self._was_passed_over(batch_id)
        ):
            return
        what = "Spark completed this batch, but it has no manifest"
        look.fault(Fault.MISSING_BATCH, f"{paths.batch(batch_id)}/", what)

    def _compare(self, look: Look, manifest: Manifest) -> None:
        batch_id = manifest.batch_id
        try:
            text = self._checkpoint.offsets_text(batch_id)
            if text is None:
                self._forgotten.add(batch_id)
                return
            if text == manifest.offsets:
                return
            repartition = self._checkpoint.repartition(batch_id)
            if repartition is None and manifest.passed_over:
                self._forgotten.add(batch_id)  # the entry before it is gone, which would prove it
                return
            found = repartition.fingerprint if repartition else self._checkpoint.fingerprint(batch_id, text)
        except HistoryError:
            self._forgotten.add(batch_id)  # the entry before it is gone: the files of a source are not known
        except (CorruptError, ConfigError) as error:
            self._damaged(look, f"offsets/{batch_id}", error)
        else:
            if found != manifest.fingerprint:
                what = f"the WAL has source offsets {manifest.fingerprint[:12]}, the checkpoint {found[:12]}"
                path = paths.manifest(batch_id, manifest.term, manifest.attempt)
                look.fault(Fault.DIVERGED, path, f"{what} under the same batch id")

    def _is_complete(self, batch_id: int) -> bool:
        if batch_id > self._committed:
            self._committed = max(self._committed, self._checkpoint.newest_commit())
        return batch_id <= self._committed

    def _was_passed_over(self, batch_id: int) -> bool:
        try:
            return self._checkpoint.repartition(batch_id) is not None
        except (CorruptError, ConfigError):
            return False

    def _damaged(self, look: Look, path: str, error: Exception) -> None:
        look.fault(Fault.CHECKPOINT, self._where(path), str(error))

    def _where(self, path: str) -> str:
        root = self._checkpoint.root.rstrip("/")
        return f"{root}/{path}" if path else root


def _described(batches: Collection[int]) -> str:
    first, last = min(batches), max(batches)
    return f"batch {first}" if first == last else f"batches {first} to {last}"

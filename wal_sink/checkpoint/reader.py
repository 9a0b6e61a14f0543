"""Reading Spark's checkpoint: whose it is, what a batch reads, and whether a batch is complete.

Order in one micro-batch, as Spark writes it: `offsets/N`, then the sink runs, then `commits/N`. Both keep about the
last hundred entries (`spark.sql.streaming.minBatchesToRetain`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.checkpoint import fingerprints
from wal_sink.checkpoint.fingerprints import RULE, Fingerprints
from wal_sink.checkpoint.formats import CheckpointFiles, planned_ms, read_commit, read_offsets, read_query_id
from wal_sink.errors import CorruptError, HistoryError
from wal_sink.stores.base import ObjectMissing
from wal_sink.wal.log import NOTHING


@dataclass(frozen=True, slots=True)
class Offsets:
    """What a batch reads from its sources."""

    text: str
    """The checkpoint's entry, verbatim."""
    fingerprint: str
    """Equal for every run of the same input, different for another input under the same batch id."""
    rule: int = RULE
    """By which the fingerprint was made; those of two rules cannot be compared."""

    @property
    def planned_ms(self) -> int | None:
        """When Spark planned the batch, in milliseconds since 1970; None if the entry does not say."""
        return planned_ms(self.text)


class Checkpoint:
    """One query's checkpoint. Reads only, and only what it knows: every other version of a file is refused."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._fingerprints = Fingerprints(files)

    @property
    def root(self) -> str:
        return self._files.root

    def query_id(self) -> str | None:
        """The id of the query the checkpoint belongs to; None before its first start."""
        try:
            return read_query_id(self._files.read("metadata"), self._url("metadata"))
        except ObjectMissing:
            return None

    def offsets(self, batch_id: int, rule: int = RULE) -> Offsets | None:
        """The source offsets of a batch; None if the checkpoint has no entry (not yet, or no longer).

        One read, and those of `Fingerprints.of`.
        """
        text = self.offsets_text(batch_id)
        return None if text is None else Offsets(text, self.fingerprint(batch_id, text, rule), rule)

    def fingerprint(self, batch_id: int, text: str, rule: int) -> str:
        """The fingerprint, by a rule, of the batch whose entry is `text`. See `Fingerprints.of`."""
        return self._fingerprints.of(batch_id, text, rule)

    def offsets_text(self, batch_id: int) -> str | None:
        """The entry alone, verbatim. One read."""
        try:
            return self._files.read(f"offsets/{batch_id}").decode()
        except ObjectMissing:
            return None
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self._url(f'offsets/{batch_id}')}: not UTF-8; restore the checkpoint") from error

    def repartition(self, batch_id: int) -> Offsets | None:
        """The offsets of a batch that no query ran, since Spark wrote it to repartition the state offline.

        None for every batch of which this is not certain. Certain is: the entry is a copy of the one before but for the
        number of state partitions, as no query plans one, and both are complete alike. At most four reads.
        """
        texts = [self.offsets_text(number) for number in (batch_id, batch_id - 1)] if batch_id > 0 else []
        if len(found := [text for text in texts if text is not None]) < 2:
            return None
        entry, before = (read_offsets(text, self._url(f"offsets/{batch_id - age}")) for age, text in enumerate(found))
        if not entry.is_repartition_of(before) or not self._are_complete_alike(batch_id):
            return None
        return Offsets(found[0], fingerprints.of_repartition(entry))

    def require_offsets(self, batch_id: int) -> Offsets:
        """The source offsets of the batch Spark is running now."""
        offsets = self.offsets(batch_id)
        if offsets is None:
            raise HistoryError(
                f"batch {batch_id}: {self.root}/offsets/{batch_id} does not exist although the batch runs; is this the "
                "checkpointLocation of the query?"
            )
        return offsets

    def is_completed(self, batch_id: int) -> bool:
        """Whether `commits/N` itself exists, whole. One read."""
        return self._commit(batch_id) is not None

    def newest_commit(self) -> int:
        """The newest completed batch, -1 if there is none. One listing."""
        names = (int(name) for name in self._files.list("commits") if name.isascii() and name.isdigit())
        return max(names, default=NOTHING)

    def _commit(self, batch_id: int) -> dict[str, object] | None:
        path = f"commits/{batch_id}"
        try:
            return read_commit(self._files.read(path), self._url(path))
        except ObjectMissing:
            return None  # the batch is not complete, or the entry is too old to be kept

    def _are_complete_alike(self, batch_id: int) -> bool:
        """Whether the batch and the one before have the same watermark for the next, which a repartition copies."""
        commits = [self._commit(number) for number in (batch_id, batch_id - 1)]
        watermarks = [commit.get("nextBatchWatermarkMs", 0) for commit in commits if commit is not None]
        return len(watermarks) == len(commits) and watermarks[0] == watermarks[1]

    def _url(self, path: str) -> str:
        return f"{self.root}/{path}"


class Gate:
    """Answers "has Spark completed batch N?", remembering the newest answer. Safe to share between threads.

    What it remembers can become untrue: a checkpoint may be restored to an older state while this process lives. So a
    batch that is staged again closes it from there on, and whoever cannot be sure asks anew.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._completed_through = NOTHING
        self._closings = 0

    def is_open(self, batch_id: int) -> bool:
        """Whether the batch is complete, as remembered or as asked for this very batch. At most one read."""
        return self.is_known_open(batch_id) or self._ask(lambda: self._is_completed(batch_id)) >= batch_id

    def is_known_open(self, batch_id: int) -> bool:
        """Whether the batch is complete, as remembered. No request; False may mean that nobody asked."""
        return batch_id <= self._completed_through

    def ask_now(self, batch_id: int) -> bool:
        """Ask whether the batch is complete, whatever is remembered; if it is not, close the gate from there on.

        A read, and a listing if the entry is not there.
        """
        found = self._ask(lambda: self._is_completed(batch_id))
        if found < batch_id:
            found = self._ask(self._checkpoint.newest_commit)
        if found < batch_id:
            self.close_from(batch_id)
        return found >= batch_id

    def search(self) -> int:
        """The newest complete batch, asking for any later entry too, since Spark deletes old ones. One listing."""
        self._ask(self._checkpoint.newest_commit)
        return self._completed_through

    def may_have_passed(self, batch_id: int) -> bool:
        """Whether Spark may have deleted the entry of a batch since it was asked for and not there. At most one read.

        Not while `commits/N-1` is there: what it deletes is everything below some number. (Spark 4.3,
        `HDFSMetadataLog.purge`. If it dies meanwhile, an older entry may be left until it deletes again.)
        """
        return batch_id == 0 or not self._checkpoint.is_completed(batch_id - 1)

    def close_from(self, batch_id: int) -> None:
        """Forget that this batch and later ones were complete."""
        with self._lock:
            self._closings += 1
            self._completed_through = min(self._completed_through, batch_id - 1)

    def _is_completed(self, batch_id: int) -> int:
        return batch_id if self._checkpoint.is_completed(batch_id) else NOTHING

    def _ask(self, newest: Callable[[], int]) -> int:
        """An answer that was under way while the gate was closed is good for the one who asked, not for later."""
        closings = self._closings
        found = newest()
        with self._lock:
            if self._closings == closings:
                self._completed_through = max(self._completed_through, found)
        return found

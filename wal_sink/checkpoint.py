"""Reading Spark's checkpoint: whose it is, what a batch reads, and whether a batch is complete.

Order in one micro-batch, as Spark writes it: `offsets/N`, then the sink runs, then `commits/N`. Both keep about the
last hundred entries (`spark.sql.streaming.minBatchesToRetain`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from wal_sink.errors import CorruptError, HistoryError
from wal_sink.log import NOTHING
from wal_sink.stores.base import ObjectMissing


class CheckpointFiles(Protocol):
    """What a checkpoint is read through: a `Store`, or Hadoop's file system in the driver's JVM."""

    @property
    def root(self) -> str: ...
    def read(self, path: str) -> bytes: ...
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Offsets:
    """What a batch reads from its sources."""

    text: str
    """The checkpoint's entry, verbatim."""
    fingerprint: str
    """Equal for every run of the same input, different for another input under the same batch id."""

    @property
    def planned_ms(self) -> int | None:
        """When Spark planned the batch, in milliseconds since 1970; None if the entry does not say."""
        return planned_ms(self.text)


class Checkpoint:
    """One query's checkpoint. Reads only."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    @property
    def root(self) -> str:
        return self._files.root

    def query_id(self) -> str | None:
        """The id of the query the checkpoint belongs to; None before its first start."""
        try:
            data = self._files.read("metadata")
        except ObjectMissing:
            return None
        try:
            return str(msgspec.json.decode(data)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{self.root}/metadata: expected Spark's query id, found {data[:60]!r}; restore the checkpoint"
            ) from error

    def offsets(self, batch_id: int) -> Offsets | None:
        """The source offsets of a batch; None if the checkpoint has no entry (not yet, or no longer)."""
        text = self.offsets_text(batch_id)
        return None if text is None else Offsets(text, self._fingerprint(batch_id, text))

    def offsets_text(self, batch_id: int) -> str | None:
        """The entry alone, verbatim. One read."""
        try:
            return self._files.read(f"offsets/{batch_id}").decode()
        except ObjectMissing:
            return None
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self.root}/offsets/{batch_id}: not UTF-8; restore the checkpoint") from error

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
        try:
            return self._files.read(f"commits/{batch_id}").startswith(b"v")
        except ObjectMissing:
            return False

    def newest_commit(self) -> int:
        """The newest completed batch, -1 if there is none. One listing."""
        names = (int(name) for name in self._files.list("commits") if name.isascii() and name.isdigit())
        return max(names, default=NOTHING)

    def _fingerprint(self, batch_id: int, text: str) -> str:
        """A digest of the source lines; the line of configuration before them may differ between equal batches."""
        lines = text.splitlines()
        if len(lines) < 2 or not lines[0].startswith("v"):
            raise CorruptError(
                f"{self.root}/offsets/{batch_id}: expected a version line, a configuration line and a line per source, "
                f"found {text[:60]!r}; restore the checkpoint"
            )
        digest = hashlib.sha256()
        for source, line in enumerate(lines[2:]):
            digest.update(line.encode() + b"\n")
            for entry in self._source_log(source, line):
                digest.update(entry.encode() + b"\n")
        return digest.hexdigest()

    def _source_log(self, source: int, line: str) -> list[str]:
        """The files behind a file source's offset, which itself is only the number of a log entry.

        Without them a restored checkpoint that reads other files would show the same offsets.
        """
        number = _log_offset(line)
        if number is None:
            return []
        try:
            return _entries(self._files.read(f"sources/{source}/{number}"), number)
        except ObjectMissing:
            return self._compacted_log(source, number)

    def _compacted_log(self, source: int, number: int) -> list[str]:
        folder = f"sources/{source}"
        compacted = (name.removesuffix(".compact") for name in self._files.list(folder) if name.endswith(".compact"))
        for candidate in sorted(int(stem) for stem in compacted if stem.isdigit()):
            if candidate >= number:
                return _entries(self._files.read(f"{folder}/{candidate}.compact"), number)
        return []


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

    def is_open_now(self, batch_id: int) -> bool:
        """Whether the batch is complete, asked and not remembered. A read, and a listing if the entry is not there."""
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


def planned_ms(offsets: str) -> int | None:
    """When Spark planned the batch of a checkpoint's `offsets` entry, in milliseconds since 1970; None if it is not
    there.

    Every plan of a batch has another one, and a batch that is run again keeps it: it tells whose the entry is.
    """
    lines = offsets.splitlines()
    try:
        found = msgspec.json.decode(lines[1])["batchTimestampMs"]
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


def _log_offset(line: str) -> int | None:
    """The entry number in the offset of Spark's file source, `{"logOffset":7}`."""
    if "logOffset" not in line:
        return None
    try:
        number = msgspec.json.decode(line)["logOffset"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


def _entries(data: bytes, number: int) -> list[str]:
    """The entries of one log batch; a compacted log holds earlier batches too."""
    return sorted(line for line in data.decode(errors="replace").splitlines() if _batch_of(line) == number)


def _batch_of(line: str) -> int | None:
    try:
        number = msgspec.json.decode(line).get("batchId")
    except (ValueError, AttributeError):
        return None
    return number if isinstance(number, int) else None

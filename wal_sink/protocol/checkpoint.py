"""Reading Spark's checkpoint: its query, the input of a batch, and whether a batch is complete.

Spark's order in one micro-batch: it writes `offsets/N`, the sink runs, then it writes `commits/N`. Both folders keep
about the last hundred entries (`spark.sql.streaming.minBatchesToRetain`).

Fingerprints are digests of the input that a batch reads from its sources, equal for every run of the same input.
Digested are id and offset of each source, and after those of a file source every file of its log that the batch reads.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.protocol.checkpoint_formats import (
    CheckpointFiles,
    FileEntry,
    OffsetsEntry,
    planned_ms,
    read_commit,
    read_file_log,
    read_offsets,
    read_query_id,
)
from wal_sink.stores.base import ObjectMissing

_BEFORE_ALL = -1


@dataclass(frozen=True, slots=True)
class Offsets:
    """Source offsets of a batch."""

    text: str
    """The checkpoint's entry, verbatim."""
    fingerprint: str
    """Digest of the input: equal for every run of the same input, different for other input under the same batch id."""

    @property
    def planned_ms(self) -> int | None:
        """Planning time of the batch, in milliseconds since 1970; None if the entry has none."""
        return planned_ms(self.text)


class Checkpoint:
    """The checkpoint of one query. Reads only, and refuses files of unknown versions."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._fingerprints = Fingerprints(files)

    @property
    def root(self) -> str:
        return self._files.root

    def query_id(self) -> str | None:
        """Id of the checkpoint's query; None before its first start."""
        try:
            return read_query_id(self._files.read("metadata"), self._url("metadata"))
        except ObjectMissing:
            return None

    def offsets(self, batch_id: int) -> Offsets | None:
        """The source offsets of a batch; None if the checkpoint has no entry (not yet, or no longer).

        One read, plus those of `Fingerprints.of`.
        """
        text = self.offsets_text(batch_id)
        return None if text is None else Offsets(text, self.fingerprint(batch_id, text))

    def fingerprint(self, batch_id: int, text: str) -> str:
        """The fingerprint of the batch whose entry is `text`. See `Fingerprints.of`."""
        return self._fingerprints.of(batch_id, text)

    def files(self, batch_id: int, entry: OffsetsEntry) -> dict[str, list[FileEntry]]:
        """The files that the batch with this entry reads, by file source. See `Fingerprints.files`."""
        return self._fingerprints.files(batch_id, entry)

    def offsets_text(self, batch_id: int) -> str | None:
        """The entry of a batch, verbatim, without its fingerprint. One read."""
        try:
            return self._files.read(f"offsets/{batch_id}").decode()
        except ObjectMissing:
            return None
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self._url(f'offsets/{batch_id}')}: not UTF-8; restore the checkpoint") from error

    def repartition(self, batch_id: int) -> Offsets | None:
        """The offsets of a batch that Spark wrote to repartition the state offline, without running it.

        None unless this is certain. It is certain if the entry is a copy of the previous one except for the number of
        state partitions, which no query plans, and if both are complete with the same watermark. At most four reads.
        """
        texts = [self.offsets_text(number) for number in (batch_id, batch_id - 1)] if batch_id > 0 else []
        if len(found := [text for text in texts if text is not None]) < 2:
            return None
        entry, before = (read_offsets(text, self._url(f"offsets/{batch_id - age}")) for age, text in enumerate(found))
        if not entry.is_repartition_of(before) or not self._are_complete_alike(batch_id):
            return None
        return Offsets(found[0], of_repartition(entry))

    def require_offsets(self, batch_id: int) -> Offsets:
        """The source offsets of the batch that Spark runs now. Raises `HistoryError` if the checkpoint has no entry."""
        offsets = self.offsets(batch_id)
        if offsets is None:
            raise HistoryError(
                f"batch {batch_id}: {self.root}/offsets/{batch_id} does not exist, but the batch is running. Check "
                "that this is the checkpointLocation of the query"
            )
        return offsets

    def is_completed(self, batch_id: int) -> bool:
        """Return whether `commits/N` itself exists, complete. One read."""
        return self._commit(batch_id) is not None

    def refuse_wal(self) -> None:
        """Raise `ConfigError` if the folder is that of a WAL. One read."""
        try:
            self._files.read(paths.WAL)
        except ObjectMissing:
            return
        raise ConfigError(
            f"{self.root} holds {paths.WAL}, so it is the folder of a WAL and cannot be a checkpoint. Were wal and "
            "checkpoint exchanged? Pass a separate folder for each. Nothing was written"
        )

    def newest_commit(self) -> int:
        """The newest completed batch; -1 if there is none. One listing."""
        return self._newest("commits")

    def newest_planned(self) -> int:
        """The newest batch that Spark planned, which may run now; -1 if there is none. One listing."""
        return self._newest("offsets")

    def _newest(self, folder: str) -> int:
        found = (int(name) for name in self._files.list(folder) if name.isascii() and name.isdigit())
        return max(found, default=NOTHING)

    def _commit(self, batch_id: int) -> dict[str, object] | None:
        path = f"commits/{batch_id}"
        try:
            return read_commit(self._files.read(path), self._url(path))
        except ObjectMissing:
            return None  # the batch is not complete, or Spark has deleted its old entry

    def _are_complete_alike(self, batch_id: int) -> bool:
        """Return whether the batch and the previous one have the same next watermark, which a repartition copies."""
        commits = [self._commit(number) for number in (batch_id, batch_id - 1)]
        watermarks = [commit.get("nextBatchWatermarkMs") for commit in commits if commit is not None]
        return len(watermarks) == len(commits) and watermarks[0] == watermarks[1]

    def _url(self, path: str) -> str:
        return f"{self.root}/{path}"


class Known(NamedTuple):
    """The knowledge of a gate at some moment."""

    through: int
    """The newest complete batch; -1 if none."""
    lapses: int
    """How often the gate had forgotten complete batches."""


class Gate:
    """Answers "has Spark completed batch N?" and remembers the newest answer. Threads may share it.

    A remembered answer can become untrue: a checkpoint may be restored to an older state while this process lives. So a
    batch that is staged again closes the gate from that batch on. A caller that must be sure reads the checkpoint
    again.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._completed_through = NOTHING
        self._closings = 0
        self._lapses = 0

    def is_open(self, batch_id: int) -> bool:
        """Return whether the batch is complete, from memory or by a read for this batch. At most one read."""
        return self.is_known_open(batch_id) or self._ask(lambda: self._is_completed(batch_id)) >= batch_id

    def is_known_open(self, batch_id: int) -> bool:
        """Return whether the batch is known to be complete. No request; False may mean that no read was made."""
        return batch_id <= self._completed_through

    @property
    def known_through(self) -> int:
        """The newest batch that is known to be complete; -1 if none. No request."""
        return self._completed_through

    @property
    def known(self) -> Known:
        """The knowledge at this moment. No request."""
        with self._lock:
            return Known(self._completed_through, self._lapses)

    def knew(self, known: Known, batch_id: int) -> bool:
        """Return whether the batch was known to be complete at that moment, and nothing was forgotten since."""
        return batch_id <= known.through and self._lapses == known.lapses

    def ask_now(self, batch_id: int) -> bool:
        """Ask whether the batch is complete, whatever is remembered; if it is not, close the gate from there on.

        One read, and a listing if the entry is missing.
        """
        found = self._ask(lambda: self._is_completed(batch_id))
        if found < batch_id:
            found = self._ask(self._checkpoint.newest_commit)
        if found < batch_id:
            self.close_from(batch_id)
        return found >= batch_id

    def search(self) -> int:
        """The newest complete batch. Later entries count too, since Spark deletes old ones. One listing."""
        self._ask(self._checkpoint.newest_commit)
        return self._completed_through

    def may_have_passed(self, batch_id: int) -> bool:
        """Return whether Spark may have deleted the entry of a batch since a read did not find it. At most one read.

        It has not while `commits/N-1` exists, since Spark deletes every entry below some number. (Spark 4.3,
        `HDFSMetadataLog.purge`. If Spark dies meanwhile, an older entry may remain until it deletes again.)
        """
        return batch_id == 0 or not self._checkpoint.is_completed(batch_id - 1)

    def close_from(self, batch_id: int) -> None:
        """Forget that this batch and later ones were complete."""
        with self._lock:
            self._closings += 1
            self._lapses += batch_id <= self._completed_through  # not so for a new batch, which closes the gate too
            self._completed_through = min(self._completed_through, batch_id - 1)

    def _is_completed(self, batch_id: int) -> int:
        return batch_id if self._checkpoint.is_completed(batch_id) else NOTHING

    def _ask(self, newest: Callable[[], int]) -> int:
        """Run `newest` and remember its answer. If the gate was closed meanwhile, only the caller gets the answer."""
        closings = self._closings
        found = newest()
        with self._lock:
            if self._closings == closings:
                self._completed_through = max(self._completed_through, found)
        return found


class Fingerprints:
    """Makes the fingerprints of the batches of one checkpoint. Reads only."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def of(self, batch_id: int, text: str) -> str:
        """The fingerprint of the batch whose entry in the offset log is `text`.

        Sends no request unless a source is a file source. Then it sends one read for each entry of its log that the
        batch reads, at most one listing, and a read of the previous batch's entry. Raises `CorruptError` if the log of
        a file source is missing, `HistoryError` if the previous entry is missing.
        """
        return _digest(self._lines(batch_id, read_offsets(text, self._url(f"offsets/{batch_id}"))))

    def files(self, batch_id: int, entry: OffsetsEntry) -> dict[str, list[FileEntry]]:
        """The files that the batch reads, by file source: its log after the previous batch, up to this one."""
        through = entry.log_offsets()
        if not through:
            return {}
        after = self._before(batch_id, entry)
        found = {}
        for source, number in through.items():
            found[source] = sorted(self._log(entry, source, after=after.get(source, _BEFORE_ALL), through=number))
        return found

    def _lines(self, batch_id: int, entry: OffsetsEntry) -> Iterator[str]:
        files = self.files(batch_id, entry)
        for source, offset in sorted(entry.sources.items()):
            yield f"{source}:{offset}"
            for file in files.get(source, []):
                yield msgspec.json.encode((file.number, file.path, file.timestamp)).decode()

    def _before(self, batch_id: int, entry: OffsetsEntry) -> dict[str, int]:
        """Log position of each file source before this batch. A source without one begins with its log."""
        if batch_id == 0:
            return {}
        path = f"offsets/{batch_id - 1}"
        try:
            text = self._files.read(path).decode()
        except ObjectMissing as error:
            raise HistoryError(
                f"batch {batch_id}: {self._url(path)} does not exist, so the files that batch {batch_id} reads are "
                "unknown. Spark keeps the entry before the batch that it runs. Restore the checkpoint"
            ) from error
        before = read_offsets(text, self._url(path))
        strange = {source for source in entry.log_offsets() if source in before.sources} - before.log_offsets().keys()
        if strange or before.version != entry.version:
            raise CorruptError(
                f"batch {batch_id}: {entry.where} does not match {before.where}: expected the same version and the "
                f"same kind of source under each id, found v{entry.version} after v{before.version}, and sources "
                f"{sorted(strange)} that read no files before; restore the checkpoint"
            )
        return before.log_offsets()

    def _log(self, entry: OffsetsEntry, source: str, *, after: int, through: int) -> list[FileEntry]:
        """The source's log after the entry `after`, up to `through`. Each number in it has at least one file."""
        found: list[FileEntry] = []
        for number in range(through, after, -1):
            path = f"sources/{source}/{number}"
            try:
                data = self._files.read(path)
            except ObjectMissing:
                return found + self._compacted(entry, source, after=after, through=number)
            found += self._chosen(data, path, after=number - 1, through=number)
        return found

    def _compacted(self, entry: OffsetsEntry, source: str, *, after: int, through: int) -> list[FileEntry]:
        """The source's log from the oldest compacted file that holds all these entries."""
        folder = f"sources/{source}"
        stems = (name.removesuffix(".compact") for name in self._files.list(folder) if name.endswith(".compact"))
        for candidate in sorted(int(stem) for stem in stems if stem.isdigit() and int(stem) >= through):
            path = f"{folder}/{candidate}.compact"
            try:
                return self._chosen(self._files.read(path), path, after=after, through=through)
            except ObjectMissing:
                continue  # deleted since the listing, in favour of a later file that holds the same entries
        raise CorruptError(
            f"according to {entry.where}, source {source} reads files up to entry {through} of its log, but neither "
            f"{self._url(folder)}/{through} nor a '.compact' file that holds it exists. Restore the whole "
            "checkpoint, including 'sources'. If the sources of the query have names, these names are also in the "
            "paths of their logs. Then the query needs spark.sql.streaming.offsetLog.formatVersion=2 from its first "
            "start. A source that you wrote must not call its offsets 'logOffset'"
        )

    def _chosen(self, data: bytes, path: str, *, after: int, through: int) -> list[FileEntry]:
        where = self._url(path)
        found = [file for file in read_file_log(data, where) if after < file.number <= through]
        if missing := set(range(after + 1, through + 1)) - {file.number for file in found}:
            raise CorruptError(
                f"{where}: expected files of the log's entries {after + 1} to {through}, found none of "
                f"{sorted(missing)[:5]}; restore the checkpoint"
            )
        return found

    def _url(self, path: str) -> str:
        return f"{self._files.root}/{path}"


def of_repartition(entry: OffsetsEntry) -> str:
    """Fingerprint of a batch that no query ran. It differs from that of a batch with the same offsets, which may have
    had rows.
    """
    return _digest(["repartitioned", *(f"{source}:{offset}" for source, offset in sorted(entry.sources.items()))])


def _digest(lines: Iterator[str] | list[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()

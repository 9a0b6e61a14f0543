"""Fingerprints: digests of the input that a batch reads from its sources, equal for every run of the same input.

Digested are id and offset of each source, and after those of a file source every file of its log that the batch reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from wal_sink.checkpoint.formats import (
    CheckpointFiles,
    FileEntry,
    OffsetsEntry,
    read_file_log,
    read_offsets,
)
from wal_sink.errors import CorruptError, HistoryError
from wal_sink.stores.base import ObjectMissing

_BEFORE_ALL = -1


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
            f"{self._url(folder)}/{through} nor a '.compact' file that holds it exists. Restore the whole checkpoint, "
            "including 'sources'. If the sources of the query have names, these names are also in the paths of their "
            "logs. Then the query needs spark.sql.streaming.offsetLog.formatVersion=2 from its first start on. A "
            "source that you wrote must not call its offsets 'logOffset'"
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

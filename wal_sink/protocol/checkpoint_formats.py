"""File formats of Spark's checkpoint, read strictly: every version listed here, and no other.

| file | versions |
|---|---|
| `metadata` | one, without a number |
| `offsets/N` | `v1`: a line per source, `-` if it has no offset; `v2` (Spark 4.2): `<id>:<offset>` if it has one |
| `commits/N` | `v1`, `v2` (ids of state files), `v3` (Spark 4.2, named sinks): a line of JSON each |
| `sources/<id>/n`, `n.compact` | `v1`: a line of JSON per file |

Within a version, Spark itself ignores unknown JSON keys, and it raises the version if the meaning changes. So unknown
keys are ignored here too. `tests/golden/checkpoints/` holds the files of each Spark version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from wal_sink.errors import ConfigError, CorruptError

OFFSET_LOG_VERSIONS = (1, 2)
COMMIT_LOG_VERSIONS = (1, 2, 3)
FILE_LOG_VERSIONS = (1,)

DRAINS_ONLY = 2_147_483_647
"""Version of the last offset log entry in a checkpoint that `wal-sink settle` made. Spark refuses a higher version than
it knows, and this is the highest number that it can read.
"""
NO_OFFSET = "-"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_VERSION = re.compile(r"v(\d+)")
_SOURCE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class CheckpointFiles(Protocol):
    """Access to the files of a checkpoint: a `Store`, or Hadoop's file system in the driver's JVM."""

    @property
    def root(self) -> str: ...
    def read(self, path: str) -> bytes: ...
    def list(self, prefix: str, *, after: str = ..., recursive: bool = ...) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class OffsetsEntry:
    """An entry of the offset log: the offset up to which a batch reads each of its sources."""

    where: str
    version: int
    metadata: dict[str, Any]
    """The second line: planning time of the batch, its watermark, settings of its state. Empty if Spark wrote none."""
    sources: dict[str, str]
    """The offset of each source as written, by the source's id (its number or its name). A source without an offset is
    missing.
    """

    def log_offsets(self) -> dict[str, int]:
        """The newest entry that is read of each file source's log, by source id."""
        found = {source: log_offset(offset) for source, offset in self.sources.items()}
        return {source: number for source, number in found.items() if number is not None}

    def is_repartition_of(self, before: OffsetsEntry) -> bool:
        """Return whether Spark copied this entry from the previous one to repartition the state, while no query ran.

        Every planned batch has its own planning time. And a query never changes the number of partitions of its state:
        Spark refuses to run a batch whose number differs from that of the previous batch.
        """
        partitions = [_shuffle_partitions(entry) for entry in (self, before)]
        return (
            None not in partitions
            and partitions[0] != partitions[1]
            and planned_at(self.metadata) is not None
            and (self.version, self.sources) == (before.version, before.sources)
            and _without_partitions(self) == _without_partitions(before)
        )


class FileEntry(msgspec.Struct, frozen=True, order=True):
    """One file in the log of a file source."""

    number: int = msgspec.field(name="batchId")
    """Number of its log entry. This is not the query's batch."""
    path: str
    timestamp: int


def read_offsets(text: str, where: str) -> OffsetsEntry:
    """An entry of the offset log. Raises `ConfigError` for an unknown version and for a batch that Spark wrote for a
    special operation, `CorruptError` if the text is not an entry.
    """
    lines = text.split("\n")
    if len(lines) < 2:
        raise _corrupt(where, "a version line, a line of metadata and a line for each source", text)
    version = _version(lines[0], OFFSET_LOG_VERSIONS, where, "offset log")
    metadata = _object(lines[1], where) if lines[1].strip() or version > 1 else {}
    if (control := metadata.get("controlBatchInfo")) is not None:
        raise ConfigError(
            f"{where}: expected a batch of a query, found a batch that Spark wrote for a special operation: "
            f"{str(control)[:80]}. This version of wal-sink does not know how this operation changes the rows. Use a "
            "version of wal-sink that supports this operation"
        )
    by_id = _numbered(lines[2:]) if version == 1 else _named(lines[2:], where)
    return OffsetsEntry(where, version, metadata, {key: offset for key, offset in by_id if offset != NO_OFFSET})


def read_commit(data: bytes, where: str) -> dict[str, Any] | None:
    """An entry of the commit log; None if it is incomplete, as a file may appear while it is written.

    Raises `ConfigError` for an unknown version, `CorruptError` for bytes that are not the beginning of an entry.
    """
    head, newline, body = data.partition(b"\n")
    if not newline:
        if head and not re.fullmatch(rb"v\d*", head):
            raise _corrupt(where, "a version line and a line of JSON", head.decode(errors="replace"))
        return None
    _version(head.decode(errors="replace"), COMMIT_LOG_VERSIONS, where, "commit log")
    if not body.rstrip().endswith(b"}"):
        if body and not body.startswith(b"{"):
            raise _corrupt(where, "a line of JSON", body.decode(errors="replace"))
        return None
    return _object(body.decode(errors="replace"), where)


def read_file_log(data: bytes, where: str) -> list[FileEntry]:
    """The entries of a file of a file source's own log.

    Raises `ConfigError` for an unknown version, `CorruptError` if the data is not such a log.
    """
    try:
        head, *lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"{where}: expected the log of a file source, found bytes that are not UTF-8 text"
        ) from error
    _version(head, FILE_LOG_VERSIONS, where, "log of a file source")
    return [_file_entry(line, where) for line in lines]


def read_query_id(data: bytes, where: str) -> str:
    """The query id in `metadata`. Raises `CorruptError` for any other content."""
    try:
        found = msgspec.json.decode(data, type=_Metadata)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"{where}: expected Spark's query id, found {data[:60]!r}; restore the file. Or write into it the query id "
            'that wal-sink status shows, {"id":"…"}, and delete its checksum file .metadata.crc'
        ) from error
    return found.id


def log_offset(offset: str) -> int | None:
    """The number in the offset of Spark's file source, `{"logOffset":7}`; None for the offset of any other source.

    Other offsets themselves say up to where the batch reads. This one only names an entry of the source's own log.
    """
    if "logOffset" not in offset:
        return None
    try:
        number = msgspec.json.decode(offset)["logOffset"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


def planned_ms(offsets: str) -> int | None:
    """Planning time of the batch in a checkpoint's `offsets` entry, in milliseconds since 1970; None if the entry has
    none.

    Each plan of a batch has its own time, and a batch that runs again keeps it. So it identifies the plan of the entry.
    """
    try:
        found = msgspec.json.decode(offsets.splitlines()[1], type=dict[str, Any])
    except (IndexError, msgspec.DecodeError):
        return None
    return planned_at(found)


def planned_at(metadata: dict[str, Any]) -> int | None:
    """The planning time in the metadata of an entry, in milliseconds since 1970; None if it has none."""
    found = metadata.get("batchTimestampMs")
    return found if isinstance(found, int) and found > 0 else None


class _Metadata(msgspec.Struct, frozen=True):
    id: str


def _numbered(lines: list[str]) -> list[tuple[str, str]]:
    return [(str(number), line) for number, line in enumerate(lines)]


def _named(lines: list[str], where: str) -> list[tuple[str, str]]:
    found = {}
    for line in lines:
        source, colon, offset = line.partition(":")
        if not (colon and _SOURCE_ID.fullmatch(source)) or source in found:
            raise _corrupt(where, "one line '<source id>:<offset>' for each source", line)
        found[source] = offset
    return list(found.items())


def _file_entry(line: str, where: str) -> FileEntry:
    try:
        return msgspec.json.decode(line, type=FileEntry)
    except msgspec.DecodeError as error:
        raise _corrupt(where, f"a file with path, timestamp and batchId in each line ({error})", line) from error


def _version(line: str, known: tuple[int, ...], where: str, what: str) -> int:
    match = _VERSION.fullmatch(line.strip())
    if match is None:
        raise _corrupt(where, f"a version line such as 'v1' of Spark's {what}", line)
    if (found := int(match[1])) == DRAINS_ONLY:
        raise ConfigError(
            f"{where}: wal-sink settle made this checkpoint for drains, so a query cannot use it. Give the query "
            "its own checkpoint, or a new checkpoint and a new WAL"
        )
    if found not in known:
        expected = " or ".join(f"v{number}" for number in known)
        raise ConfigError(
            f"{where}: expected {expected} of Spark's {what}, found v{found}. Nothing was read from this file. Use a "
            "version of wal-sink that supports this format"
        )
    return found


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _corrupt(where, "a JSON object", line) from error


def _corrupt(where: str, expected: str, found: str) -> CorruptError:
    return CorruptError(f"{where}: expected {expected}, found {found[:60]!r}; restore the checkpoint")


def _shuffle_partitions(entry: OffsetsEntry) -> str | None:
    conf = entry.metadata.get("conf")
    found = conf.get(SHUFFLE_PARTITIONS) if isinstance(conf, dict) else None
    return found if isinstance(found, str) and found.isdigit() else None


def _without_partitions(entry: OffsetsEntry) -> dict[str, Any]:
    conf = {key: value for key, value in entry.metadata["conf"].items() if key != SHUFFLE_PARTITIONS}
    return {**entry.metadata, "conf": conf}

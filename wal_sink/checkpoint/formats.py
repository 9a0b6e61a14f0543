"""What Spark writes into a checkpoint, read strictly: every version that is known here, and no other.

| file | versions |
|---|---|
| `metadata` | one, without a number |
| `offsets/N` | `v1`: a line a source, `-` if it has no offset; `v2` (Spark 4.2): `<id>:<offset>` if it has one |
| `commits/N` | `v1`, `v2` (ids of state files), `v3` (Spark 4.2, named sinks): a line of JSON each |
| `sources/<id>/n`, `n.compact` | `v1`: a line of JSON a file |

Within a version Spark itself passes over keys of JSON that it does not know, and counts the version up where the
meaning changes: so unknown keys are passed over here too. `tests/golden/checkpoints/` holds what each Spark writes.
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

NO_OFFSET = "-"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_VERSION = re.compile(r"v(\d+)")
_SOURCE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class CheckpointFiles(Protocol):
    """What a checkpoint is read through: a `Store`, or Hadoop's file system in the driver's JVM."""

    @property
    def root(self) -> str: ...
    def read(self, path: str) -> bytes: ...
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class OffsetsEntry:
    """An entry of the offset log: up to where a batch reads each of its sources."""

    where: str
    version: int
    metadata: dict[str, Any]
    """The second line: when the batch was planned, its watermark, settings of its state. Empty where Spark has none."""
    sources: dict[str, str]
    """By the source's id, its number or its name: the offset as it stands. A source without an offset is not there."""

    def log_offsets(self) -> dict[str, int]:
        """Of the file sources among them: the newest entry of the source's own log that is read, by source id."""
        found = {source: log_offset(offset) for source, offset in self.sources.items()}
        return {source: number for source, number in found.items() if number is not None}

    def is_repartition_of(self, before: OffsetsEntry) -> bool:
        """Whether Spark copied this entry from the one before to repartition the state, while no query ran.

        A planned batch has a time of planning that no other has. And a query never changes the number of partitions of
        its state: Spark refuses to run a batch whose number is another than that of the batch before.
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
    """Of the log's entry it is in, which is not the query's batch."""
    path: str
    timestamp: int


def read_offsets(text: str, where: str) -> OffsetsEntry:
    """An entry of the offset log. `ConfigError` for another version than those known, `CorruptError` for no entry."""
    lines = text.split("\n")
    if len(lines) < 2:
        raise _corrupt(where, "a version line, a line of metadata and a line a source", text)
    version = _version(lines[0], OFFSET_LOG_VERSIONS, where, "offset log")
    metadata = _object(lines[1], where) if lines[1].strip() or version > 1 else {}
    if (control := metadata.get("controlBatchInfo")) is not None:
        raise ConfigError(
            f"{where}: expected a batch of a query, found one that Spark wrote for an operation: {str(control)[:80]}. "
            "This version of wal-sink does not know what that means for the rows; use one that does"
        )
    by_id = _numbered(lines[2:]) if version == 1 else _named(lines[2:], where)
    return OffsetsEntry(where, version, metadata, {key: offset for key, offset in by_id if offset != NO_OFFSET})


def read_commit(data: bytes, where: str) -> dict[str, Any] | None:
    """An entry of the commit log; None if it is not all there yet, as where a file shows while it is written.

    `ConfigError` for another version than those known, `CorruptError` for what is no entry nor the beginning of one.
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


def read_file_log(data: bytes, where: str) -> list[tuple[str, FileEntry]]:
    """A file of a file source's own log: each line as it stands, with what it says.

    `ConfigError` for another version than those known, `CorruptError` for what is no such log.
    """
    try:
        head, *lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptError(f"{where}: expected the log of a file source, found bytes that are no UTF-8 text") from error
    _version(head, FILE_LOG_VERSIONS, where, "log of a file source")
    return [(line, _file_entry(line, where)) for line in lines]


def read_query_id(data: bytes, where: str) -> str:
    """What `metadata` says. `CorruptError` for anything else."""
    try:
        found = msgspec.json.decode(data, type=_Metadata)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"{where}: expected Spark's query id, found {data[:60]!r}; restore the checkpoint"
        ) from error
    return found.id


def log_offset(offset: str) -> int | None:
    """The number in the offset of Spark's file source, `{"logOffset":7}`; None for every other source's offset.

    Those say themselves what is read up to; this one only says how far in the source's own log.
    """
    if "logOffset" not in offset:
        return None
    try:
        number = msgspec.json.decode(offset)["logOffset"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


def planned_ms(offsets: str) -> int | None:
    """When Spark planned the batch of a checkpoint's `offsets` entry, in milliseconds since 1970; None if it is not
    there.

    Every plan of a batch has another one, and a batch that is run again keeps it: it tells whose the entry is.
    """
    try:
        found = msgspec.json.decode(offsets.splitlines()[1], type=dict[str, Any])
    except (IndexError, msgspec.DecodeError):
        return None
    return planned_at(found)


def planned_at(metadata: dict[str, Any]) -> int | None:
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
            raise _corrupt(where, "one line '<source id>:<offset>' a source", line)
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
    if (found := int(match[1])) not in known:
        expected = " or ".join(f"v{number}" for number in known)
        raise ConfigError(
            f"{where}: expected {expected} of Spark's {what}, found v{found}. Nothing was read of it; use a version of "
            "wal-sink that knows it"
        )
    return found


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _corrupt(where, "an object of JSON", line) from error


def _corrupt(where: str, expected: str, found: str) -> CorruptError:
    return CorruptError(f"{where}: expected {expected}, found {found[:60]!r}; restore the checkpoint")


def _shuffle_partitions(entry: OffsetsEntry) -> str | None:
    conf = entry.metadata.get("conf")
    found = conf.get(SHUFFLE_PARTITIONS) if isinstance(conf, dict) else None
    return found if isinstance(found, str) and found.isdigit() else None


def _without_partitions(entry: OffsetsEntry) -> dict[str, Any]:
    conf = {key: value for key, value in entry.metadata["conf"].items() if key != SHUFFLE_PARTITIONS}
    return {**entry.metadata, "conf": conf}

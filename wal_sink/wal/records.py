"""The small JSON objects of a WAL, and their one envelope. See docs/FORMAT.md.

Every record is written whole, once. The envelope carries the format number, the kind and a CRC-32 of the body's bytes,
so that a flipped bit or a truncation is found when it is read and never taken for a record. A record says of itself
what its path says, so that one in the wrong place is found too.
"""

from __future__ import annotations

import zlib
from typing import ClassVar, TypeVar

import msgspec

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.runtime.clock import ProcessIdentity
from wal_sink.wal import paths

FORMAT = 1
SPREAD_FORMAT = 2
"""Of the manifest of a batch whose progress lies in shards. A version that does not know them must not deliver it: it
would find no progress, and send everything again.
"""
RULE_FORMAT = 3
"""Of a manifest or release whose fingerprint was made by a later rule than the first, shards or not. A version that
does not know rules would make its fingerprint by the first one, and report the same batch as a divergent one.
"""
FIRST_RULE = 1
"""By which fingerprints were made before there were rules. See `wal_sink.checkpoint.fingerprints`."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A durable fact. `id` is unique to the write, so that a writer can tell its own object after a lost answer."""

    kind: ClassVar[str]
    formats: ClassVar[tuple[int, ...]] = (FORMAT,)
    """Which of this kind can be read."""
    id: str
    created: str
    """ISO 8601, UTC; for people only, nothing decides by it."""

    @property
    def format(self) -> int:
        """The format it is written in."""
        return FORMAT

    def belongs_at(self, path: str) -> bool:  # noqa: ARG002 - what says nothing of itself belongs nowhere
        """Whether what the record says of itself is what its path says. A sink's name stands in no other record."""
        return False


class WalRecord(Record, frozen=True, kw_only=True):
    """What a WAL belongs to."""

    kind = "wal"
    wal_id: str
    query_id: str
    checkpoint: str
    """Without credentials."""
    first_batch: int
    """The first batch this WAL was asked to stage."""
    location: str = ""
    """Where it was made, see `wal_sink.recovery.location.canonical`; empty: by a version that did not say."""
    sinks: tuple[str, ...] = ()
    """Names of the sinks that were registered by then: their registrations are older than this record."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.WAL


class Move(Record, frozen=True, kw_only=True):
    """Somebody said that the WAL was moved; of several, the one of the highest number counts."""

    kind = "move"
    number: int
    location: str
    moved_from: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.move(self.number)


class TermRecord(Record, frozen=True, kw_only=True):
    kind = "term"
    role: str
    term: int
    run_id: str
    process: str
    holder: ProcessIdentity | None = None
    """The same process, so that it can be found; None: by a version that did not say."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.term(self.role, self.term)


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment as its staging task described it."""

    path: str
    """Relative to the WAL's root."""
    id: str
    rows: int
    bytes: int
    crc32: int
    """CRC-32 of the whole file."""
    chunk_ends: tuple[int, ...] | None = None
    """Row numbers at which its chunks end, the last being `rows`; None: every `chunk_rows` rows."""
    kept: bool = True
    """Whether the file is there; if not, its rows lie in the targets of two-phase sinks alone: `bytes`, `crc32` are 0.
    """


class Manifest(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One staged attempt of a batch."""

    kind = "manifest"
    formats = (FORMAT, SPREAD_FORMAT, RULE_FORMAT)
    batch_id: int
    term: int
    attempt: int
    run_id: str
    fingerprint: str
    rule: int = FIRST_RULE
    """By which the fingerprint was made."""
    offsets: str
    """The checkpoint's `offsets/N`, verbatim."""
    columns: tuple[str, ...]
    """Real column names; segments hold them as c0, c1, …"""
    spark_schema: str
    """JSON of the Spark schema; empty if the batch was staged without Spark."""
    chunk_rows: int
    segments: tuple[SegmentRef, ...]
    prepared: dict[str, tuple[str | None, ...]] = {}
    """By name of a two-phase sink: the handle of each segment; None where it was not prepared while staging."""
    spread: bool = False
    """Whether its sinks' progress lies in shards."""
    passed_over: bool = False
    """Whether Spark wrote the batch without running it, for an offline operation. No sink is called for it."""

    @property
    def format(self) -> int:
        if self.rule > FIRST_RULE or self.passed_over:
            return RULE_FORMAT
        return SPREAD_FORMAT if self.spread else FORMAT

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def belongs_at(self, path: str) -> bool:
        return path == paths.manifest(self.batch_id, self.term, self.attempt)


class Release(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Which manifest of a batch is delivered, for all sinks, for ever."""

    kind = "release"
    formats = (FORMAT, RULE_FORMAT)
    batch_id: int
    term: int
    """Of the manifest, not of the committer."""
    attempt: int
    fingerprint: str
    rule: int = FIRST_RULE
    """By which the fingerprint was made: that of its manifest."""
    run_id: str
    """The run that made the release."""
    sink: str = ""
    """Whose committer made it, which had every batch before; empty: by a version that did not say."""

    @property
    def format(self) -> int:
        return RULE_FORMAT if self.rule > FIRST_RULE else FORMAT

    def belongs_at(self, path: str) -> bool:
        return path == paths.release(self.batch_id)


class Progress(Record, frozen=True, kw_only=True):
    kind = "progress"
    batch_id: int
    ordinal: int
    rows: int
    segment_id: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        sink = paths.sink_of(path)
        either = (paths.progress(sink, self.batch_id, self.ordinal, self.rows, spread=spread) for spread in _EITHER)
        return path in either


class BegunRecord(Record, frozen=True, kw_only=True):
    """A two-phase sink is about to begin a transaction, which is to be aborted unless it is committed."""

    kind = "begun"
    transaction_id: str
    wal_id: str
    batch_id: int
    partition: int
    file_index: int = msgspec.field(name="roll")

    def belongs_at(self, path: str) -> bool:
        folders = paths.begun_folders(paths.sink_of(path))
        return path in (paths.BegunName(folder, self.batch_id, self.transaction_id).path for folder in folders)


class TokenRecord(Record, frozen=True, kw_only=True):
    """What a sink needs besides to find a transaction again that it began."""

    kind = "token"
    transaction_id: str
    batch_id: int
    token: str

    def belongs_at(self, path: str) -> bool:
        folders = paths.begun_folders(paths.sink_of(path))
        return path in (paths.BegunName(folder, self.batch_id, self.transaction_id).token_path for folder in folders)


class PreparedRecord(Record, frozen=True, kw_only=True):
    """A segment was prepared when it was delivered; of several, the one of the highest number counts."""

    kind = "prepared"
    batch_id: int
    ordinal: int
    number: int
    """From 1 on; every lower one is gone from the target for ever, and so is the manifest's."""
    segment_id: str
    transaction_id: str
    handle: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        sink = paths.sink_of(path)
        either = (paths.prepared(sink, self.batch_id, self.ordinal, self.number, spread=spread) for spread in _EITHER)
        return path in either


class OlderSlots(msgspec.Struct, frozen=True, kw_only=True):
    """What a transactional target must still hold of an earlier batch, in slots that no later batch used."""

    batch_id: int
    rows: tuple[int, ...]
    """Of slots that follow each other, beginning where the newer ones end."""


class Marker(Record, frozen=True, kw_only=True):
    """A sink has the whole batch, and every one before it."""

    kind = "marker"
    batch_id: int
    term: int
    run_id: str
    rows: int
    """Of this batch and those before it that have no marker of their own."""
    rejected: int = 0
    unknown: int = 0
    """Rows whose outcome an at-most-once delivery does not know; each lies among the dead letters."""
    last_delivered_batch: int = msgspec.field(name="witness_batch")
    """The newest batch up to this one that had rows; -1: none yet."""
    last_delivered_rows: tuple[int, ...] = msgspec.field(default=(), name="witness_rows")
    """Rows of that batch's segments: what a transactional target must still remember of their slots."""
    last_delivered_older: tuple[OlderSlots, ...] = msgspec.field(default=(), name="witness_older")
    """The same of the slots after these, which batches with more segments used before."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.marker(paths.sink_of(path), self.batch_id)


class Replayed(Record, frozen=True, kw_only=True):
    """A dead letter was sent again; what was refused once more lies in another one."""

    kind = "replayed"
    dead_letter: str
    """Its path in the WAL."""
    rows: int
    """Rows that the sink has by now."""
    rejected: int
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.replayed(self.dead_letter)


class SinkRecord(Record, frozen=True, kw_only=True):
    """A sink's registration."""

    kind = "sink"
    name: str
    sink_kind: str
    at_most_once: bool = False
    """Whether its progress is recorded before sending, not after."""
    first_batch: int
    identity: str
    """What the sink is, for people; never a secret."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.sink(self.name)


class LowWater(Record, frozen=True, kw_only=True):
    """Every batch up to and including this one is delivered everywhere, and its objects may be gone."""

    kind = "low-water"
    batch_id: int
    marked: dict[str, int] = {}
    """By name of a registered sink: the newest batch it had; empty: by a version that did not say."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.low_water(self.batch_id)


class _Versioned(msgspec.Struct, frozen=True):
    """All that one may ask of an envelope before its format is known."""

    format: int
    kind: object = None
    """Means what it says in the formats that this version knows, of whatever kind of record."""


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    kind: str
    crc32: int
    body: msgspec.Raw


R = TypeVar("R", bound=Record)
_EITHER = (False, True)
_FORMATS = (FORMAT, SPREAD_FORMAT, RULE_FORMAT)


def encode(record: Record) -> bytes:
    """The bytes of a record, envelope included."""
    body = msgspec.json.encode(record)
    envelope = _Envelope(format=record.format, kind=record.kind, crc32=zlib.crc32(body), body=msgspec.Raw(body))
    return msgspec.json.encode(envelope) + b"\n"


def decode(kind: type[R], data: bytes, where: str) -> R:
    """The record in `data`, found at the address `where`; `CorruptError` unless every byte of it is as written.

    Raises `ConfigError` for the format of another version of wal-sink.
    """
    try:
        _check_format(kind, msgspec.json.decode(data, type=_Versioned), where)
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"{where}: expected a {kind.kind} record of format {FORMAT}, found {_sample(data)}"
        ) from error
    body = bytes(envelope.body)
    if envelope.kind != kind.kind or zlib.crc32(body) != envelope.crc32:
        raise _unfit(kind, where)
    try:
        record = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"{where}: this {kind.kind} record lacks what format {envelope.format} asks for: {error}"
        ) from error
    if record.format != envelope.format:
        raise CorruptError(
            f"{where}: what this {kind.kind} record says is of format {record.format}, not {envelope.format}; restore "
            "the object"
        )
    return record


def _check_format(kind: type[Record], found: _Versioned, where: str) -> None:
    if found.format not in kind.formats:
        if found.format in _FORMATS and isinstance(found.kind, str) and found.kind != kind.kind:
            raise _unfit(kind, where)  # another kind of record, in a format that this version knows of that kind
        known = " and ".join(map(str, kind.formats))
        raise ConfigError(
            f"{where}: format {found.format}, but this version of wal-sink reads format {known} of a {kind.kind} "
            "record; use the version that wrote it, or restore the object if nobody did"
        )


def _unfit(kind: type[Record], where: str) -> CorruptError:
    return CorruptError(f"{where}: the checksum or kind of this {kind.kind} record does not fit; restore the object")


def _sample(data: bytes) -> str:
    return f"{len(data)} bytes starting with {data[:40]!r}" if data else "an empty object"

"""The small JSON objects of a WAL, and their common envelope. See docs/FORMAT.md.

Every record is written once, as a whole. The envelope carries the format number, the kind and a CRC-32 of the body's
bytes, so a flipped bit or a truncation is detected when the record is read. A record repeats the facts of its path, so
a record in the wrong place is detected too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import ClassVar, TypeVar

import msgspec

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.support.clock import ProcessIdentity

FORMAT = 6
"""Format of every record. 1 to 4 were those of commits before the first release, which this version does not read."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A durable fact. `id` is unique to the write, so a writer can recognise its own object after a lost answer."""

    kind: ClassVar[str]
    id: str
    created: str
    """Time of creation, ISO 8601, UTC. Only for people; no decision depends on it."""

    def belongs_at(self, path: str) -> bool:  # noqa: ARG002 - a record without facts of its path belongs nowhere
        """Return whether the record's facts match its path. Most records in a sink's folder do not contain the sink's
        name, so the name is not compared.
        """
        return False


class WalRecord(Record, frozen=True, kw_only=True):
    """The query and checkpoint of a WAL."""

    kind = "wal"
    wal_id: str
    query_id: str
    checkpoint: str
    """Address of the checkpoint, without credentials."""
    first_batch: int
    """First batch that this WAL had to stage."""
    location: str
    """Place where the WAL was created, see `wal_sink.protocol.location.canonical`."""
    sinks: tuple[str, ...] = ()
    """Names of the sinks that were registered by then. Their registrations are older than this record."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.WAL


class Move(Record, frozen=True, kw_only=True):
    """A user confirmed that the WAL was moved. Of several, the record with the highest number counts."""

    kind = "move"
    number: int
    location: str
    moved_from: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.move(self.number)


class TermRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A claimed term of a role, and the process that claimed it."""

    kind = "term"
    role: str
    term: int
    run_id: str
    process: str
    holder: ProcessIdentity
    """The same process, in a form that finds it."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.term(self.role, self.term)


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment, as its staging task described it."""

    path: str
    """Relative to the WAL's root."""
    id: str
    rows: int
    bytes: int
    crc32: int
    """CRC-32 of the whole file."""
    chunk_ends: tuple[int, ...] | None = None
    """Row numbers at which its chunks end, the last one being `rows`. None: every `chunk_rows` rows."""
    kept: bool = True
    """True if the file exists. If False, only the targets of two-phase sinks hold the rows, and `bytes` and `crc32` are
    0.
    """


def even_ends(rows: int, chunk_rows: int) -> tuple[int, ...]:
    """The ends of chunks of `chunk_rows` rows each; the last chunk may have fewer."""
    return (*range(chunk_rows, rows, chunk_rows), rows) if rows else ()


class TaskTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One staging task. All durations are measured by the monotonic clock of the process that did the work, moments are
    ISO 8601, UTC, and no decision depends on either.
    """

    partition: int
    seconds: float
    host: str = ""
    """Empty: the process of the driver."""


class StagingTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The staging tasks of one attempt at a batch."""

    tasks: int
    task_seconds: float
    """Of all tasks together."""
    slowest: TaskTiming | None = None
    began: str = ""
    """When the attempt began, before Spark's job. It ends with the manifest."""


class SegmentTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery of one segment, in the attempt that completed it."""

    ordinal: int
    fetch_seconds: float
    """Reading the segment from the store."""
    send_seconds: float
    """All else: opening the sink, reading positions, sending chunks, recording progress."""
    host: str = ""
    """Empty: the process of the committer."""


class DeliveryTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery of one batch to one sink, in the process that completed it."""

    batch_id: int
    due: str
    """When this batch was the next one of the sink: it had all earlier ones."""
    began: str
    """When its delivery began: Spark had completed it by then, and it was released."""
    seconds: float
    """From then on until the sink had every row, with all attempts."""
    attempts: int
    fetch_seconds: float
    """Of all segments together."""
    send_seconds: float
    slowest: SegmentTiming | None = None


def rounded(seconds: float) -> float:
    """Seconds in whole milliseconds, so that records stay small."""
    return round(seconds, 3)


def combined(timings: Iterable[StagingTiming | None]) -> StagingTiming | None:
    """The timing of several tasks together; None if none of them told its own."""
    known = [timing for timing in timings if timing is not None]
    if not known:
        return None
    tasks = [timing.slowest for timing in known if timing.slowest is not None]
    return StagingTiming(
        tasks=sum(timing.tasks for timing in known),
        task_seconds=rounded(sum(timing.task_seconds for timing in known)),
        slowest=max(tasks, key=lambda task: task.seconds, default=None),
    )


class Manifest(Record, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One staged attempt of a batch. A field that this version does not know could change where its objects lie."""

    kind = "manifest"
    batch_id: int
    term: int
    attempt: int
    run_id: str
    fingerprint: str
    offsets: str
    """The checkpoint's `offsets/N`, verbatim."""
    columns: tuple[str, ...]
    """Real column names; `segment_names` tells those in the segments."""
    spark_schema: str
    """JSON of the Spark schema; empty if the batch was staged without Spark."""
    chunk_rows: int
    segments: tuple[SegmentRef, ...]
    prepared: dict[str, tuple[str | None, ...]] = {}
    """The handle of each segment, by name of a two-phase sink. None: the segment was not prepared while it was
    staged.
    """
    timing: StagingTiming | None = None
    """How long staging took, for people. None: not recorded."""
    time_zone: str = ""
    """The time zone of the session that staged the instants, as Java names it. Segments hold them in UTC. Empty: the
    batch has no instants.
    """
    passed_over: bool = False
    """True if Spark wrote the batch for an offline operation, without running it. No sink is called for it."""

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def belongs_at(self, path: str) -> bool:
        return path == paths.manifest(self.batch_id, self.term, self.attempt)


def without_segments(batch_id: int) -> Manifest:
    """A manifest in place of one that is lost or not needed: only its batch matters, and no row is sent by it."""
    return Manifest(
        batch_id=batch_id,
        term=0,
        attempt=0,
        run_id="",
        fingerprint="",
        offsets="",
        columns=(),
        spark_schema="",
        chunk_rows=1,
        segments=(),
        id="",
        created="",
    )


class Release(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The decision which manifest of a batch is delivered: for all sinks, for ever."""

    kind = "release"
    batch_id: int
    term: int
    """Term of the manifest, not of the committer."""
    attempt: int
    fingerprint: str
    run_id: str
    """The run that created the release."""
    sink: str
    """The sink whose committer created it; this sink had every batch before."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.release(self.batch_id)


class Progress(Record, frozen=True, kw_only=True):
    """Rows of a segment that a sink has."""

    kind = "progress"
    batch_id: int
    ordinal: int
    rows: int
    segment_id: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.progress(paths.sink_of(path), self.batch_id, self.ordinal, self.rows)


class BegunRecord(Record, frozen=True, kw_only=True):
    """A two-phase sink is about to begin a transaction. It will be aborted unless it is committed."""

    kind = "begun"
    transaction_id: str
    wal_id: str
    batch_id: int
    partition: int
    file_index: int

    def belongs_at(self, path: str) -> bool:
        return path == paths.begun(paths.sink_of(path), self.batch_id, self.transaction_id)


class TokenRecord(Record, frozen=True, kw_only=True):
    """Token that a sink needs to find a transaction that it began."""

    kind = "token"
    transaction_id: str
    batch_id: int
    token: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.begun_token(paths.sink_of(path), self.batch_id, self.transaction_id)


class PreparedRecord(Record, frozen=True, kw_only=True):
    """A segment was prepared at delivery. Of several, the record with the highest number counts."""

    kind = "prepared"
    batch_id: int
    ordinal: int
    number: int
    """Number of the preparation, from 1 on. The transactions of lower numbers are gone from the target for ever; so is
    the manifest's.
    """
    segment_id: str
    transaction_id: str
    handle: str
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.prepared(paths.sink_of(path), self.batch_id, self.ordinal, self.number)


class RollRecord(Record, frozen=True, kw_only=True):
    """Consecutive batches that a sink shows together, decided before any of their rows is sent."""

    kind = "roll"
    first_batch: int
    through: int
    """Its last batch."""
    segment: SegmentRef | None
    """The rows of all its batches. None: at most one of them has rows, and keeps its own segments."""
    term: int
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.roll(paths.sink_of(path), self.first_batch)


class OlderSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a transactional target must still hold of an earlier batch, in slots that no later batch used."""

    batch_id: int
    rows: tuple[int, ...]
    """Rows of consecutive slots, beginning after the newer ones."""


class Marker(Record, frozen=True, kw_only=True):
    """The sink has the whole batch and every batch before it."""

    kind = "marker"
    batch_id: int
    term: int
    run_id: str
    rows: int
    """Rows of this batch, and of earlier batches without their own marker."""
    rejected: int = 0
    unknown: int = 0
    """Rows whose outcome is unknown to an at-most-once delivery. Each is kept as a dead letter."""
    last_delivered_batch: int
    """The newest batch with rows, up to this one; -1: none yet."""
    last_delivered_rows: tuple[int, ...] = ()
    """Rows of that batch's segments: a transactional target must still hold them in their slots."""
    last_delivered_older: tuple[OlderSlots, ...] = ()
    """The same for the slots after these, which earlier batches with more segments used."""
    timings: tuple[DeliveryTiming, ...] = ()
    """How long the delivery of this batch, and of earlier ones without their own marker, took; for people. A batch that
    is missing was delivered by another process, or its times were not recorded.
    """
    skipped: bool = False
    """True if a person ordered that the sink passes over this batch: it may have only some of its rows, or none."""
    skipped_rows: tuple[int, ...] | None = None
    """Of a skipped batch: the rows of each segment that the target of a transactional sink has. None: unknown."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.marker(paths.sink_of(path), self.batch_id)


class SkippedBatch(Record, frozen=True, kw_only=True):
    """A person ordered that a sink passes over a batch of which the WAL held no object any more."""

    kind = "skipped"
    batch_id: int
    sink: str
    """The first sink that passed over it. Every other sink still stops there."""
    run_id: str

    def belongs_at(self, path: str) -> bool:
        return path == paths.skipped(self.batch_id)


class Replayed(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter was sent again. Rows that were refused once more lie in another dead letter."""

    kind = "replayed"
    dead_letter: str
    """Path of the dead letter in the WAL."""
    rows: int
    """Rows that the sink has now."""
    rejected: int
    term: int
    run_id: str
    target: str = ""
    """Description of the transactional target that has the rows. Empty: another kind of target, or not recorded."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.replayed(self.dead_letter)


class SinkRecord(Record, frozen=True, kw_only=True):
    """Registration of a sink."""

    kind = "sink"
    name: str
    sink_kind: str
    at_most_once: bool = False
    """True if its progress is recorded before sending, not after."""
    first_batch: int
    identity: str
    """Description of the sink, for people; never contains a secret."""
    is_holder: bool = False
    """True for the sink of a catch-up: it gets nothing, and keeps batches from being deleted."""
    is_exact: bool = False
    """True if a person named the first batch: the sink begins with no later one."""
    through: int | None = None
    """The last batch that it gets. Then it is retired."""
    is_rolled: bool = False
    """True if its batches are delivered in rolls."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.sink(self.name)


class LowWater(Record, frozen=True, kw_only=True):
    """Every batch up to and including this one is delivered to every sink, and its objects may be gone."""

    kind = "low-water"
    batch_id: int
    marked: dict[str, int]
    """The newest batch of each registered sink, by name."""

    def belongs_at(self, path: str) -> bool:
        return path == paths.low_water(self.batch_id)


class _Versioned(msgspec.Struct, frozen=True):
    """The part of an envelope that is read before its format is known."""

    format: int


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    kind: str
    crc32: int
    body: msgspec.Raw


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """The bytes of a record, with its envelope."""
    body = msgspec.json.encode(record)
    envelope = _Envelope(format=FORMAT, kind=record.kind, crc32=zlib.crc32(body), body=msgspec.Raw(body))
    return msgspec.json.encode(envelope) + b"\n"


def decode(kind: type[R], data: bytes, where: str) -> R:
    """The record in `data`, found at the address `where`. Raises `CorruptError` unless every byte is as written.

    Raises `ConfigError` for a format of another version of wal-sink.
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
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"{where}: this {kind.kind} record does not have the fields that format {FORMAT} requires: {error}"
        ) from error


def _check_format(kind: type[Record], found: _Versioned, where: str) -> None:
    if found.format != FORMAT:
        raise ConfigError(
            f"{where}: format {found.format}, but this version of wal-sink reads format {FORMAT}. Use the version of "
            f"wal-sink that wrote this {kind.kind} record. If no version wrote it, restore the object"
        )


def _unfit(kind: type[Record], where: str) -> CorruptError:
    return CorruptError(f"{where}: the checksum or kind of this {kind.kind} record does not match; restore the object")


def _sample(data: bytes) -> str:
    return f"{len(data)} bytes starting with {data[:40]!r}" if data else "an empty object"

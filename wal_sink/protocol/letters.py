"""Dead letters: rows that a sink refuses, or may not have, under their original keys.

A dead letter is a Parquet file. It holds the rows under positional names (`c0`, …), and for each row its number in the
segment (`row`) and the reason why it was kept (`reason`). The file's metadata names sink, batch and chunk under
`wal_sink.*`. Only the user deletes a dead letter.

The metadata end with a checksum of the whole file, which is computed while its place holds zeros. A Parquet reader
checks pages and no footer, and a changed bit of the footer may give a number another scale.

`Rejections` keeps the rows that a sink refuses for good while their chunk is delivered (`on_rejected="dead_letter"`).

The refusals of a chunk are numbered, and each number is created once. Two processes may hold one chunk: a superseded
one and a newer one. The numbers keep them from both deciding which of its rows the target gets:

- A plain or idempotent sink that refuses some rows has taken every other row. The first refusal records that the chunk
  was answered. So the chunk is not sent again, and later answers of the sink to another process change nothing.
- A transactional sink that refuses rows commits nothing of their chunk. The refused rows are kept first, then the chunk
  is sent without them. A process that takes over such a chunk reads the refusals that exist, and creates an empty one
  under the next number. An older process that has not kept its own by then finds that number taken, and stops. (One
  case is left: two processes hold a chunk, and the target refuses a row to one and takes it from the other. Then the
  row is kept, and the target has it too.)
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import CorruptError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.paths import DeadLetterName
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk, Position, refusal_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.stores.creation import create_once
from wal_sink.stores.parquet import WRITING
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import counted

_logger = logger_of(__name__)
_PREFIX = b"wal_sink."
CHECKSUM = b"wal_sink.file_crc32"
NO_CHECKSUM = b"0" * 10
"""The value while the checksum is computed."""
_CHECKSUM_PLACE = re.compile(re.escape(CHECKSUM) + rb".{0,8}?(\d{10})", re.DOTALL)
_ROW, _REASON = "row", "reason"

Kept: TypeAlias = Literal["rejected", "unknown"]
"""Why rows are dead letters: the sink refused them, or it is unknown whether it has them."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Kept rows of one chunk, with the reasons."""

    path: str
    name: DeadLetterName
    """The chunk of its rows, as its path says."""
    kept: Kept
    chunk: Chunk
    """The rows under their real names, with their lasting key."""
    reasons: tuple[str, ...]
    """Why the rows were kept, one reason a row."""
    answered: bool
    """Whether the sink has every other row that it was sent. A transactional sink has none of them."""
    replay_of: str
    """The path of the dead letter in whose replay the rows were refused again; else empty."""
    created: str = ""
    """When it was kept, ISO 8601, UTC."""
    id: str = ""
    """Its lasting identity: another dead letter may get its name once it is deleted."""


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The file's metadata."""

    id: str
    created: str
    kept: Kept
    key: str
    batch_id: int
    segment_id: str
    slot: str
    end: int
    """The row at which the chunk of the rows ends."""
    columns: tuple[str, ...]
    term: int
    run_id: str
    answered: bool = False
    replay_of: str = ""


def keep_unknown(log: Log, sink: str, ordinal: int, chunk: Chunk, *, reason: str) -> None:
    """Keep a chunk of an at-most-once delivery that the sink may or may not have. Repeating this is harmless."""
    path = paths.dead_letter(sink, chunk.batch_id, ordinal, chunk.rows[0], chunk.rows[-1] + 1)
    _logger.warning("sink %s: outcome unknown, kept as %s: %s", sink, log.store.url_of(path), reason)
    try:
        log.store.create(path, _encode(log, chunk, [reason] * chunk.num_rows, "unknown"))
    except ObjectExists:
        _logger.debug(
            "%s exists already: an earlier attempt kept the same rows. They are not written again",
            log.store.url_of(path),
        )


def keep_rejected(
    log: Log, path: str, chunk: Chunk, reasons: Sequence[str], *, answered: bool, replay_of: str = ""
) -> bool:
    """Keep rows that a sink refused for good as `path`; there may be none. False if another process was first."""
    data = _encode(log, chunk, reasons, "rejected", answered=answered, replay_of=replay_of)
    return create_once(log.store, path, data, runtime=log.runtime)


def count_rows(store: Store, sink: str, batch_id: int) -> Mapping[Kept, int]:
    """Number of rows of a batch that any process kept so far, by `Kept`. One listing, and a read for each refusal."""
    counts: dict[Kept, int] = {"rejected": 0, "unknown": 0}
    folder = paths.dead_letter_folder(sink, batch_id)
    for name in store.list(folder):
        span = paths.parse_dead_letter(name)
        if span is not None and span.number is None:
            counts["unknown"] += span.end_row - span.first_row
        elif span is not None:
            counts["rejected"] += read_dead_letter(store, f"{folder}/{name}").chunk.num_rows
    return counts


def find_dead_letter(store: Store, path: str) -> DeadLetter | None:
    """The dead letter under `path`; None if there is none. Raises `CorruptError`."""
    try:
        return read_dead_letter(store, path)
    except ObjectMissing:
        return None


def read_dead_letter(store: Store, path: str) -> DeadLetter:
    """The dead letter under `path`. Raises `ObjectMissing`, and `CorruptError` if it is damaged."""
    where = store.url_of(path)
    data = store.read(path)
    try:
        table = pq.read_table(io.BytesIO(data))
        facts = _facts_in(table.schema.metadata or {}) if _is_unchanged(data) else None
    except (pa.ArrowException, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"{where}: expected a dead letter, found {len(data)} other bytes: {error}") from error
    if facts is None:
        raise CorruptError(f"{where}: the checksum of this dead letter does not match; restore the object")
    if table.num_columns != len(facts.columns) + 2 or table.column_names[-2:] != [_ROW, _REASON]:
        raise CorruptError(f"{where}: expected the columns {facts.columns}, {_ROW} and {_REASON}, found {table.schema}")
    span = paths.parse_dead_letter(path.rpartition("/")[2])
    if span is None:
        raise CorruptError(f"{where}: expected the name of a dead letter; restore the object under its original name")
    rows: list[Any] = table.column(_ROW).to_pylist()
    reasons: list[Any] = table.column(_REASON).to_pylist()
    chunk = Chunk(
        table=table.drop_columns([_ROW, _REASON]).rename_columns(list(facts.columns)).replace_schema_metadata(None),
        batch_id=facts.batch_id,
        key=facts.key,
        segment_id=facts.segment_id,
        rows=tuple(rows),
        position=Position(facts.slot, facts.batch_id, facts.end, facts.segment_id),
        term=facts.term,
        start=span.first_row,
    )
    return DeadLetter(
        path, span, facts.kept, chunk, tuple(reasons), facts.answered, facts.replay_of, facts.created, facts.id
    )


def _encode(
    log: Log, chunk: Chunk, reasons: Sequence[str], kept: Kept, *, answered: bool = False, replay_of: str = ""
) -> bytes:
    facts = _Facts(
        kept=kept,
        key=chunk.key,
        batch_id=chunk.batch_id,
        segment_id=chunk.segment_id,
        slot=chunk.position.slot,
        end=chunk.position.rows,
        columns=tuple(chunk.table.column_names),
        term=chunk.term,
        run_id=log.run_id,
        answered=answered,
        replay_of=replay_of,
        **log.stamp(),
    )
    table = chunk.table.rename_columns([f"c{index}" for index in range(chunk.table.num_columns)])
    table = table.append_column(_ROW, pa.array(list(chunk.rows), pa.int64()))
    table = table.append_column(_REASON, pa.array(list(reasons), pa.string()))
    table = table.replace_schema_metadata(_metadata_of(facts))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **WRITING)
    return with_checksum(buffer.getvalue())


def _metadata_of(facts: _Facts) -> dict[bytes, bytes]:
    """The facts, and last the place for the checksum of the file."""
    plain = msgspec.to_builtins(facts)
    metadata = {
        _PREFIX + name.encode(): value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        for name, value in plain.items()
    }
    return {**metadata, CHECKSUM: NO_CHECKSUM}


def _facts_in(metadata: Mapping[bytes, bytes]) -> _Facts:
    texts = {
        name.removeprefix(_PREFIX).decode(): value.decode()
        for name, value in metadata.items()
        if name.startswith(_PREFIX)
    }
    columns = msgspec.json.decode(texts.pop("columns", ""))
    return msgspec.convert({**texts, "columns": columns}, _Facts, strict=False)


def with_checksum(data: bytes) -> bytes:
    """A file whose metadata end with `CHECKSUM` and `NO_CHECKSUM`, with its checksum."""
    at = _place_of_checksum(data)
    if at is None:
        raise AssertionError("the file has no place for its checksum")
    return b"".join((data[:at], b"%010d" % _checksum(data, at), data[at + len(NO_CHECKSUM) :]))


def _is_unchanged(data: bytes) -> bool:
    """Whether a file has the bytes that `with_checksum` gave it."""
    at = _place_of_checksum(data)
    return at is not None and int(data[at : at + len(NO_CHECKSUM)]) == _checksum(data, at)


def _place_of_checksum(data: bytes) -> int | None:
    """The offset of the checksum: behind the last `CHECKSUM`, since rows and names of columns stand before the
    metadata.
    """
    found = _CHECKSUM_PLACE.match(data, data.rfind(CHECKSUM))
    return found.start(1) if found else None


def _checksum(data: bytes, at: int) -> int:
    view = memoryview(data)
    return zlib.crc32(view[at + len(NO_CHECKSUM) :], zlib.crc32(NO_CHECKSUM, zlib.crc32(view[:at])))


def refused_rows(sent: Chunk, indices: Collection[int], number: int) -> Chunk:
    """Some rows of a chunk, with the key that they have in its n-th refusal."""
    refused = sent.without(set(range(sent.num_rows)).difference(indices))
    return replace(refused, key=refusal_key(refused.position, refused.rows, number))


class RefusalTakenError(SinkFailedError):
    """The next refusal of a chunk exists already: another process holds the chunk too."""

    def __init__(self, where: str) -> None:
        super().__init__(FailureKind.UNKNOWN, f"{where} was written by another attempt at the same chunk")
        self.where = where


class Rejections:
    """The refusals of one chunk. `chunk` is the whole chunk as it was staged.

    With `replayed`: the refusals of its chunk that follow this dead letter, whose rows are sent again. `chunk` is then
    what lies in the dead letter. New refusals name it, and keep its position.
    """

    def __init__(self, log: Log, sink: str, ordinal: int, chunk: Chunk, *, replayed: DeadLetter | None = None) -> None:
        self._log = log
        self._sink = sink
        self._ordinal = ordinal
        self._chunk = chunk
        self._replayed = replayed
        self._next = 0 if replayed is None or replayed.name.number is None else replayed.name.number + 1

    def is_kept(self) -> bool:
        """Whether the chunk has any refusal. One read."""
        return find_dead_letter(self._log.store, self._path(0)) is not None

    def is_answered(self) -> bool:
        """Whether the sink, when it refused some rows, took all others: then the chunk is not sent again. One read."""
        first = find_dead_letter(self._log.store, self._path(0))
        return first is not None and first.answered

    def take_over(self) -> Chunk:
        """The chunk without the rows that were kept before. From now on no older process keeps more.

        A read for each refusal. Raises `RefusalTakenError` if another process takes it over at the same time.
        """
        kept: set[int] = set()
        is_closed = False
        for letter in self.read():
            kept.update(letter.chunk.rows)
            is_closed = letter.chunk.num_rows == 0 and letter.chunk.term == self._chunk.term
        if not is_closed:  # else an earlier attempt under this term closed it
            self.close(self._chunk)
        return self._chunk.without([index for index, row in enumerate(self._chunk.rows) if row in kept])

    def read(self) -> Iterator[DeadLetter]:
        """Each refusal that exists, in order. The next one that is kept gets the number after them."""
        while (letter := find_dead_letter(self._log.store, self._path(self._next))) is not None:
            self._next += 1
            yield letter

    def close(self, chunk: Chunk) -> None:
        """Create an empty refusal: an older process that has not kept its own yet finds the number taken, and stops.

        `chunk` holds the term under which this happens. Raises `RefusalTakenError`.
        """
        self._create(chunk.without(range(chunk.num_rows)), [], answered=False)

    def keep(self, sent: Chunk, rejected: Rejected, *, answered: bool) -> None:
        """Keep the refused rows of a chunk that was sent; `answered`: the sink has the others.

        Raises `RefusalTakenError` if another process decided about this chunk meanwhile.
        """
        indices = sorted(rejected.reasons)
        refused = refused_rows(sent, indices, self._next)
        reasons = [redacted(rejected.reasons[index]) for index in indices]
        path = self._create(refused, reasons, answered=answered)
        _logger.warning(
            "sink %s: %s refused, kept as %s; the first: %s",
            self._sink,
            counted(len(indices), "row"),
            self._log.store.url_of(path),
            reasons[0],
        )

    def each_refusal(self, rest: Chunk, write: Callable[[Chunk], Rejected | None]) -> Iterator[int]:
        """Send what is left of the chunk to a sink that commits nothing when it refuses rows, until it takes the rest.

        Yields the number of rows after each refusal, when these are kept: look at the term before the next send.
        """
        while (rejected := write(rest)) is not None:
            self.keep(rest, rejected, answered=False)
            yield len(rejected.reasons)
            rest = rest.without(rejected.reasons)

    def _create(self, rows: Chunk, reasons: list[str], *, answered: bool) -> str:
        path, replay_of = self._path(self._next), self._replayed.path if self._replayed else ""
        rows = replace(rows, position=self._chunk.position)  # a replay sends under another position
        if not keep_rejected(self._log, path, rows, reasons, answered=answered, replay_of=replay_of):
            raise RefusalTakenError(self._log.store.url_of(path))
        self._next += 1
        return path

    def _path(self, number: int) -> str:
        if self._replayed is None:
            first, end = self._chunk.rows[0], self._chunk.rows[-1] + 1
        else:
            first, end = self._replayed.name.first_row, self._replayed.name.end_row
        return paths.dead_letter(self._sink, self._chunk.batch_id, self._ordinal, first, end, number=number)

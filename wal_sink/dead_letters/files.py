"""The files of dead letters: rows that a sink refuses, or may not have, under their original keys.

A dead letter is a Parquet file. It holds the rows under positional names (`c0`, …), and for each row its number in the
segment (`row`) and the reason why it was kept (`reason`). The file's metadata names sink, batch and chunk under
`wal_sink.*`. Only the user deletes a dead letter.

The metadata end with a checksum of the whole file, which is computed while its place holds zeros. A Parquet reader
checks pages and no footer, and a changed bit of the footer may give a number another scale.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import CorruptError
from wal_sink.reporting.logs import logger_of
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.stores.creation import create_once
from wal_sink.stores.parquet import WRITING
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.paths import DeadLetterName

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
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        facts = _facts_in(table.schema.metadata or {}) if _is_unchanged(data) else None
    except (pa.ArrowException, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"{where}: expected a dead letter, found {len(data)} other bytes: {error}") from error
    if facts is None:
        raise CorruptError(f"{where}: the checksum of this dead letter does not match; restore the object")
    if table.num_columns != len(facts.columns) + 2 or table.column_names[-2:] != [_ROW, _REASON]:
        raise CorruptError(f"{where}: expected the columns {facts.columns}, {_ROW} and {_REASON}, found {table.schema}")
    span = paths.parse_dead_letter(path.rpartition("/")[2])
    if span is None:
        raise CorruptError(f"{where}: expected the name of a dead letter; restore the object under its own name")
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
    found = _CHECKSUM_PLACE.match(data, max(0, data.rfind(CHECKSUM)))
    return found.start(1) if found else None


def _checksum(data: bytes, at: int) -> int:
    view = memoryview(data)
    return zlib.crc32(view[at + len(NO_CHECKSUM) :], zlib.crc32(NO_CHECKSUM, zlib.crc32(view[:at])))

"""`Chunk`: the rows that a sink gets in one call, and the keys that never change."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from wal_sink.sinks.json_rows import Maps, check_maps, maps_as, to_json_array, to_json_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Progress of one slot of a sink: the number of rows of one segment of one batch.

    A transactional sink stores it with the rows, keyed by `slot`, and returns it from `last(slot)`. Positions of one
    slot only move forward, in the order `(batch_id, rows)`.
    """

    slot: str
    """At most 190 ASCII characters: WAL id, sink name and the ordinal of the segment in its batch."""
    batch_id: int
    rows: int
    """Rows of the segment that the sink has after this chunk."""
    segment_id: str
    """Id of the released segment. The same batch and rows of another segment belong to another history."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one segment, handed to a sink in one call (on an executor or the driver).

    The same rows always keep the same `key`: after a retry, a restart, a rename of the sink, a move of the WAL or
    changed settings. Other rows never get an old key.
    """

    table: pa.Table
    """The rows under their real column names, or those of `Delivery.columns`, typed as Spark's Arrow conversion types
    them, with instants in UTC.
    """
    batch_id: int
    key: str
    """At most 64 ASCII characters, safe in an HTTP header."""
    segment_id: str
    rows: range | tuple[int, ...]
    """Numbers of these rows in their segment."""
    position: Position
    """Position of the sink after this chunk."""
    term: int
    """Fencing number of the committer. A target that can compare numbers refuses one lower than it has seen."""
    start: int
    """Number of the chunk's first row in the segment as it was staged. `without` keeps it, so that rows which became
    dead letters leave no gap.
    """
    follows: Position | None = None
    """Position of the slot when this attempt began the segment; None if the slot was empty. The target writes the first
    chunk of a segment only if the slot still holds exactly this position. Each later chunk follows the chunk before it,
    which ends at `start`.
    """

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.table.num_rows

    def row_keys(self) -> list[str]:
        """One key per row, as durable as `key`. The keys are positional, not business keys: two equal rows have two
        keys.
        """
        return [f"{self.segment_id}-{row}" for row in self.rows]

    def to_json(self, *, lines: bool = False, maps: Maps = "object") -> bytes:
        """The rows as UTF-8 JSON: an array of objects, or one object per line.

        All types of columns are supported. Decimals and 64-bit integers become JSON numbers with every digit. Dates,
        timestamps and durations become ISO 8601 text (an instant in UTC), binary becomes base64, structs become
        objects. A NaN or infinite number becomes text. Bytes that are not UTF-8 become U+FFFD.

        A map whose keys are texts becomes an object, `{"a":1}`, as in Spark's `to_json`. Other maps become arrays of
        `{"key":…,"value":…}`, which keeps the type of the keys. So does a map with a repeated key, and with
        `maps="entries"` every map.

        Raises `ConfigError` for a repeated column or field name, since an object would keep only one of them.
        """
        check_maps(maps)
        table = maps_as(maps, self.table)
        return to_json_lines(table) if lines else to_json_array(table)

    def maps_as(self, maps: Maps) -> Chunk:
        """This chunk with its maps written as `maps` says: `"entries"` makes lists of structs of `key` and `value`. Key
        and rows stay.
        """
        return self if maps == "object" else replace(self, table=maps_as(maps, self.table))

    def without(self, rows: Collection[int]) -> Chunk:
        """This chunk without some rows, given by their index in this chunk.

        The new key derives from the remaining rows: removing rows at once or one by one gives the same key.
        """
        gone = sorted(set(rows))
        if not gone:
            return self
        if gone[0] < 0 or gone[-1] >= self.num_rows:
            raise IndexError(f"rows {gone} of chunk {self.key}: expected indices from 0 to {self.num_rows - 1}")
        kept = sorted(set(range(self.num_rows)).difference(gone))
        rows_left = tuple(self.rows[index] for index in kept)
        return Chunk(
            table=self.table.take(pa.array(kept, pa.int64())),
            batch_id=self.batch_id,
            key=_derived_key(self.position, rows_left),
            segment_id=self.segment_id,
            rows=rows_left,
            position=self.position,
            term=self.term,
            start=self.start,
            follows=self.follows,
        )

    @classmethod
    def of(cls, table: pa.Table, *, key: str) -> Self:
        """A chunk for tests of a user's sink, as if it were the only chunk of batch 0."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"key {key!r}: expected 1 to 64 letters, digits or any of _.:-")
        position = Position(slot="test/default/0", batch_id=0, rows=table.num_rows, segment_id=key)
        rows = range(table.num_rows)
        return cls(table=table, batch_id=0, key=key, segment_id=key, rows=rows, position=position, term=1, start=0)


def chunk_key(segment_id: str, first_row: int, end_row: int) -> str:
    """The key of rows `first_row` to `end_row` (exclusive) of a segment."""
    return f"{segment_id}-{first_row}-{end_row}"


def refusal_key(position: Position, rows: Iterable[int], number: int) -> str:
    """The key of rows that were refused in the n-th rejection of their chunk.

    It differs from the key under which the rows were refused. Otherwise a target that remembers keys would take the
    rows, sent again later, for those it refused.
    """
    return _digest(f"{position.segment_id} until {position.rows}: refusal {number} of {_listed(rows)}")


def _derived_key(position: Position, rows: Iterable[int]) -> str:
    """32 hexadecimal digits. Two different sets of rows share a key only by a collision of 128 bits."""
    return _digest(f"{position.segment_id} until {position.rows}: {_listed(rows)}")


def _listed(rows: Iterable[int]) -> str:
    return ",".join(str(row) for row in rows)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

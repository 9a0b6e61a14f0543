"""Rows and position in one transaction of an SQL database: exactly once, with nothing to repeat.

The ledger is the table `wal_sink_ledger`, one row per slot, made beside the target table:

    slot TEXT PRIMARY KEY, term, batch_id, segment_id, rows

`SqlSink` holds what is the same for every database; all that knows a driver is in `sql_dialects`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from wal_sink.chunk import Position
from wal_sink.errors import ConfigError, DivergentReplay, FencedError, HistoryError, PermanentError
from wal_sink.json_rows import decimal_texts, plain_values
from wal_sink.sink import TransactionalSink
from wal_sink_backends.sql_dialects import LEDGER, Connection, Kind, dialect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wal_sink.chunk import Chunk
    from wal_sink.sink import SinkContext

Mode: TypeAlias = Literal["append", "upsert"]
_UPDATED = ("term", "batch_id", "segment_id", "rows")


class SqlSink(TransactionalSink):
    """A table of an SQL database, for now SQLite, as a target that is delivered to exactly once.

    `url` is `sqlite:///relative.db` or `sqlite:////absolute.db`; a relative path counts from the folder the sink is
    made in. A missing table is made from the chunk's columns, unless `create_table=False`.

    `mode="upsert"` replaces the row with the same `key` columns, which need a primary key or unique index (a table made
    here has it). Of two rows with one key in one batch, the last one wins within a segment; across segments it is open
    which does, unless the `Delivery` has `order="total"`.

    Columns go by name. Whole and floating numbers stay numbers (NaN is text, SQLite would make it NULL), booleans are
    0 and 1, decimals text with all digits, dates, times and durations ISO 8601 text (instants in UTC), binary a BLOB,
    lists, maps and structs JSON text.

    Runs on the driver or on executors of the *same machine*, in any number of processes: SQLite takes one writer at a
    time, the others wait up to `busy_timeout_s` seconds, and readers are never blocked (`journal_mode=WAL`, which no
    network file system supports). `synchronous=FULL`: what `write` returned from survives a loss of power.

    Raises `ConfigError` for arguments that cannot work.

        sink = SqlSink("sqlite:////data/flights.db", "flights", mode="upsert", key=("id",))
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Mode = "append",
        key: Sequence[str] = (),
        create_table: bool = True,
        busy_timeout_s: float = 30.0,
    ) -> None:
        self._dialect = dialect_of(url, busy_timeout_s)
        self._table = table
        self._mode = mode
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._create_table = create_table
        self._connection: Connection | None = None
        self._known_schema: Any = None
        self._check_arguments()

    def describe(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        key = f", key={self._key!r}" if self._key else ""
        return f"SqlSink({self._dialect.address!r}, {self._table!r}, mode={self._mode!r}{key})"

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the ledger needs nothing of it
        """Connect; make the ledger if it is missing. `PermanentError`, or the driver's error if a retry may help."""
        self._known_schema = None
        self._connection = self._dialect.connect()
        with self._dialect.translated(f"opening {self._dialect.address}"):
            self._dialect.make_ledger(self._connection)

    def close(self) -> None:
        """Close the connection; a transaction under way is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def last(self, slot: str) -> Position | None:
        """The position in the ledger; None if the slot never wrote."""
        with self._dialect.translated(f"slot {slot!r} of {LEDGER} in {self._dialect.address}"):
            stored = self._stored(self._connected(), slot)
        return stored.position if stored else None

    def write(self, chunk: Chunk) -> None:
        """Insert the rows and move the ledger on, in one transaction; nothing if the ledger is there already.

        Raises `FencedError` for a lower term than the ledger's, `HistoryError` for other rows than the ledger tells
        of, `PermanentError` if table and rows do not fit or a constraint refuses a row; anything else may be tried
        again.
        """
        what = f"batch {chunk.batch_id}, chunk {chunk.key}: table {self._table!r} in {self._dialect.address}"
        rows = _rows(chunk.table, what)
        connection = self._connected()
        with self._dialect.translated(what), self._dialect.transaction(connection):
            if self._has(chunk, self._stored(connection, chunk.position.slot)):
                return
            fresh = self._fit_table(connection, chunk.table.schema, what)
            connection.executemany(self._insert(chunk.table.column_names), rows)
            self._move_ledger(connection, chunk)
        if fresh:
            self._known_schema = chunk.table.schema

    def _check_arguments(self) -> None:
        if self._mode not in ("append", "upsert"):
            raise ConfigError(f"mode={self._mode!r}: expected 'append' or 'upsert'")
        if (self._mode == "upsert") != bool(self._key):
            raise ConfigError(
                f"mode={self._mode!r} with key={self._key!r}: expected key columns for 'upsert', and only there"
            )
        if not self._table or "\0" in self._table or self._table.lower() == LEDGER:
            raise ConfigError(f"table={self._table!r}: expected the name of a table other than {LEDGER}")

    def _connected(self) -> Connection:
        if self._connection is None:
            raise RuntimeError(f"{self!r} is not open: call open() first")
        return self._connection

    # The ledger.

    def _stored(self, connection: Connection, slot: str) -> _LedgerRow | None:
        query = f"SELECT term, batch_id, rows, segment_id FROM {LEDGER} WHERE slot = {self._dialect.mark}"  # noqa: S608
        found = connection.execute(query, (slot,)).fetchone()
        if found is None:
            return None
        term, batch_id, rows, segment_id = found
        return _LedgerRow(term, Position(slot, batch_id, rows, segment_id))

    def _has(self, chunk: Chunk, stored: _LedgerRow | None) -> bool:
        """Whether the target has this chunk. Raises if the chunk's sender or its rows are not the ledger's."""
        if stored is None:
            return False
        due, at = chunk.position, stored.position
        where = f"batch {chunk.batch_id}, chunk {chunk.key}, slot {due.slot!r} of {LEDGER} in {self._dialect.address}"
        if stored.term > chunk.term:
            raise FencedError(f"{where}: term {stored.term} has written, this sender's is {chunk.term}")
        if at.batch_id != due.batch_id:
            return at.batch_id > due.batch_id
        if at.segment_id != due.segment_id:
            raise DivergentReplay(
                f"{where}: the table holds rows of segment {at.segment_id}, the chunk is of segment {due.segment_id}; "
                "find out which WAL wrote this table before going on"
            )
        if at.rows < due.rows and any(row < at.rows for row in chunk.rows):
            raise HistoryError(
                f"{where}: the table holds the first {at.rows} rows of the segment, which cuts this chunk in two"
            )
        return at.rows >= due.rows

    def _move_ledger(self, connection: Connection, chunk: Chunk) -> None:
        position = chunk.position
        values = (position.slot, chunk.term, position.batch_id, position.segment_id, position.rows)
        connection.execute(self._dialect.upsert(LEDGER, ("slot", *_UPDATED), ("slot",)), values)

    # The target table.

    def _insert(self, columns: Sequence[str]) -> str:
        return self._dialect.upsert(self._table, columns, self._key)

    def _fit_table(self, connection: Connection, schema: Any, what: str) -> bool:
        """Make or check the table, within the transaction; False if this schema has been checked before."""
        if self._known_schema is not None and schema.equals(self._known_schema):
            return False
        wanted: dict[str, Kind] = {field.name: _kind(field.type) for field in schema}
        self._check_names(wanted, schema.names, what)
        found = self._dialect.columns(connection, self._table)
        if not found and not self._create_table:
            raise PermanentError(f"{what}: there is no such table; create it, or pass create_table=True")
        if found:
            self._check_columns(wanted, found, what)
        else:
            connection.execute(self._dialect.create(self._table, wanted, self._key))
        return True

    def _check_names(self, wanted: dict[str, Kind], names: Sequence[str], what: str) -> None:
        folded = [self._dialect.fold(name) for name in names]
        twice = [name for name in names if folded.count(self._dialect.fold(name)) > 1]
        if twice or not names or "" in names:
            raise PermanentError(
                f"{what}: expected columns with names that differ, found {twice or names}; rename them"
            )
        missing = [name for name in self._key if name not in wanted]
        if missing:
            raise PermanentError(f"{what}: key column {missing[0]!r} is not among the columns {list(names)}")

    def _check_columns(self, wanted: dict[str, Kind], found: dict[str, str], what: str) -> None:
        for name, kind in wanted.items():
            declared = found.get(self._dialect.fold(name))
            if declared is None:
                raise PermanentError(
                    f"{what}: it has no column {name!r}, only {sorted(found)}; add it, or drop it in the query"
                )
            if not self._dialect.fits(kind, declared):
                raise PermanentError(
                    f"{what}: column {name!r} is declared {declared!r}, which would alter {kind} values; expected "
                    f"{self._dialect.type_name(kind)!r}. Change the table, or cast the column in the query"
                )


@dataclass(frozen=True, slots=True)
class _LedgerRow:
    term: int
    position: Position


# Values: Arrow columns to what every driver takes.


_TYPES: Any = pa.types
_KINDS: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (_TYPES.is_boolean, "boolean"),
    (_TYPES.is_integer, "integer"),
    (_TYPES.is_floating, "number"),
    (_TYPES.is_decimal, "decimal"),
    (_TYPES.is_temporal, "moment"),
    (_TYPES.is_nested, "nested"),
    (lambda some: "binary" in str(some), "binary"),  # of any length, and views
)


def _kind(arrow_type: Any) -> Kind:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _kind(arrow_type.storage_type)
    if _TYPES.is_dictionary(arrow_type):
        return _kind(arrow_type.value_type)
    for test, kind in _KINDS:
        if test(arrow_type):
            return kind
    return "text"


def _rows(table: Any, what: str) -> Iterable[tuple[Any, ...]]:
    try:
        columns = [_values(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    except ConfigError as error:  # a type nobody can carry: no retry will help
        raise PermanentError(f"{what}: {error}") from error
    return zip(*columns, strict=True)


def _values(column: Any, name: str) -> list[Any]:
    kind = _kind(column.type)
    if kind == "decimal":
        return [text for chunk in column.chunks for text in decimal_texts(chunk)]
    values = plain_values(column, name)
    if kind == "nested":
        return [None if value is None else msgspec.json.encode(value).decode() for value in values]
    if kind == "number" and str in set(map(type, values)):
        infinite = {"Infinity": math.inf, "-Infinity": -math.inf}
        return [infinite.get(value, value) for value in values]
    return values

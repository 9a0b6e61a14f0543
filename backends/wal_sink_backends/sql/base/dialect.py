"""The interface between `SqlSink` and a database with its driver: one `Dialect` per database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from wal_sink.errors import PermanentError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import check_seconds
from wal_sink_backends.sql.base.values import Apart, Unlisted, kind_of, reason_of, refused_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.values import Dropped, Rows

    Put: TypeAlias = Callable[[Sequence[Any]], str | Dropped | None]
    """Inserts encoded rows. Raises the driver's errors. Returns why the rows could not be sent, or how many of them the
    table dropped; None if it kept all.
    """

LEDGER = "wal_sink_ledger"
LEDGER_COLUMNS = ("slot", "term", "batch_id", "segment_id", "rows")
DELETED_COLUMNS = ("wal_sink_batch", "wal_sink_wal")
"""Of the table of remembered deletes, behind key and version: the batch that remembers a delete, and its WAL."""
STORED = "wal_sink_stored"
"""The name of the target table within a statement that replaces rows."""
SHORT_WAIT_S = 2
"""The longest wait for the lock of a table that gets columns: all who need the table after that wait as well."""
_GRACE_S = 5.0
_SAVEPOINT, _START = "wal_sink_rows", "wal_sink_start"
Connection: TypeAlias = Any
"""A dialect's connection: `execute`, `close`, and methods that only the dialect calls."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest times, in seconds."""

    busy_timeout_s: float = 30.0
    """For waiting for a lock. Also for a process that stands still and keeps one, if the server can notice that."""
    connect_timeout_s: float = 10.0
    statement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("busy_timeout_s", "connect_timeout_s", "statement_timeout_s"):
            check_seconds(name, getattr(self, name), above_0=True)

    @property
    def silence_s(self) -> float:
        """The longest silence of a server. It should end a statement earlier by itself; else the connection is cut."""
        return self.statement_timeout_s + _GRACE_S


def ledger_values(entry: LedgerEntry) -> tuple[Any, ...]:
    """An entry as a row of the ledger, in the order of `LEDGER_COLUMNS`."""
    at = entry.position
    return at.slot, entry.term, at.batch_id, at.segment_id, at.rows


def entry_in(row: Sequence[Any], asked: Collection[str]) -> LedgerEntry:
    """A row of the ledger as an entry. `PermanentError` if its slot is none of `asked`.

    The ledger then takes the names of two slots for one, and the rows of one sink would count as another's.
    """
    slot, term, batch_id, segment_id, rows = row
    if slot not in asked:
        raise PermanentError(
            f"{LEDGER}: found a row for slot {slot!r}, expected one of {list(asked)[:3]}. The column 'slot' treats "
            "different texts as equal, for example because its collation ignores case. Nothing was written. Use a "
            "collation that compares byte by byte, like the DDL in docs/sinks/sql.md"
        )
    return LedgerEntry(term, Position(slot, batch_id, rows, segment_id))


class TableMissing(Exception):
    """A table has to be made outside of the transaction, by a call of `make`. Then the transaction is begun again."""

    def __init__(self, make: Callable[[], None]) -> None:
        super().__init__()
        self.make = make


class ColumnsMissing(Exception):
    """Columns have to be added outside of the transaction, which is then begun again."""

    def __init__(self, columns: Mapping[str, ArrowType], what: str) -> None:
        super().__init__(f"{what}: the table lacks the columns {', '.join(columns)}. wal-sink tries again")
        self.columns = columns


class TableAltered(Exception):
    """The target table was altered during the write. Nothing was kept; another attempt describes it anew."""


class RowsRefused(Exception):
    """Rolls a transaction back, with the reasons by row of the chunk."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows")
        self.reasons = dict(reasons)


@dataclass(frozen=True, slots=True)
class Replacing:
    """The rows that a row replaces."""

    key: Sequence[str] = ()
    """Columns in which the replaced row is equal. Without any, nothing is replaced."""
    newer_by: Sequence[str] = ()
    """Columns, the most important one first, in which together the replaced row is not newer: smaller, equal or NULL.
    Without any, every row is replaced.
    """
    texts: Collection[str] = ()
    """Those of `newer_by` that are texts, which are compared byte by byte whatever their collation."""
    strict: bool = False
    """Whether a row of equal age stays as well."""
    deleted: str | None = None
    """The table of remembered deletes. A row is left out if a delete of its key is as new or newer."""


@dataclass(frozen=True, slots=True)
class Look:
    """The target table and the ledger at one moment."""

    definition: str
    """Differs if any checked property of the two differs."""
    problem: str | None = None
    """Why table or ledger cannot keep rows and position together; None if both can."""
    oid: int | None = None
    """The number by which the server tells the table from another one of its name; None if there is none."""


class Dialect(ABC):
    """The differences between databases: driver, types, statements, errors. Plain data, pickled with the sink."""

    address: str
    """For messages; never with user or password."""
    creates_in_transaction: bool = False
    """Whether the target table is made in the transaction of its first rows."""
    most_writers: int | None = None
    """Most tasks that can write at the same time; None: any number."""
    longest_name: int | None = None
    """Bytes of UTF-8 that a name may have."""
    slots_at_once: int | None = None
    """Most slots in one query; None: any number."""
    documents: ClassVar[frozenset[str]] = frozenset()
    """Declared types, in lower case, that keep a document's values but no repeated key."""
    schema_is: ClassVar[str | None] = None
    """The thing that the argument `schema` names, for messages; None if a database has none."""
    same: ClassVar[str] = "IS NOT DISTINCT FROM"
    """The operator that takes two NULLs for equal."""
    holds: bool = True
    """Whether the table cannot be altered from `hold` until the end of the transaction."""
    adds: ClassVar[str] = "ADD COLUMN"
    """The words of ALTER TABLE before a column that it adds."""
    table_options: str = ""
    """The text behind the columns in CREATE TABLE."""

    # Connections.

    @abstractmethod
    def connect(self) -> Connection:
        """A new connection that commits nothing by itself."""

    def connect_to_look(self) -> Connection | None:
        """A connection that changes nothing in the database; None if the database is made by the first delivery."""
        return self.connect()

    @abstractmethod
    def is_usable(self, connection: Connection) -> bool:
        """False once the connection is known to be lost."""

    @abstractmethod
    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """A transaction, committed at the end of the block, else rolled back."""

    # The driver's errors.

    @abstractmethod
    def driver_error(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The class of all errors of the driver. `ConfigError` if the driver is not installed."""

    @abstractmethod
    def passes(self, error: Any) -> bool:
        """Whether another attempt may succeed."""

    @abstractmethod
    def refuses_rows(self, error: Any) -> bool:
        """Whether an error is about single rows: a constraint, a value that a column cannot hold."""

    def may_refuse_a_row(self, error: Any) -> bool:
        """Whether an error in no list may be about a single row. False for errors of the connection or the server."""
        return not self.passes(error)

    def refuses_together(self, error: Any) -> bool:  # noqa: ARG002
        """Whether an error is about rows that may be taken one after the other, in their order."""
        return False

    @abstractmethod
    def shown(self, error: Any) -> str:
        """The database's text, without parts that repeat values of rows."""

    def told(self, error: Any) -> str:
        """The text of an error that ends the delivery."""
        return self.shown(error)

    def retold(self, error: Any, where: str) -> Exception:
        """The same error for another attempt, with `where` in front of its text and no whole rows in it."""
        made: Exception = type(error)(f"{where}{self.shown(error)}")
        return made

    @contextmanager
    def translated(self, what: str, rows: str = "") -> Iterator[None]:
        """A context that turns the driver's errors into `PermanentError`, or into `retold` ones if a retry may help."""
        try:
            yield
        except self.driver_error() as error:
            if self.passes(error):
                raise self.retold(error, rows and f"{rows}: ") from error
            raise PermanentError(f"{what}{rows and f', {rows}'}: {self.told(error)}") from error

    # The ledger.

    @abstractmethod
    def make_ledger(self, connection: Connection, table: str) -> None:
        """Create the ledger of a table if it is missing; safe when several processes do so at once."""

    def reading(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002
        """The context for `stored`, in which no server that may lag behind answers."""
        return nullcontext()

    @abstractmethod
    def stored(self, connection: Connection, slots: Sequence[str]) -> dict[str, LedgerEntry]:
        """The entries of at most `slots_at_once` slots, in one statement; slots without an entry are left out."""

    @abstractmethod
    def lock(self, connection: Connection, slot: str, term: int) -> LedgerEntry | None:
        """The slot's entry, locked until the end of the transaction. `term` is the sender's.

        No other transaction gets past this call for the same slot, whether or not the ledger has a row of it yet.
        """

    @abstractmethod
    def move_ledger(self, connection: Connection, entry: LedgerEntry) -> None:
        """Put the slot's entry in place of the locked one."""

    # The target table.

    @abstractmethod
    def look(self, connection: Connection, table: str) -> Look:
        """The table and the ledger at this moment, with all partitions of both.

        Every kind is a problem, unless it is known to keep rows and position in one transaction and through a crash. A
        missing table is no problem.
        """

    def hold(self, connection: Connection, table: str, columns: Sequence[str]) -> bool:  # noqa: ARG002
        """Keep the table unaltered until the end of the transaction, if `holds` is true.

        False if the columns cannot be written: the table has to be described first.
        """
        return True

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        """Declared types by folded column name; empty if there is no such table."""

    @abstractmethod
    def check_table(self, connection: Connection, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:
        """The problem of a table whose columns fit, and its remedy; None if there is none."""

    def replaces_nulls(self, connection: Connection, table: str) -> frozenset[str]:  # noqa: ARG002
        """Folded names of columns in which the database replaces a written NULL by a generated value."""
        return frozenset()

    def collations(self, connection: Connection, table: str) -> Mapping[str, str]:  # noqa: ARG002
        """Collations of text columns by folded name, for `in_key_order`; empty if it needs none."""
        return {}

    def in_key_order(
        self,
        connection: Connection,  # noqa: ARG002
        rows: Rows,
        table: pa.Table,  # noqa: ARG002
        key: Sequence[str],  # noqa: ARG002
        collations: Mapping[str, str],  # noqa: ARG002
    ) -> Rows:
        """The rows of an upsert in the order in which all writers lock them.

        They stay as they are if the statements themselves order them, or if only one transaction writes at a time.
        """
        return rows

    def tells_age(self, kind: ArrowType) -> bool:
        """Whether the values of a type keep their order in this database."""
        return kind_of(kind) in {"integer", "number", "decimal", "moment"}

    def age(self, expression: str, *, is_text: bool) -> str:
        """A part of a version in a comparison. Texts are compared byte by byte."""
        return f"{expression} COLLATE BINARY" if is_text else expression

    def ages(self, replacing: Replacing, expression: Callable[[str], str]) -> list[str]:
        """The parts of a version, from an expression for each column's name."""
        return [self.age(expression(name), is_text=name in replacing.texts) for name in replacing.newer_by]

    def newer(self, ours: Sequence[str], theirs: Sequence[str], *, strict: bool) -> str:
        """The condition that our version is newer than theirs, or (unless `strict`) equal. NULL is the oldest."""
        if not ours:
            return "1 = 1"
        *pairs, (our, their) = zip(ours, theirs, strict=True)
        above = "({1} IS NULL AND {0} IS NOT NULL) OR {0} > {1}".format
        condition = above(our, their) if strict else f"{their} IS NULL OR {our} >= {their}"
        for our, their in reversed(pairs):
            condition = f"{above(our, their)} OR ({our} {self.same} {their} AND ({condition}))"
        return condition

    def refuse_ageless(self, column: Any, name: str, refused: dict[int, str]) -> None:
        """Add the rows whose value in the `newer_by` column this database would compare in another order."""

    def create(self, table: str, columns: Mapping[str, ArrowType], key: Sequence[str]) -> str:
        """The statement that creates a table."""
        parts = [
            f"{self.quote(name)} {self.type_name(kind, key=name in key)}{' NOT NULL' if name in key else ''}"
            for name, kind in columns.items()
        ]
        if key:
            parts.append(f"PRIMARY KEY ({self.listed(key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.named(table)} ({', '.join(parts)}){self.table_options}"

    @abstractmethod
    def create_table(self, connection: Connection, table: str, statement: str) -> None:
        """Run a CREATE TABLE IF NOT EXISTS, safe while another process does the same."""

    def adding(self, table: str, columns: Mapping[str, ArrowType]) -> list[str]:
        """The statements that add columns, which may be NULL."""
        added = [f"{self.adds} {self.quote(name)} {self.type_name(kind)}" for name, kind in columns.items()]
        return [f"ALTER TABLE {self.named(table)} {', '.join(added)}"]

    @abstractmethod
    def add_columns(self, connection: Connection, table: str, columns: Mapping[str, ArrowType]) -> None:
        """Add columns outside of a transaction, safe while others do the same. Those that are there stay as they are.

        Raises the driver's errors, after `SHORT_WAIT_S` if others use the table; `TableAltered` if another process was
        faster.
        """

    def retyping(self, table: str, column: str, kind: ArrowType, key: Sequence[str]) -> str:  # noqa: ARG002
        """The statement by which a person gives a column another type; empty if the database has none."""
        return ""

    @abstractmethod
    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:
        """The type of a column made here; `key`: of a key column."""

    @abstractmethod
    def fits(self, kind: ArrowType, declared: str) -> bool:
        """Whether a column of a declared type keeps values of this type as they are, or refuses them."""

    @abstractmethod
    def encode(self, connection: Connection, table: pa.Table, key: Sequence[str], declared: Mapping[str, str]) -> Rows:
        """The rows for `insert`, into columns of these types. `ConfigError` or `PermanentError` if that cannot be."""

    @abstractmethod
    def putting(self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        """A function that inserts some of the rows, replacing those with the same key if there are key columns."""

    @abstractmethod
    def remembering(self, connection: Connection, table: str, deleted: str, replacing: Replacing) -> Sequence[str]:
        """The statements that make the table of remembered deletes: key and version as `table` has them, batch, WAL."""

    @abstractmethod
    def deleting(self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        """A function that puts deletes into `replacing.deleted`, and deletes the rows that are as old or older."""

    @abstractmethod
    def marking(
        self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing, marks: Sequence[str]
    ) -> Put:
        """A function that puts the columns `marks` of some rows into stored rows that are as old or older, and inserts
        rows whose key is not there.
        """

    def release(self, connection: Connection, savepoint: str) -> None:
        """Forget a savepoint, if a new one of the same name would not replace it."""
        connection.execute(f"RELEASE SAVEPOINT {savepoint}")

    def insert(self, connection: Connection, rows: Rows, put: Put, *, may_drop: bool, what: str) -> Mapping[int, str]:
        """Insert all rows within the transaction, by the function of `putting`.

        Returns the rows that the database refuses, or drops without permission, by their index in the chunk; the caller
        then rolls back the transaction. The database does not name these rows: they are found by trying ever smaller
        parts.
        """

        def attempt(first: int, end: int) -> str | None:
            connection.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                reason = reason_of(put(rows.values[first:end]), may_drop=may_drop, what=what)
            except self.driver_error() as error:
                reason = self._reason(connection, error)
            if reason is not None:
                connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self.release(connection, _SAVEPOINT)
            if reason is not None and end - first == len(rows.numbers):  # the first attempt: no row is there yet
                connection.execute(f"SAVEPOINT {_START}")
            return reason

        return refused_rows(rows.numbers, attempt, lambda: connection.execute(f"ROLLBACK TO SAVEPOINT {_START}"))

    def _reason(self, connection: Connection, error: Exception) -> str:
        """Why some rows were refused. Raises the error again if it is about no row."""
        if self.refuses_together(error):
            return Apart(self.shown(error))
        if self.refuses_rows(error):
            return self.shown(error)
        if not self.is_usable(connection) or not self.may_refuse_a_row(error):
            raise error
        (unlisted := Unlisted(self.shown(error))).error = error
        return unlisted

    def on_conflict(self, columns: Sequence[str], replacing: Replacing) -> str:
        """The clause of an INSERT into the table, called `STORED`, that replaces rows with the same key."""
        key = replacing.key
        updates = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in columns if name not in key)
        condition = f" WHERE {self._is_newer(replacing)}" if replacing.newer_by else ""
        return f"ON CONFLICT ({self.listed(key)}) DO {f'UPDATE SET {updates}{condition}' if updates else 'NOTHING'}"

    def insisting(self, columns: Sequence[str], replacing: Replacing) -> str:
        """The same clause, except that each row is written and counted: a row that replaces nothing writes the stored
        values again.
        """
        key, newer = replacing.key, self._is_newer(replacing)
        others = [self.quote(name) for name in columns if name not in key]
        first = self.quote(key[0])
        updates = [f"{name} = CASE WHEN {newer} THEN excluded.{name} ELSE {STORED}.{name} END" for name in others]
        same = f"{first} = {STORED}.{first}"
        return f"ON CONFLICT ({self.listed(key)}) DO UPDATE SET {', '.join(updates) or same}"

    def _is_newer(self, replacing: Replacing) -> str:
        """The condition under which a row replaces the stored one."""
        sent = self.ages(replacing, lambda name: f"excluded.{self.quote(name)}")
        stored = self.ages(replacing, lambda name: f"{STORED}.{self.quote(name)}")
        return self.newer(sent, stored, strict=replacing.strict)

    # Names.

    def named(self, table: str) -> str:
        """The quoted name of a table in a statement."""
        return self.quote(table)

    def fold(self, name: str) -> str:
        """The folded name of a column. Equal folded names are the same column."""
        return name

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def listed(self, names: Iterable[str]) -> str:
        return ", ".join(self.quote(name) for name in names)

    def needs_value(self, column: str, table: str) -> str:
        return (
            f"column {column!r} of {table} needs a value, but has no default. Select this column in the query, or "
            "define a default"
        )

    def too_long(self, names: Iterable[str]) -> list[str]:
        """Names the database would cut or refuse."""
        longest = self.longest_name
        return [] if longest is None else [name for name in names if len(name.encode("utf-8", "replace")) > longest]

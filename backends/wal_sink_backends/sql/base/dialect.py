"""All that `SqlSink` needs to know of a database and its driver: one `Dialect` each, in a module of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink_backends.sql.base.dropped import reason_of
from wal_sink_backends.sql.base.refused import Apart, refused_rows
from wal_sink_backends.sql.base.values import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dropped import Dropped
    from wal_sink_backends.sql.base.values import Rows

    Put: TypeAlias = Callable[[Sequence[Any]], str | Dropped | None]
    """Inserts encoded rows. Raises what the driver does, or returns why no database could be sent them, or how many of
    them the table dropped.
    """

LEDGER = "wal_sink_ledger"
LEDGER_COLUMNS = ("slot", "term", "batch_id", "segment_id", "rows")
STORED = "wal_sink_stored"
"""The name of the target table within a statement that replaces rows."""
_GRACE_S = 5.0
_SAVEPOINT = "wal_sink_rows"
Connection: TypeAlias = Any
"""A dialect's connection: `execute`, `close`, and what the dialect itself needs of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that nothing may take longer than."""

    busy_timeout_s: float = 30.0
    """Waiting for a lock; and how long a process that stands still may keep one, where the server can tell."""
    connect_timeout_s: float = 10.0
    statement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("busy_timeout_s", "connect_timeout_s", "statement_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected a number of seconds above 0")

    @property
    def silence_s(self) -> float:
        """What a server may say nothing for: it ends a statement by itself; if it does not, the connection is cut."""
        return self.statement_timeout_s + _GRACE_S


def ledger_values(entry: LedgerEntry) -> tuple[Any, ...]:
    """An entry as a row of the ledger, in the order of `LEDGER_COLUMNS`."""
    at = entry.position
    return at.slot, entry.term, at.batch_id, at.segment_id, at.rows


def entry_in(row: Sequence[Any], asked: Collection[str]) -> LedgerEntry:
    """A row of the ledger as an entry, the other way round. `PermanentError` if it is of none of the slots `asked` for:
    the ledger then takes the names of two slots for one, and the rows of one sink would count as another's.
    """
    slot, term, batch_id, segment_id, rows = row
    if slot not in asked:
        raise PermanentError(
            f"{LEDGER}: it answered for slot {slot!r}, expected one of {list(asked)[:3]}: its column 'slot' takes "
            "texts that differ for equal, as a collation does that ignores case. Make it compare byte by byte, as the "
            "DDL in docs/sinks/sql.md does; nothing was written"
        )
    return LedgerEntry(term, Position(slot, batch_id, rows, segment_id))


class TableMissing(Exception):
    """The target table has to be made outside of the transaction, which is then begun again."""


class TableAltered(Exception):
    """Somebody alters the target table while it is written to. Nothing was kept; another attempt describes it anew."""


class RowsRefused(Exception):
    """Rolls a transaction back, with the reasons by row of the chunk."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows")
        self.reasons = dict(reasons)


@dataclass(frozen=True, slots=True)
class Replacing:
    """Which rows a row replaces."""

    key: Sequence[str] = ()
    """Columns in which the other is equal. Without any, nothing is replaced."""
    newer_by: str | None = None
    """A column in which the other is not newer: it is smaller or equal, or NULL. None: whichever it is."""


@dataclass(frozen=True, slots=True)
class Look:
    """The target table and the ledger at one moment."""

    definition: str
    """Differs if anything differs that was checked of them."""
    problem: str | None = None
    """Why table or ledger is of a kind that does not keep rows and position together; None if both do."""


class Dialect(ABC):
    """All that differs between databases: driver, types, statements, errors. Plain data, pickled with the sink."""

    address: str
    """For messages; never with user or password."""
    creates_in_transaction: bool = False
    """Whether the target table is made in the transaction of its first rows."""
    most_writers: int | None = None
    """Tasks that can write side by side; None: any number."""
    longest_name: int | None = None
    """Bytes of UTF-8 that a name may have."""
    slots_at_once: int | None = None
    """Slots that one question may be about; None: any number."""
    schema_is: ClassVar[str | None] = None
    """The thing that the argument `schema` names, for messages; None where there is none."""
    holds: bool = True
    """Whether nobody can alter the table from `hold` on until the end of the transaction."""
    table_options: str = ""
    """What stands behind the columns where a table is made."""

    # Connections.

    @abstractmethod
    def connect(self) -> Connection:
        """A new connection that commits nothing by itself."""

    @abstractmethod
    def is_usable(self, connection: Connection) -> bool:
        """False once the connection is known to be lost."""

    @abstractmethod
    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """A transaction, committed at the end of the block, else rolled back."""

    # The driver's errors.

    @abstractmethod
    def driver_error(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What all of them are. `ConfigError` if the driver is not installed."""

    @abstractmethod
    def passes(self, error: Any) -> bool:
        """Whether another attempt may succeed."""

    @abstractmethod
    def refuses_rows(self, error: Any) -> bool:
        """Whether it is about single rows: a constraint, a value that a column cannot hold."""

    def refuses_together(self, error: Any) -> bool:  # noqa: ARG002
        """Whether it is about rows that may be taken one after the other, in their order."""
        return False

    @abstractmethod
    def shown(self, error: Any) -> str:
        """What the database says, less what repeats values of rows."""

    def told(self, error: Any) -> str:
        """The same where it ends the delivery."""
        return self.shown(error)

    def retold(self, error: Any, where: str) -> Exception:
        """The same error, to be raised where another attempt may succeed, with `where` in front and no whole rows."""
        made: Exception = type(error)(f"{where}{self.shown(error)}")
        return made

    @contextmanager
    def translated(self, what: str, rows: str = "") -> Iterator[None]:
        """A context in which the driver's errors become `PermanentError`, or are told again if a retry may help."""
        try:
            yield
        except self.driver_error() as error:
            if self.passes(error):
                raise self.retold(error, rows and f"{rows}: ") from error
            raise PermanentError(f"{what}{rows and f', {rows}'}: {self.told(error)}") from error

    # The ledger.

    @abstractmethod
    def make_ledger(self, connection: Connection) -> None:
        """Create the ledger if it is missing; safe when several processes do so at once."""

    def reading(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002
        """The context for `stored`, in which no server answers that may lag behind."""
        return nullcontext()

    @abstractmethod
    def stored(self, connection: Connection, slots: Sequence[str]) -> dict[str, LedgerEntry]:
        """What the ledger tells of at most `slots_at_once` slots, in one statement; without those that hold nothing."""

    @abstractmethod
    def lock(self, connection: Connection, slot: str, term: int) -> LedgerEntry | None:
        """The same within a transaction, until whose end no other one gets past this line for the slot: neither where
        the ledger has a row of the slot, nor where it has none yet. `term` is the sender's.
        """

    @abstractmethod
    def move_ledger(self, connection: Connection, entry: LedgerEntry) -> None:
        """Put the slot's entry in place of the locked one."""

    # The target table.

    @abstractmethod
    def look(self, connection: Connection, table: str) -> Look:
        """The table and the ledger at this moment, all partitions of both included. Only kinds that are known to keep
        rows and position in one transaction, and through a crash, are without a problem. A missing table has none.
        """

    def hold(self, connection: Connection, table: str, columns: Sequence[str]) -> bool:  # noqa: ARG002
        """Within a transaction: keep the table as it is, where `holds` is true. False if the columns cannot be written:
        the table has then to be described first.
        """
        return True

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        """Declared types by folded column name; empty if there is no such table."""

    @abstractmethod
    def check_table(self, connection: Connection, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:
        """What is wrong with a table that has fitting columns, and the way out; None if nothing is."""

    def replaces_nulls(self, connection: Connection, table: str) -> frozenset[str]:  # noqa: ARG002
        """Folded names of columns where the database puts a value of its own in place of a NULL that is written."""
        return frozenset()

    def documents(self, declared: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """Of the declared types by folded column name, those that keep a document's values, but no key twice."""
        return {}

    def collations(self, connection: Connection, table: str) -> Mapping[str, str]:  # noqa: ARG002
        """Of text columns by folded name, for `in_key_order`; empty if it needs none."""
        return {}

    def in_key_order(
        self,
        connection: Connection,  # noqa: ARG002
        rows: Rows,
        table: pa.Table,  # noqa: ARG002
        key: Sequence[str],  # noqa: ARG002
        collations: Mapping[str, str],  # noqa: ARG002
    ) -> Rows:
        """The rows of an upsert as all writers lock them. As they are where the statements see to it themselves, or
        where only one transaction writes.
        """
        return rows

    def tells_age(self, kind: ArrowType) -> bool:
        """Whether values of a type, as this database keeps them, can be compared in their own order."""
        return kind_of(kind) in {"integer", "number", "decimal", "moment"}

    def refuse_ageless(self, column: Any, name: str, refused: dict[int, str]) -> None:
        """Add the rows whose value in the column of `newer_by` this database would compare in another order."""

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
        """Run it, unless another process was quicker."""

    @abstractmethod
    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:
        """The type of a column made here; `key`: of a key column."""

    @abstractmethod
    def fits(self, kind: ArrowType, declared: str) -> bool:
        """Whether a column of a declared type keeps values of this type as they are, or refuses them."""

    @abstractmethod
    def encode(self, connection: Connection, table: pa.Table, key: Sequence[str]) -> Rows:
        """The rows as `insert` takes them. `ConfigError` or `PermanentError` for a column that nobody can carry."""

    @abstractmethod
    def putting(self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        """What inserts some of the rows, replacing others with the same key if there are key columns."""

    def release(self, connection: Connection, savepoint: str) -> None:
        """Forget a savepoint, where a new one of its name would not take its place."""
        connection.execute(f"RELEASE SAVEPOINT {savepoint}")

    def insert(self, connection: Connection, rows: Rows, put: Put, *, may_drop: bool, what: str) -> Mapping[int, str]:
        """Insert all rows within the transaction, as `putting` has it.

        Returns the rows that the database refuses, or drops unless it may, by their index in the chunk; the transaction
        is then to be rolled back. It does not say which they are: they are found by trying again with ever smaller
        parts.
        """

        def attempt(first: int, end: int) -> str | None:
            connection.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                reason = reason_of(put(rows.values[first:end]), may_drop=may_drop, what=what)
            except self.driver_error() as error:
                if not (together := self.refuses_together(error)) and not self.refuses_rows(error):
                    raise
                reason = Apart(self.shown(error)) if together else self.shown(error)
            if reason is not None:
                connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self.release(connection, _SAVEPOINT)
            return reason

        return refused_rows(rows.numbers, attempt)

    def on_conflict(self, columns: Sequence[str], replacing: Replacing) -> str:
        """What an INSERT into the table, called `STORED`, says for rows whose key is there: that they are replaced."""
        key = replacing.key
        updates = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in columns if name not in key)
        condition = "" if replacing.newer_by is None else f" WHERE {self._is_newer(replacing)}"
        return f"ON CONFLICT ({self.listed(key)}) DO {f'UPDATE SET {updates}{condition}' if updates else 'NOTHING'}"

    def insisting(self, columns: Sequence[str], replacing: Replacing) -> str:
        """The same to the same effect, but each row is written and counted: one that replaces nothing there writes what
        is there once more.
        """
        key, newer = replacing.key, self._is_newer(replacing)
        others = [self.quote(name) for name in columns if name not in key]
        first = self.quote(key[0])
        updates = [f"{name} = CASE WHEN {newer} THEN excluded.{name} ELSE {STORED}.{name} END" for name in others]
        same = f"{first} = {STORED}.{first}"
        return f"ON CONFLICT ({self.listed(key)}) DO UPDATE SET {', '.join(updates) or same}"

    def _is_newer(self, replacing: Replacing) -> str:
        """The condition under which a row replaces the stored one."""
        if replacing.newer_by is None:
            return "1 = 1"
        age = self.quote(replacing.newer_by)
        return f"{STORED}.{age} IS NULL OR excluded.{age} >= {STORED}.{age}"

    # Names.

    def named(self, table: str) -> str:
        """A table in a statement."""
        return self.quote(table)

    def fold(self, name: str) -> str:
        """Names that fold to the same are the same column."""
        return name

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def listed(self, names: Iterable[str]) -> str:
        return ", ".join(self.quote(name) for name in names)

    def too_long(self, names: Iterable[str]) -> list[str]:
        """Names the database would cut or refuse."""
        longest = self.longest_name
        return [] if longest is None else [name for name in names if len(name.encode("utf-8", "replace")) > longest]

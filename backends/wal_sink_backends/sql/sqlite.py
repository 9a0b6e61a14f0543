"""SQLite for `SqlSink`, through the standard library: one file, one writer at a time."""

from __future__ import annotations

import math
import os
import re
import socket
import sqlite3
import string
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink.support.logs import logger_of
from wal_sink_backends.common.columns import array_of, stored_type, texts_of
from wal_sink_backends.sql.base.dialect import (
    DELETED_COLUMNS,
    LEDGER,
    LEDGER_COLUMNS,
    Connection,
    Dialect,
    Look,
    Replacing,
    entry_in,
    ledger_values,
)
from wal_sink_backends.sql.base.values import Dropped, Kind, Rows, json_texts, kind_of
from wal_sink_backends.sql.sqlite_rows import RowWriter, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wal_sink.sinks.ledger import LedgerEntry
    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Put

_logger = logger_of(__name__)
_MAY_PASS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes that may pass: https://www.sqlite.org/rescode.html"""
_ABOUT_ROWS = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
"""Codes about single rows: a constraint or a trigger, a rowid that is no number, a text above SQLite's limit."""
_UNFIT = (OverflowError, UnicodeEncodeError)
"""Errors of Python's driver for a value that it cannot pass on."""

_SWITCH_ATTEMPTS = 20
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TYPE_NAMES: dict[Kind, str] = {"integer": "INTEGER", "number": "REAL", "boolean": "BOOLEAN", "binary": "BLOB"}
_FITTING: dict[Kind, frozenset[str]] = {
    "integer": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "number": frozenset({"REAL", "NUMERIC", "BLOB"}),
    "boolean": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "moment": frozenset({"TEXT", "NUMERIC", "BLOB"}),
    "binary": frozenset({"BLOB"}),
    "void": frozenset({"INTEGER", "REAL", "TEXT", "NUMERIC", "BLOB"}),
}
"""Affinities that keep a value: in a numeric column, text loses leading zeros and a decimal loses digits."""

_AFFINITIES = {"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"} | dict.fromkeys(
    ("REAL", "FLOA", "DOUB"), "REAL"
)

_DEFINITIONS = """
    SELECT name, type, sql FROM sqlite_master WHERE lower(name) IN (lower(?), lower(?)) AND type IN ('table', 'view')
"""
_NEEDED = """SELECT name FROM pragma_table_info(?) WHERE "notnull" AND dflt_value IS NULL AND NOT pk"""
_COLLATIONS = """
    SELECT x.name, x.coll FROM pragma_index_list(?) AS l JOIN pragma_index_xinfo(l.name) AS x
    WHERE l."unique" AND x.key AND x.name IS NOT NULL
"""
"""Columns of unique indexes. A table tells the collation of a column in its statement only."""
_REPLACES = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)
_NO_WORDS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts, names and comments of a definition."""


@dataclass(frozen=True, slots=True)
class Sqlite(Dialect):
    """SQLite through the standard library's driver. `path` is absolute, `host` is the machine that has the file."""

    path: str
    host: str
    busy_timeout_s: float
    creates_in_transaction = True
    most_writers = 1
    same = "IS"
    slots_at_once = 500  # versions before 3.32 take 999 parameters: https://www.sqlite.org/limits.html

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"sqlite:///{self.path}"

    # The driver's errors.

    def driver_error(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, *_UNFIT)

    def passes(self, error: Exception) -> bool:
        return _code_of(error) in _MAY_PASS

    def refuses_rows(self, error: Exception) -> bool:
        return isinstance(error, _UNFIT) or _code_of(error) in _ABOUT_ROWS

    def may_refuse_a_row(self, error: Exception) -> bool:
        """Whether an expression of the table failed, such as `json(x)` in a CHECK. No other code is a row's."""
        return _code_of(error) == sqlite3.SQLITE_ERROR

    def shown(self, error: Exception) -> str:
        return f"SQLite cannot hold a value: {error}" if isinstance(error, _UNFIT) else str(error)

    def told(self, error: Exception) -> str:
        return f"{self.shown(error)}; change the table or the rows"

    # Connections.

    def connect(self) -> Connection:
        if socket.gethostname() != self.host:
            raise PermanentError(
                f"{self.address} is a file on the machine {self.host!r}, but the sink runs on "
                f"{socket.gethostname()!r}: "
                'pass where="driver" to the Delivery'
            )
        if not Path(self.path).parent.is_dir():
            raise PermanentError(f"{self.address}: the folder {Path(self.path).parent} does not exist. Create it")
        with self.translated(f"opening {self.address}"):
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,  # one thread at a time uses a sink, but another one may close it
            )
            try:
                self._use_journal(connection)
                self._enforce_foreign_keys(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def connect_to_look(self) -> Connection | None:
        """A connection that runs no statement that writes, or None for a file that does not exist.

        `connect` would create it. The file is opened for writing all the same: only such a connection undoes a
        transaction in which a process was killed, and until then nothing can be read (SQLITE_READONLY_ROLLBACK).
        """
        if not Path(self.path).exists():
            if not os.access(Path(self.path).parent, os.W_OK | os.X_OK):
                raise PermanentError(
                    f"{self.address}: the folder {Path(self.path).parent} does not exist, or this user may not write "
                    "there. Create it, or give this user the right"
                )
            return None
        with self.translated(f"opening {self.address}"):
            connection = sqlite3.connect(
                f"file:{quote(self.path)}?mode=rw", uri=True, timeout=self.busy_timeout_s, isolation_level=None
            )
            connection.execute("PRAGMA query_only = ON")
        return connection

    def is_usable(self, connection: Connection) -> bool:  # noqa: ARG002 - a file cannot be disconnected
        return True

    def _enforce_foreign_keys(self, connection: Connection) -> None:
        """Turn on foreign keys, which SQLite checks only on request, and only if it was built with them."""
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA foreign_keys").fetchone() != (1,):
            _logger.warning(
                "%s: this SQLite was built without foreign keys, so it does not check foreign keys", self.address
            )

    def _use_journal(self, connection: Connection) -> None:
        """Switch an empty file to a write-ahead log. A file with tables keeps its mode, which all its users share.

        EXTRA makes a commit as durable there, by one more sync: https://www.sqlite.org/pragma.html#pragma_synchronous.
        SQLite does not wait if two processes switch at the same time.
        """
        for attempt in range(_SWITCH_ATTEMPTS):
            if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                connection.execute("PRAGMA synchronous = FULL")
                return
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                connection.execute("PRAGMA synchronous = EXTRA")
                return
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _SWITCH_ATTEMPTS - 1:
                    raise
                with self.transaction(connection):  # waits until the other process has switched
                    pass

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")  # takes the one write lock before the ledger is read
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    # The ledger.

    def make_ledger(self, connection: Connection, table: str) -> None:  # noqa: ARG002
        if self.columns(connection, LEDGER):
            return
        with self.transaction(connection):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {LEDGER} (slot TEXT NOT NULL PRIMARY KEY, term INTEGER NOT NULL, "
                "batch_id INTEGER NOT NULL, segment_id TEXT NOT NULL, rows INTEGER NOT NULL)"
            )

    def stored(self, connection: Connection, slots: Sequence[str]) -> dict[str, LedgerEntry]:
        marks = ", ".join("?" for _ in slots)
        query = f"SELECT {', '.join(LEDGER_COLUMNS)} FROM {LEDGER} WHERE slot IN ({marks})"  # noqa: S608 - constants
        return {row[0]: entry_in(row, slots) for row in connection.execute(query, tuple(slots)).fetchall()}

    def lock(self, connection: Connection, slot: str, term: int) -> LedgerEntry | None:  # noqa: ARG002
        """The entry of the slot. The transaction already holds the only lock."""
        return self.stored(connection, [slot]).get(slot)

    def move_ledger(self, connection: Connection, entry: LedgerEntry) -> None:
        writer = RowWriter(self, connection, LEDGER, LEDGER_COLUMNS, Replacing(("slot",)))
        if (count := writer.upsert(ledger_values(entry))) != 1:  # a trigger may drop it
            raise PermanentError(f"slot {entry.position.slot!r} of {LEDGER}: {count} rows moved, expected 1")

    # The target table.

    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        with closing(connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))) as found:
            return {self.fold(name): declared for name, declared in found}

    def look(self, connection: Connection, table: str) -> Look:
        """The table and the ledger. The transaction holds the only write lock, so both stay unaltered until its end."""
        with closing(connection.execute(_DEFINITIONS, (table, LEDGER))) as found:
            rows = found.fetchall()
        problems = (problem for row in rows if (problem := _problem(*row)))
        return Look(repr(rows), next(problems, None))

    def check_table(self, connection: Connection, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:  # noqa: ARG002
        """Warn of a table that replaces rows or NULLs. A missing index shows when an upsert needs it."""
        given = {self.fold(name) for name in columns}
        if missing := [name for (name,) in connection.execute(_NEEDED, (table,)) if self.fold(name) not in given]:
            return self.needs_value(missing[0], table)
        with closing(connection.execute(_DEFINITIONS, (table, table))) as found:
            definitions = [definition for _, _, definition in found]
        if any(_REPLACES.search(_NO_WORDS.sub(" ", definition)) for definition in definitions):
            _logger.warning(
                "table %r of %s is made with ON CONFLICT REPLACE: a row deletes every other row that it collides with "
                "(delivered rows too), and a NULL becomes the default, both without an error. With ABORT, such a row "
                "is refused and named",
                table,
                self.address,
            )
        return None

    def replaces_nulls(self, connection: Connection, table: str) -> frozenset[str]:
        """The column of an `INTEGER PRIMARY KEY`, which is another name of the rowid: https://www.sqlite.org/lang_createtable.html#rowid"""
        with closing(connection.execute("SELECT name, type FROM pragma_table_info(?) WHERE pk", (table,))) as found:
            key = found.fetchall()
        return frozenset(self.fold(name) for name, declared in key if len(key) == 1 and declared.upper() == "INTEGER")

    def create_table(self, connection: Connection, table: str, statement: str) -> None:  # noqa: ARG002 - the statement names the table
        connection.execute(statement)

    def adding(self, table: str, columns: Mapping[str, ArrowType]) -> list[str]:
        """One statement for each column: SQLite takes no more."""
        return [one for name, kind in columns.items() for one in Dialect.adding(self, table, {name: kind})]

    def add_columns(self, connection: Connection, table: str, columns: Mapping[str, ArrowType]) -> None:
        """Add the columns in a transaction, which holds the only write lock. Nobody waits for a waiting one."""
        with self.transaction(connection):
            there = self.columns(connection, table)
            lacking = {name: kind for name, kind in columns.items() if self.fold(name) not in there}
            for statement in self.adding(table, lacking):
                connection.execute(statement)

    def encode(self, connection: Connection, table: pa.Table, key: Sequence[str], declared: object) -> Rows:  # noqa: ARG002
        return Rows.of(table, key, _values, lambda columns: list(zip(*columns, strict=True)))

    def putting(self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        writer = RowWriter(self, connection, table, columns, replacing)
        return self._put(connection, table, each(writer.replacing()) if replacing.key else writer.insert)

    def _put(self, connection: Connection, table: str, write: Callable[[Sequence[Any]], int]) -> Put:
        """A function from one that writes rows, and returns how many of them the table has."""

        def put(rows: Sequence[Any]) -> Dropped | None:
            try:
                kept = write(rows)
            except sqlite3.IntegrityError as error:
                if not connection.in_transaction:  # further rows would be committed one by one
                    raise PermanentError(
                        f"table {table!r}: {error}. This error rolls back the whole transaction (ON CONFLICT ROLLBACK, "
                        "or RAISE(ROLLBACK) of a trigger). Change ROLLBACK to ABORT"
                    ) from error
                raise
            return None if kept == len(rows) else Dropped(len(rows), kept)

        return put

    def remembering(self, connection: Connection, table: str, deleted: str, replacing: Replacing) -> Sequence[str]:
        types, named = self.columns(connection, table), self.quote(deleted)
        collations = {self.fold(name): its for name, its in connection.execute(_COLLATIONS, (table,))}
        parts = [
            f"{self.quote(name)} {types[self.fold(name)]} COLLATE {collations.get(self.fold(name), 'BINARY')} NOT NULL"
            for name in (*replacing.key, *replacing.newer_by)
        ]
        batch, wal = DELETED_COLUMNS
        parts += [f"{batch} INTEGER NOT NULL", f"{wal} TEXT NOT NULL", f"PRIMARY KEY ({self.listed(replacing.key)})"]
        return (
            f"CREATE TABLE IF NOT EXISTS {named} ({', '.join(parts)})",
            f"CREATE INDEX IF NOT EXISTS {self.quote(f'{deleted}_batch')} ON {named} ({batch})",
        )

    def deleting(self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        writer = RowWriter(self, connection, table, columns, replacing)
        return self._put(connection, table, each(writer.deleting()))

    def marking(
        self, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing, marks: Sequence[str]
    ) -> Put:
        writer = RowWriter(self, connection, table, columns, replacing)
        return self._put(connection, table, each(writer.marking(marks)))

    def tells_age(self, kind: ArrowType) -> bool:
        """Whether the values of a type keep their order.

        Decimals and durations are texts here. Moments are texts of one length only in microseconds and in years of four
        digits.
        """
        known = stored_type(kind)
        if kind_of(kind) == "moment":
            return bool(pa.types.is_date(known) or (pa.types.is_timestamp(known) and known.unit == "us"))
        return kind_of(kind) in {"integer", "number"}

    def refuse_ageless(self, column: Any, name: str, refused: dict[int, str]) -> None:
        if kind_of(column.type) != "moment":
            return
        for row, text in enumerate(plain_values(column, name)):
            if text and not text[0].isdecimal():
                refused.setdefault(row, f"newer_by column {name!r} is beyond the years 0000 to 9999: {text}")

    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:  # noqa: ARG002
        return _TYPE_NAMES.get(kind_of(kind), "TEXT")

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return _affinity(declared) in _FITTING.get(kind_of(kind), frozenset({"TEXT", "BLOB"}))

    # Names.

    def fold(self, name: str) -> str:
        """Fold the letters of ASCII only, as SQLite does: `Ä` and `ä` are two columns."""
        return name.translate(_LOWER)


def _problem(name: str, kind: str, definition: str) -> str | None:
    """Why a table is refused: the module of a virtual table may keep rows anywhere, and a view keeps none."""
    if kind != "table":
        return f"{name} is a {kind}, and a {kind} keeps no rows; expected a table"
    if definition.lstrip().upper().startswith("CREATE VIRTUAL"):
        return f"{name} is a virtual table, and such a table may keep rows outside of the transaction; expected a table"
    return None


def _code_of(error: Exception) -> int:
    """The primary result code."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _affinity(declared: str) -> str:
    """The affinity of a declared type: https://www.sqlite.org/datatype3.html#determination_of_column_affinity"""
    if not declared:
        return "BLOB"
    return next((affinity for word, affinity in _AFFINITIES.items() if word in declared.upper()), "NUMERIC")


def _values(column: Any, name: str, refused: dict[int, str]) -> list[Any]:
    kind = kind_of(column.type)
    if kind == "text":
        return texts_of(array_of(column), name, refused)
    if kind == "decimal":
        return [text for chunk in column.chunks for text in decimal_texts(chunk)]
    if kind == "nested":
        return json_texts(column, name)
    values = plain_values(column, name)
    if kind == "number" and str in set(map(type, values)):
        infinite = {"Infinity": math.inf, "-Infinity": -math.inf}
        return [infinite.get(value, value) for value in values]
    return values

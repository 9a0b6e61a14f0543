"""All that `SqlSink` needs to know of a database and its driver, and that for SQLite."""

from __future__ import annotations

import socket
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.stores.spec import mask_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LEDGER = "wal_sink_ledger"
Kind: TypeAlias = Literal["integer", "number", "boolean", "text", "decimal", "moment", "binary", "nested"]
"""What the sink tells apart in a column; `moment` is a date, time or duration as ISO 8601 text."""
Connection: TypeAlias = Any
"""A driver's connection: `execute`, `executemany`, `close`."""


class Dialect(ABC):
    """All that differs between databases: driver, placeholders, types, errors. Plain data, pickled with the sink."""

    address: str
    """For messages; never with a password."""
    mark: str
    """The placeholder of a value."""

    @abstractmethod
    def connect(self) -> Connection:
        """A new connection that commits nothing by itself."""

    @abstractmethod
    def make_ledger(self, connection: Connection) -> None:
        """Create the ledger if it is missing; safe when several processes do so at once."""

    @abstractmethod
    def transaction(self, connection: Connection) -> Any:
        """A context: a transaction that holds off other writers of the slot, committed at its end, else rolled back."""

    @abstractmethod
    def translated(self, what: str) -> Any:
        """A context in which the driver's errors become `PermanentError`, or pass if a retry may help."""

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        """Declared types by folded column name; empty if there is no such table."""

    @abstractmethod
    def type_name(self, kind: Kind) -> str: ...

    @abstractmethod
    def fits(self, kind: Kind, declared: str) -> bool:
        """Whether a column of a declared type keeps values of this kind as they are."""

    def fold(self, name: str) -> str:
        """Names that fold to the same are the same column."""
        return name

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def create(self, table: str, columns: dict[str, Kind], key: Sequence[str]) -> str:
        """The statement that creates a table."""
        parts = [
            f"{self.quote(name)} {self.type_name(kind)}{' NOT NULL' if name in key else ''}"
            for name, kind in columns.items()
        ]
        if key:
            parts.append(f"PRIMARY KEY ({self._listed(key)})")
        return f"CREATE TABLE {self.quote(table)} ({', '.join(parts)})"

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        """The statement that inserts a row, replacing the one with the same key if there are key columns."""
        marks = ", ".join(self.mark for _ in columns)
        insert = f"INSERT INTO {self.quote(table)} ({self._listed(columns)}) VALUES ({marks})"  # noqa: S608 - quoted
        if not key:
            return insert
        updates = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in columns if name not in key)
        return f"{insert} ON CONFLICT ({self._listed(key)}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"

    def _listed(self, names: Iterable[str]) -> str:
        return ", ".join(self.quote(name) for name in names)


# SQLite.

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
"""Primary result codes another attempt may not meet: https://www.sqlite.org/rescode.html"""

_SWITCH_ATTEMPTS = 20
_TYPE_NAMES: dict[Kind, str] = {"integer": "INTEGER", "number": "REAL", "boolean": "BOOLEAN", "binary": "BLOB"}
_FITTING: dict[Kind, frozenset[str]] = {
    "integer": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "number": frozenset({"REAL", "NUMERIC", "BLOB"}),
    "boolean": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "moment": frozenset({"TEXT", "NUMERIC", "BLOB"}),
    "binary": frozenset({"BLOB"}),
}
"""Affinities that keep a value: text in a numeric column loses leading zeros, a decimal its digits."""

_AFFINITIES = {"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"} | dict.fromkeys(
    ("REAL", "FLOA", "DOUB"), "REAL"
)


@dataclass(frozen=True, slots=True)
class Sqlite(Dialect):
    """SQLite through the standard library's driver. `path` is absolute, `host` the machine that has the file."""

    path: str
    host: str
    busy_timeout_s: float
    mark = "?"

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"sqlite:///{self.path}"

    def connect(self) -> Connection:
        if socket.gethostname() != self.host:
            raise PermanentError(
                f"{self.address} is a file of the machine {self.host!r}, this is {socket.gethostname()!r}: "
                'pass where="driver" to the Delivery'
            )
        if not Path(self.path).parent.is_dir():
            raise PermanentError(f"{self.address}: there is no folder {Path(self.path).parent}; create it")
        with self.translated(f"opening {self.address}"):
            connection = sqlite3.connect(self.path, timeout=self.busy_timeout_s, isolation_level=None)
            connection.execute("PRAGMA synchronous = FULL")
            self._use_write_ahead_log(connection)
        return connection

    def _use_write_ahead_log(self, connection: Connection) -> None:
        """Switch the file over, once and for all. SQLite does not wait when two processes do so at the same moment."""
        for attempt in range(_SWITCH_ATTEMPTS):
            if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                return
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _SWITCH_ATTEMPTS - 1:
                    raise
                with self.transaction(connection):  # waits until the other one has done
                    pass

    def make_ledger(self, connection: Connection) -> None:
        if self.columns(connection, LEDGER):
            return
        with self.transaction(connection):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {LEDGER} (slot TEXT NOT NULL PRIMARY KEY, term INTEGER NOT NULL, "
                "batch_id INTEGER NOT NULL, segment_id TEXT NOT NULL, rows INTEGER NOT NULL)"
            )

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")  # takes the one write lock before the ledger is read
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _MAY_PASS:
                raise
            raise PermanentError(f"{what}: {error}; change the table or the rows") from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise PermanentError(f"{what}: SQLite cannot hold a value: {error}; cast the column to a string") from error

    def columns(self, connection: Connection, table: str) -> dict[str, str]:
        with closing(connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))) as found:
            return {self.fold(name): declared for name, declared in found}

    def type_name(self, kind: Kind) -> str:
        return _TYPE_NAMES.get(kind, "TEXT")

    def fits(self, kind: Kind, declared: str) -> bool:
        return _affinity(declared) in _FITTING.get(kind, frozenset({"TEXT", "BLOB"}))

    def fold(self, name: str) -> str:
        return name.lower()


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type: https://www.sqlite.org/datatype3.html#determination_of_column_affinity"""
    if not declared:
        return "BLOB"
    return next((affinity for word, affinity in _AFFINITIES.items() if word in declared.upper()), "NUMERIC")


def dialect_of(url: str, busy_timeout_s: float) -> Dialect:
    """The dialect for a URL, which is not shown in messages: it may hold a password."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        raise ConfigError(
            f"SqlSink cannot reach {scheme!r} databases yet: expected sqlite:///file.db or sqlite:////folder/file.db"
        )
    path = rest.removeprefix("/")
    if rest == path or path in ("", ":memory:") or "?" in path:
        raise ConfigError(
            f"{mask_url(url)}: expected sqlite:///relative.db or sqlite:////absolute.db, a file without options"
        )
    if not busy_timeout_s > 0:
        raise ConfigError(f"busy_timeout_s={busy_timeout_s!r}: expected a number of seconds above 0")
    return Sqlite(str(Path(path).absolute()), socket.gethostname(), busy_timeout_s)

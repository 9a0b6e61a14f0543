"""MariaDB and MySQL for `SqlSink`, by PyMySQL: InnoDB tables, the ledger's row locked in the rows' transaction."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wal_sink.chunk import Position
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.ledger import LedgerEntry
from wal_sink_backends.sql_dialects import LEDGER, LEDGER_COLUMNS, Dialect, Limits, refused_rows
from wal_sink_backends.sql_mariadb_session import Session, driver, number_of, passes, refuses_rows
from wal_sink_backends.sql_mariadb_types import fits, type_name, value_lists

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from wal_sink_backends.sql_addresses import Address
    from wal_sink_backends.sql_values import ArrowType, Rows

_DEFAULT_PORT = 3306
_GRACE_S = 5.0
"""The server ends a statement by itself; if it does not, the connection is given up so much later."""
_STATEMENT_BYTES = 1 << 20
_DENIED = frozenset({1044, 1142, 1227, 1370})
_COLUMNS = """
    SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""
_REPLACING_NULLS = """
    SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND (extra LIKE '%%auto_increment%%' OR (data_type = 'timestamp' AND is_nullable = 'NO'))
"""
"""NULL becomes the next number; in a TIMESTAMP the present time, unless `explicit_defaults_for_timestamp` is on."""
_ENGINE = """
    SELECT t.engine, e.transactions FROM information_schema.tables t LEFT JOIN information_schema.engines e
    ON e.engine = t.engine WHERE t.table_schema = %s AND t.table_name = %s
"""
_MANDATORY = """
    SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%'
    AND extra NOT LIKE '%%GENERATED%%' ORDER BY ordinal_position
"""
_UNIQUE = """
    SELECT s.index_name, s.column_name, s.sub_part, c.extra FROM information_schema.statistics s
    JOIN information_schema.columns c USING (table_schema, table_name, column_name)
    WHERE s.table_schema = %s AND s.table_name = %s AND s.non_unique = 0
"""


@dataclass(frozen=True, slots=True)
class Mariadb(Dialect):
    """MariaDB from version 10.5 on, or MySQL from 8.0 on."""

    at: Address
    limits: Limits
    longest_name = 64 * 4
    """The limit is 64 characters: the server itself refuses what is longer by these."""

    def __post_init__(self) -> None:
        driver()
        if self.at.schema is not None and ("\0" in self.at.schema or not self.at.schema):
            raise ConfigError(f"schema={self.at.schema!r}: expected the name of a database")

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"{self.at}/{self.at.schema}" if self.at.schema else str(self.at)

    # Connections.

    def connect(self) -> Session:
        pymysql = driver()
        try:
            return Session(pymysql.connect(**self._parameters()), self.limits)
        except pymysql.MySQLError as error:
            if passes(error):
                raise
            raise PermanentError(f"opening {self.address}: {_shown(error)}") from error

    def _parameters(self) -> dict[str, Any]:
        at, limit_s = self.at, self.limits.statement_timeout_s + _GRACE_S
        password = at.password
        if at.password_env is not None:
            if at.password_env not in os.environ:
                raise PermanentError(
                    f"{self.address}: the environment variable {at.password_env} is not set where the sink runs; set it"
                )
            password = os.environ[at.password_env]
        host, port = at.hosts[0] if at.hosts else (None, None)
        given = {"host": host, "port": port, "user": at.user, "password": password, **at.options}
        if "read_default_file" not in at.options:
            given["port"] = port or _DEFAULT_PORT
        return {
            **{name: value for name, value in given.items() if value},
            "database": at.database,
            **({"ssl_verify_cert": True, "ssl_verify_identity": True} if "ssl_ca" in at.options else {}),
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": max(1, round(self.limits.connect_timeout_s)),
            "read_timeout": limit_s,
            "write_timeout": limit_s,
        }

    def is_usable(self, connection: Session) -> bool:
        return connection.usable

    @contextmanager
    def transaction(self, connection: Session) -> Iterator[None]:
        connection.execute("START TRANSACTION")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            connection.roll_back()
            raise

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        pymysql = driver()
        try:
            yield
        except pymysql.MySQLError as error:
            if passes(error):
                raise
            raise PermanentError(f"{what}: {_shown(error)}") from error

    # The ledger.

    def make_ledger(self, connection: Session) -> None:
        """The DDL that stands in `docs/sinks/sql.md`."""
        if self.columns(connection, LEDGER):
            return
        ascii_only = "CHARACTER SET ascii COLLATE ascii_bin"
        ddl = (
            f"CREATE TABLE IF NOT EXISTS {self._named(LEDGER)} (slot VARCHAR(190) {ascii_only} PRIMARY KEY, "
            f"term BIGINT NOT NULL, batch_id BIGINT NOT NULL, segment_id VARCHAR(64) {ascii_only} NOT NULL, "
            "`rows` BIGINT NOT NULL) ENGINE=InnoDB"
        )
        try:
            connection.execute(ddl)
        except driver().MySQLError as error:
            if number_of(error) not in _DENIED:
                raise
            raise PermanentError(
                f"{self.address}: there is no ledger yet, and this user may not make it: {_shown(error)}. Let one who "
                f"may run: {ddl}; GRANT SELECT, INSERT, UPDATE ON {self._named(LEDGER)} TO this user"
            ) from error

    def stored(self, connection: Session, slot: str) -> LedgerEntry | None:
        return self._read(connection, slot, "")

    def lock(self, connection: Session, slot: str, term: int) -> LedgerEntry | None:  # noqa: ARG002 - not compared here
        """Lock the slot's row. Where there is none, an empty one is inserted first, for which all others wait: it never
        outlives the transaction as it is.
        """
        if (row := self._read(connection, slot, " FOR UPDATE")) is not None:
            return row
        connection.execute(
            f"INSERT INTO {self._in_query(LEDGER)} ({self.listed(LEDGER_COLUMNS)}) "  # noqa: S608 - quoted
            "VALUES (%s, 0, -1, '', 0) ON DUPLICATE KEY UPDATE slot = slot",
            (slot,),
        )
        return self._read(connection, slot, " FOR UPDATE")

    def move_ledger(self, connection: Session, row: LedgerEntry) -> None:
        at = row.position
        connection.execute(
            f"UPDATE {self._in_query(LEDGER)} SET term = %s, batch_id = %s, segment_id = %s, "  # noqa: S608 - quoted
            "`rows` = %s WHERE slot = %s",
            (row.term, at.batch_id, at.segment_id, at.rows, at.slot),
        )

    def _read(self, connection: Session, slot: str, how: str) -> LedgerEntry | None:
        query = f"SELECT term, batch_id, `rows`, segment_id FROM {self._in_query(LEDGER)} WHERE slot = %s{how}"  # noqa: S608
        found = connection.execute(query, (slot,))
        return None if not found or found[0][1] < 0 else LedgerEntry(found[0][0], Position(slot, *found[0][1:]))

    # The target table.

    def columns(self, connection: Session, table: str) -> dict[str, str]:
        found = connection.execute(_COLUMNS, (self._database, table))
        return {self.fold(name): str(declared) for name, declared in found}

    def check_table(self, connection: Session, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:
        for name in (table, LEDGER):
            engine, transactions = (*connection.execute(_ENGINE, (self._database, name)), (None, None))[0]
            if transactions != "YES":
                what = "is a view" if engine is None else f"is kept by {engine}"
                return f"{name} {what}, which has no transactions; expected a table with ENGINE=InnoDB"
        given = {self.fold(name) for name in columns}
        for (column,) in connection.execute(_MANDATORY, (self._database, table)):
            if self.fold(column) not in given:
                return f"column {column!r} needs a value and has no default; select it, or give it one"
        return self._check_key(connection, table, given, {self.fold(name) for name in key}) if key else None

    def _check_key(self, connection: Session, table: str, given: set[str], key: set[str]) -> str | None:
        """A row is replaced whichever unique index it meets: only the key's may be met."""
        indexes: dict[str, set[str]] = {}
        safe = set()
        for index, column, cut, extra in connection.execute(_UNIQUE, (self._database, table)):
            indexes.setdefault(index, set()).add(self.fold(column) if cut is None else f"a part of {column}")
            if "auto_increment" in extra and self.fold(column) not in given:
                safe.add(index)
        if key not in indexes.values():
            return f"upsert needs a primary key or unique index of {sorted(key)}; found {sorted(indexes) or 'none'}"
        others = sorted(index for index, its in indexes.items() if its != key and index not in safe)
        if others:
            return f"unique index {others[0]!r} is not that of the key, and MariaDB would replace the rows it finds too"
        return None

    def replaces_nulls(self, connection: Session, table: str) -> frozenset[str]:
        found = connection.execute(_REPLACING_NULLS, (self._database, table))
        return frozenset(self.fold(name) for (name,) in found)

    def create(self, table: str, columns: Mapping[str, ArrowType], key: Sequence[str]) -> str:
        parts = [
            f"{self.quote(name)} {type_name(kind, key=name in key)}{' NOT NULL' if name in key else ''}"
            for name, kind in columns.items()
        ]
        primary = [f"PRIMARY KEY ({self.listed(key)})"] if key else []
        columns_and_key = ", ".join([*parts, *primary])
        return (
            f"CREATE TABLE IF NOT EXISTS {self._named(table)} ({columns_and_key}) ENGINE=InnoDB CHARACTER SET utf8mb4"
        )

    def create_table(self, connection: Session, table: str, statement: str) -> None:  # noqa: ARG002 - it is in it
        """With texts that are equal only byte by byte: whoever wants others makes the table."""
        collation = "utf8mb4_nopad_bin" if connection.is_mariadb else "utf8mb4_0900_bin"
        connection.execute(f"{statement} COLLATE {collation}")

    def type_name(self, kind: ArrowType) -> str:
        return type_name(kind)

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return fits(kind, declared)

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str]) -> Rows:
        return value_lists(table, key, connection.quoted)

    def insert(self, connection: Session, table: str, rows: Rows, key: Sequence[str]) -> Mapping[int, str]:
        head = f"INSERT INTO {self._named(table)} ({self.listed(rows.columns)}) VALUES "  # noqa: S608 - quoted
        tail = self._replacing(rows.columns, key) if key else ""
        room = connection.longest_statement - len(head.encode()) - len(tail.encode())
        pymysql = driver()

        def attempt(first: int, end: int) -> str | None:
            connection.execute("SAVEPOINT wal_sink_rows")
            try:
                for values in _statements(rows.values[first:end], min(_STATEMENT_BYTES, room)):
                    if len(values.encode()) > room:
                        reason = f"row of {len(values)} characters: the server's max_allowed_packet is too small"
                        break
                    connection.execute(head + values + tail)
                else:
                    return None
            except pymysql.MySQLError as error:
                if not refuses_rows(error):
                    raise
                reason = _shown(error)
            connection.execute("ROLLBACK TO SAVEPOINT wal_sink_rows")
            return reason

        return refused_rows(rows.numbers, attempt)

    def _replacing(self, columns: Sequence[str], key: Sequence[str]) -> str:
        updates = [f"{self.quote(name)} = VALUES({self.quote(name)})" for name in columns if name not in key]
        same = f"{self.quote(key[0])} = {self.quote(key[0])}"
        return f" ON DUPLICATE KEY UPDATE {', '.join(updates) or same}"

    # Names.

    def fold(self, name: str) -> str:
        return name.lower()

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    @property
    def _database(self) -> str:
        return self.at.schema or self.at.database

    def _named(self, table: str) -> str:
        return f"{self.quote(self._database)}.{self.quote(table)}"

    def _in_query(self, table: str) -> str:
        """The same in a statement with placeholders."""
        return self._named(table).replace("%", "%%")


def _statements(rows: Sequence[str], most: int) -> Iterator[str]:
    """Rows joined to the values of one statement each, as many as fit."""
    joined: list[str] = []
    size = 0
    for row in rows:
        length = len(row.encode()) + 1
        if joined and size + length > most:
            yield ",".join(joined)
            joined, size = [], 0
        joined.append(row)
        size += length
    if joined:
        yield ",".join(joined)


def _shown(error: BaseException) -> str:
    return f"{error.args[1] if len(error.args) > 1 else error} (error {number_of(error)})"

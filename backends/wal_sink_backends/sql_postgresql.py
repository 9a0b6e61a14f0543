"""PostgreSQL for `SqlSink`, by psycopg 3: rows by COPY, the ledger's row locked in their transaction."""

from __future__ import annotations

import os
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wal_sink.chunk import Position
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.ledger import LedgerEntry
from wal_sink_backends.sql_dialects import LEDGER, LEDGER_COLUMNS, Dialect, Limits, refused_rows
from wal_sink_backends.sql_postgresql_session import Session, connection_class, driver, passes, refuses_rows, refuses_us
from wal_sink_backends.sql_postgresql_types import copy_rows, fits, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from wal_sink_backends.sql_addresses import Address
    from wal_sink_backends.sql_values import ArrowType, Rows

_CREATION_LOCK = 0x77616C73
"""Of transactions that create a table: IF NOT EXISTS alone fails for one of two at the same moment."""
_COLUMNS = """
    SELECT a.attname, CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
                      ELSE format_type(a.atttypid, a.atttypmod) END
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_TABLE = """
    SELECT c.relpersistence,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND NOT a.atthasdef
                       AND a.attidentity = '' AND NOT a.attname = ANY(%s) ORDER BY a.attnum)
    FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_EVICT = """
    SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
    AND l.classid = (%s::bigint & 4294967295)::oid AND l.objid::bigint <= %s
"""


@dataclass(frozen=True, slots=True)
class Postgresql(Dialect):
    """PostgreSQL from version 12 on, or behind a PgBouncer that pools transactions."""

    at: Address
    limits: Limits
    longest_name = 63

    def __post_init__(self) -> None:
        driver()
        if self.at.schema is not None and ("\0" in self.at.schema or not self.at.schema):
            raise ConfigError(f"schema={self.at.schema!r}: expected the name of a schema")

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"{self.at}/{self.at.schema}" if self.at.schema else str(self.at)

    # Connections.

    def connect(self) -> Session:
        psycopg = driver()
        try:
            connection = connection_class().connect(**self._parameters())
        except psycopg.Error as error:
            if refuses_us(error):
                raise PermanentError(f"opening {self.address}: {str(error).strip()}") from error
            raise
        return Session(connection, self.limits)

    def _parameters(self) -> dict[str, Any]:
        at, seconds = self.at, self.limits.statement_timeout_s
        given = {
            "host": ",".join(host for host, _ in at.hosts),
            "port": ",".join(str(port or "") for _, port in at.hosts) if any(port for _, port in at.hosts) else "",
            "dbname": at.database,
            "user": at.user,
            "password": at.password,
            "application_name": "wal-sink",
            "target_session_attrs": "read-write",  # after a failover an old address may lead to a standby
            **at.options,
        }
        if at.password_env is not None:
            if at.password_env not in os.environ:
                raise PermanentError(
                    f"{self.address}: the environment variable {at.password_env} is not set where the sink runs; set it"
                )
            given["password"] = os.environ[at.password_env]
        return {
            **{name: value for name, value in given.items() if value},
            "autocommit": True,
            "prepare_threshold": None,  # what was prepared is gone when a pooler changes the connection
            "client_encoding": "utf8",
            "connect_timeout": max(2, round(self.limits.connect_timeout_s)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": round(seconds * 1000),
        }

    def is_usable(self, connection: Session) -> bool:
        return connection.usable

    @contextmanager
    def transaction(self, connection: Session) -> Iterator[None]:
        """READ COMMITTED: what waited for the ledger's row then sees what the other transaction made of it."""
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            connection.roll_back()
            raise

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        psycopg = driver()
        try:
            yield
        except psycopg.Error as error:
            if passes(error):
                raise
            raise PermanentError(f"{what}: {_shown(error)} (SQLSTATE {error.sqlstate})") from error

    # The ledger.

    def make_ledger(self, connection: Session) -> None:
        """The DDL that stands in `docs/sinks/sql.md`."""
        if self.columns(connection, LEDGER):
            return
        ddl = (
            f'CREATE TABLE IF NOT EXISTS {self._named(LEDGER)} (slot text COLLATE "C" PRIMARY KEY, '
            "term bigint NOT NULL, batch_id bigint NOT NULL, segment_id text NOT NULL, rows bigint NOT NULL)"
        )
        psycopg = driver()
        try:
            self.create_table(connection, LEDGER, ddl)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
            raise PermanentError(
                f"{self.address}: there is no ledger yet, and this user may not make it: {_shown(error)}. Let one who "
                f"may run: {ddl}; GRANT SELECT, INSERT, UPDATE ON {self._named(LEDGER)} TO this user"
            ) from error

    def stored(self, connection: Session, slot: str) -> LedgerEntry | None:
        return self._read(connection, slot, "")

    def lock(self, connection: Session, slot: str, term: int) -> LedgerEntry | None:
        """Lock the slot's row. A process that stands still in the middle of its COPY keeps it for ever, since no time
        limit of the server counts there: whoever waited in vain ends the transactions of this and of lower terms.
        """
        mark = (zlib.crc32(slot.encode()) - (1 << 31), term % (1 << 31))
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", mark)  # to be seen by, no one waits for it
        psycopg = driver()
        try:
            return self._lock(connection, slot)
        except psycopg.errors.LockNotAvailable:
            connection.roll_back()
            with suppress(psycopg.errors.InsufficientPrivilege):  # the other one is of another role
                connection.execute(_EVICT, mark)
            raise

    def _lock(self, connection: Session, slot: str) -> LedgerEntry | None:
        """Where the ledger has no row, an empty one is inserted first, for which all others wait: it never outlives the
        transaction as it is.
        """
        if (row := self._read(connection, slot, " FOR UPDATE")) is not None:
            return row
        connection.execute(
            f"INSERT INTO {self._in_query(LEDGER)} ({self.listed(LEDGER_COLUMNS)}) "  # noqa: S608 - quoted
            "VALUES (%s, 0, -1, '', 0) ON CONFLICT (slot) DO NOTHING",
            (slot,),
        )
        return self._read(connection, slot, " FOR UPDATE")

    def move_ledger(self, connection: Session, row: LedgerEntry) -> None:
        at = row.position
        moved = connection.execute(
            f"UPDATE {self._in_query(LEDGER)} SET term = %s, batch_id = %s, segment_id = %s, rows = %s "  # noqa: S608
            "WHERE slot = %s",
            (row.term, at.batch_id, at.segment_id, at.rows, at.slot),
        )
        if moved.rowcount != 1:
            raise PermanentError(f"slot {at.slot!r} of {LEDGER}: {moved.rowcount} rows moved, expected 1")

    def _read(self, connection: Session, slot: str, how: str) -> LedgerEntry | None:
        query = f"SELECT term, batch_id, rows, segment_id FROM {self._in_query(LEDGER)} WHERE slot = %s{how}"  # noqa: S608
        found = connection.execute(query, (slot,)).fetchone()
        return None if found is None or found[1] < 0 else LedgerEntry(found[0], Position(slot, *found[1:]))

    # The target table.

    def columns(self, connection: Session, table: str) -> dict[str, str]:
        return dict(connection.execute(_COLUMNS, (self._named(table),)).fetchall())

    def check_table(self, connection: Session, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:  # noqa: ARG002 - ON CONFLICT itself asks for the key's index
        for name in (table, LEDGER):
            given = list(columns) if name == table else list(LEDGER_COLUMNS)
            persistence, missing = connection.execute(_TABLE, (given, self._named(name))).fetchone() or ("p", [])
            if persistence == "u":
                return f"{name} is UNLOGGED: a crash of the server would empty it. ALTER TABLE … SET LOGGED"
            if missing:
                return f"column {missing[0]!r} of {name} needs a value and has no default; select it, or give it one"
        return None

    def create(self, table: str, columns: Mapping[str, ArrowType], key: Sequence[str]) -> str:
        parts = [f"{self.quote(name)} {type_name(kind)}" for name, kind in columns.items()]
        primary = [f"PRIMARY KEY ({self.listed(key)})"] if key else []
        return f"CREATE TABLE IF NOT EXISTS {self._named(table)} ({', '.join([*parts, *primary])})"

    def create_table(self, connection: Session, table: str, statement: str) -> None:
        with self.transaction(connection):
            connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
            if not self.columns(connection, table):
                connection.execute(statement)

    def type_name(self, kind: ArrowType) -> str:
        return type_name(kind)

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return fits(kind, declared)

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str]) -> Rows:  # noqa: ARG002
        return copy_rows(table, key)

    def insert(self, connection: Session, table: str, rows: Rows, key: Sequence[str]) -> Mapping[int, str]:
        put = self._upsert(connection, table, rows, key) if key else self._append(connection, table, rows)
        psycopg = driver()

        def attempt(first: int, end: int) -> str | None:
            connection.execute("SAVEPOINT wal_sink_rows")
            try:
                put(first, end)
            except psycopg.Error as error:
                if not refuses_rows(error):
                    raise
                connection.execute("ROLLBACK TO SAVEPOINT wal_sink_rows")
                return _shown(error)
            finally:
                connection.release("wal_sink_rows")
            return None

        return refused_rows(rows.numbers, attempt)

    def _append(self, connection: Session, table: str, rows: Rows) -> _Put:
        copy = f"COPY {self._named(table)} ({self.listed(rows.columns)}) FROM STDIN"

        def put(first: int, end: int) -> None:
            connection.copy(copy, _lines(rows.values[first:end]))

        return put

    def _upsert(self, connection: Session, table: str, rows: Rows, key: Sequence[str]) -> _Put:
        """By way of a temporary table; of several rows with one key the last one counts."""
        names = {column: f"c{number}" for number, column in enumerate(rows.columns)}
        typed = ", ".join(f"{self.quote(column)} AS {name}" for column, name in names.items())
        keys = ", ".join(names[column] for column in key)
        updates = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in names if name not in key)
        of_columns = f"SELECT {typed}, 0::bigint AS number FROM {self._named(table)} WITH NO DATA"  # noqa: S608 - quoted
        connection.execute(f"CREATE TEMPORARY TABLE wal_sink_rows ON COMMIT DROP AS {of_columns}")
        merge = (
            f"INSERT INTO {self._named(table)} ({self.listed(names)}) "  # noqa: S608 - quoted
            f"SELECT {', '.join(names.values())} FROM (SELECT DISTINCT ON ({keys}) * FROM pg_temp.wal_sink_rows "
            f"ORDER BY {keys}, number DESC) AS newest ORDER BY number "
            f"ON CONFLICT ({self.listed(key)}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"
        )

        def put(first: int, end: int) -> None:
            numbered = [f"{row}\t{number}" for number, row in enumerate(rows.values[first:end])]
            connection.execute("TRUNCATE pg_temp.wal_sink_rows")
            connection.copy("COPY pg_temp.wal_sink_rows FROM STDIN", _lines(numbered))
            connection.execute(merge)

        return put

    # Names.

    def _named(self, table: str) -> str:
        return self.quote(table) if self.at.schema is None else f"{self.quote(self.at.schema)}.{self.quote(table)}"

    def _in_query(self, table: str) -> str:
        """The same in a statement with placeholders."""
        return self._named(table).replace("%", "%%")


def _lines(rows: Sequence[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def _shown(error: Any) -> str:
    """What the server says, less the details: these repeat whole rows."""
    return str(error.diag.message_primary or str(error).strip())


if TYPE_CHECKING:
    from collections.abc import Callable

    _Put = Callable[[int, int], None]

"""PostgreSQL for `SqlSink`, through psycopg 3: rows by COPY, the ledger's row locked in their transaction."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base.dialect import LEDGER, LEDGER_COLUMNS, Replacing
from wal_sink_backends.sql.base.dropped import Dropped
from wal_sink_backends.sql.base.durability import checked, postgresql_losses
from wal_sink_backends.sql.base.server import ServerDialect
from wal_sink_backends.sql.postgresql.session import Session, connection_class, driver, passes, refuses_rows, refuses_us
from wal_sink_backends.sql.postgresql.tables import look, mandatory
from wal_sink_backends.sql.postgresql.types import copy_rows, fits, type_name
from wal_sink_backends.sql.postgresql.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    import pyarrow as pa

    from wal_sink.sinks.ledger import LedgerEntry
    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Look, Put
    from wal_sink_backends.sql.base.values import Rows

_NO_RIGHT = "42501"
_DENIED = frozenset({_NO_RIGHT, "3F000"})
"""SQLSTATEs: no right, or no such schema."""
_TWICE = "21000"
"""Cardinality violation: a statement would replace a row twice. A subquery with several rows has it too."""
_NEVER_OF_ROWS = frozenset({"08", "40", "53", "55", "57", "58", "XX"})
"""SQLSTATE classes that are never about a row, also where they do not pass."""
_CREATION_LOCK = 0x77616C73
"""The lock of transactions that create a table: IF NOT EXISTS alone fails for one of two at the same moment."""
_COLUMNS = """
    WITH RECURSIVE a (attname, type, typmod) AS (
        SELECT attname, atttypid, atttypmod FROM pg_attribute
        WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT attname, typbasetype, typtypmod FROM a JOIN pg_type t ON t.oid = a.type AND t.typtype = 'd'
    )
    SELECT attname, CASE 'e' WHEN t.typtype THEN 'enum' WHEN element.typtype THEN 'enum[]'
                    ELSE format_type(a.type, a.typmod) END
    FROM a JOIN pg_type t ON t.oid = a.type AND t.typtype <> 'd'
    LEFT JOIN pg_type element ON element.oid = t.typelem AND t.typcategory = 'A'
"""
"""Columns by the type that their values have: that of a domain is the type below all domains."""
_ELSEWHERE = """
    SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid IN (to_regclass(%s), to_regclass(%s)) AND n.nspname <> %s LIMIT 1
"""
"""The schema in which the search path leads to a table or a ledger, if it is another one."""
_EVICT = """
    SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
    AND l.classid = (%s::bigint & 4294967295)::oid AND l.objid::bigint <= %s
"""


@dataclass(frozen=True, slots=True)
class Postgresql(ServerDialect):
    """PostgreSQL from version 12 on, or behind a PgBouncer that pools transactions."""

    longest_name = 63
    documents = frozenset({"jsonb"})
    holds = False  # LOCK TABLE protects no partition; a second look after the rows suffices, as they can be rolled back
    default_schema = "public"  # never the search path: its first schema may be another one tomorrow
    is_read_only = "pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'"
    ledger_ddl = (
        'CREATE TABLE IF NOT EXISTS {} (slot text COLLATE "C" PRIMARY KEY, term bigint NOT NULL, '
        "batch_id bigint NOT NULL, segment_id text NOT NULL, rows bigint NOT NULL)"
    )

    # The driver's errors.

    def driver_error(self) -> type[Exception]:
        error: type[Exception] = driver().Error
        return error

    def passes(self, error: psycopg.Error) -> bool:
        return passes(error)

    def refuses_rows(self, error: psycopg.Error) -> bool:
        return refuses_rows(error)

    def may_refuse_a_row(self, error: psycopg.Error) -> bool:
        return (error.sqlstate or "08")[:2] not in _NEVER_OF_ROWS and not passes(error)

    def refuses_together(self, error: psycopg.Error) -> bool:
        """Whether a statement would replace a row twice. Rows may have one key for the index and several for the
        column: through the index's own collation, or because a trigger alters them.
        """
        return error.sqlstate == _TWICE

    def refuses_creation(self, error: psycopg.Error) -> bool:
        return error.sqlstate in _DENIED

    def shown(self, error: psycopg.Error) -> str:
        """The error without its details, which repeat whole rows."""
        return str(error.diag.message_primary or str(error).strip())

    def told(self, error: psycopg.Error) -> str:
        if not error.sqlstate:
            return self.shown(error)
        step = ". Grant this user the rights that docs/sinks/sql.md lists" if error.sqlstate == _NO_RIGHT else ""
        return f"{self.shown(error)} (SQLSTATE {error.sqlstate}){step}"

    def retold(self, error: psycopg.Error, where: str) -> Exception:
        return type(error)(f"{where}{self.told(error)}")

    # Connections.

    def connect(self) -> Session:
        psycopg = driver()
        known = psycopg.pq.Conninfo.get_defaults()
        if self.at.hosts and any(each.keyword == b"hostaddr" and each.val for each in known):
            raise PermanentError(
                f"opening {self.address}: PGHOSTADDR (or the service that PGSERVICE names) would lead to another "
                "server than the URL's host. Remove it where the sink runs"
            )
        try:
            connection = connection_class().connect(**self._parameters())
        except psycopg.Error as error:
            if refuses_us(error):
                raise PermanentError(f"opening {self.address}: {str(error).strip()}") from error
            raise
        session = Session(connection, self.limits)
        return checked(session, self.address, postgresql_losses, self.passes, psycopg.Error)

    def _parameters(self) -> dict[str, Any]:
        at, seconds = self.at, self.limits.statement_timeout_s
        given = {
            "host": ",".join(host for host, _ in at.hosts),
            "port": ",".join(str(port or "") for _, port in at.hosts) if any(port for _, port in at.hosts) else "",
            "dbname": at.database,
            "user": at.user,
            "password": self.password(),
            "application_name": "wal-sink",
            "target_session_attrs": "read-write",  # after a failover an old address may lead to a standby
            # by default libpq does not check the name, and goes on without TLS if the certificate is wrong
            **({"sslmode": "verify-full"} if "sslrootcert" in at.options else {}),
            **at.options,
        }
        return {
            **{name: value for name, value in given.items() if value},
            "autocommit": True,
            "prepare_threshold": None,  # prepared statements are gone when a pooler changes the connection
            "client_encoding": "utf8",
            "connect_timeout": max(2, round(self.limits.connect_timeout_s)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": round(seconds * 1000),
        }

    # The ledger.

    def is_one_of(self, column: str, texts: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
        """The condition with one array, because a statement has at most 65,535 parameters."""
        return f"{self.quote(column)} = ANY(%s)", (list(texts),)

    def lock(self, connection: Session, slot: str, term: int) -> LedgerEntry | None:
        """Lock the slot's row.

        A process that stands still during its COPY keeps the lock for ever, because no time limit of the server applies
        there. So after a wait without success, this ends the transactions of the same and of lower terms.
        """
        mark = (zlib.crc32(slot.encode()) - (1 << 31), term % (1 << 31))
        connection.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s)", mark
        )  # marks the transaction; no process waits for it
        psycopg = driver()
        try:
            return self.lock_row(connection, slot)
        except psycopg.errors.LockNotAvailable:
            connection.roll_back()
            with suppress(psycopg.errors.InsufficientPrivilege):  # the other transaction belongs to another role
                connection.execute(_EVICT, mark)
            raise

    # The target table.

    def refuse_elsewhere(self, connection: Session, table: str) -> None:
        """Refuse to make a ledger where nobody meant it: without `schema` the search path does not count."""
        names = (self.quote(LEDGER), self.quote(table), self.namespace)
        if self.at.schema is None and (found := connection.execute(_ELSEWHERE, names).fetchone()):
            raise PermanentError(
                f"{self.address}: without schema=, table and ledger are in the schema {self.namespace!r}. It has no "
                f"ledger yet, and the search path of this user leads to the schema {found[0]!r}. Pass one of the "
                "two as schema="
            )

    def columns(self, connection: Session, table: str) -> dict[str, str]:
        return dict(connection.execute(_COLUMNS, (self.named(table),)).fetchall())

    def look(self, connection: Session, table: str) -> Look:
        return look(connection, table, self.named(table), self.named(LEDGER))

    def check_table(self, connection: Session, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:  # noqa: ARG002 - ON CONFLICT itself asks for the key's index
        for name, given in ((table, columns), (LEDGER, LEDGER_COLUMNS)):
            if missing := mandatory(connection, self.named(name), given):
                return self.needs_value(missing[0], name)
        return None

    def create_once(self, connection: Session, table: str, statement: str) -> None:
        with self.transaction(connection):
            connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
            if not self.columns(connection, table):
                connection.execute(statement)

    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:  # noqa: ARG002 - a key may have any type
        return type_name(kind)

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return fits(kind, declared)

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str], declared: Mapping[str, str]) -> Rows:  # noqa: ARG002
        return copy_rows(table, key, declared)

    def putting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        if replacing.key or connection.is_row_secured:  # then COPY into the table is refused
            return Upsert(self, connection, table, columns, replacing).put
        copy = f"COPY {self.named(table)} ({self.listed(columns)}) FROM STDIN"

        def put(rows: Sequence[str]) -> Dropped | None:
            kept = connection.copy(copy, rows)
            return None if kept == len(rows) else Dropped(len(rows), kept)

        return put

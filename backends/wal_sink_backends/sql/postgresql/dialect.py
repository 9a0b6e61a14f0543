"""PostgreSQL for `SqlSink`, through psycopg 3: rows by COPY, the ledger's row locked in their transaction."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base.dialect import (
    DELETED_COLUMNS,
    LEDGER,
    LEDGER_COLUMNS,
    SHORT_WAIT_S,
    Look,
    Replacing,
)
from wal_sink_backends.sql.base.server import ServerDialect
from wal_sink_backends.sql.base.types import POSTGRESQL, copy_rows
from wal_sink_backends.sql.base.values import Dropped
from wal_sink_backends.sql.postgresql.session import Session, connection_class, driver, postgresql_losses
from wal_sink_backends.sql.postgresql.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    import pyarrow as pa

    from wal_sink.sinks.ledger import LedgerEntry
    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Put
    from wal_sink_backends.sql.base.values import Rows


_PASSING_CLASSES = ("08", "40", "53", "57", "58")
"""SQLSTATE classes that may pass: connection, transaction rollback (deadlock, serialization), resources, operator
intervention, system error: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""
_PASSING = frozenset({"55P03", "55006", "25006", "25P03", "25P04", "XX000"})
"""SQLSTATEs that may pass: lock timeout, object in use, a standby after a fail-over, a transaction that idled or lasted
too long, an internal error.
"""
_LASTING = frozenset({"57P04", "53400"})
"""SQLSTATEs of those classes that never pass: database dropped, a limit of the configuration."""
_ROW_CLASSES = ("22", "23", "P0")
"""SQLSTATE classes about rows: values, constraints, and RAISE of PL/pgSQL in a trigger."""
_OF_ROWS = frozenset({"44000", "54000"})
"""Further SQLSTATEs about rows: WITH CHECK OPTION, too large for an index."""
_REFUSALS = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist", "permission denied"),
    *("is not permitted to log in", "does not support SSL", "certificate", "invalid connection option"),
)
"""Texts of a refused connection: libpq passes on the server's text without its SQLSTATE."""
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


_TABLES = """
    WITH RECURSIVE parts (root, oid, is_root) AS (
        SELECT given.root, to_regclass(given.named)::oid, true
        FROM unnest(%s::text[], %s::text[]) AS given (root, named)
        UNION ALL
        SELECT parts.root, below.inhrelid, false
        FROM parts JOIN pg_class c ON c.oid = parts.oid AND c.relkind = 'p'
        JOIN pg_inherits below ON below.inhparent = parts.oid
    )
    SELECT parts.root, parts.is_root, c.oid::bigint, c.relname::text, c.relkind::text, c.relpersistence::text,
           am.amname::text, parts.is_root AND row_security_active(c.oid),
           EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3'),
           (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull,
                                        a.atthasdef, a.attidentity, a.attgenerated), ',' ORDER BY a.attnum)
            FROM pg_attribute a
            WHERE a.attrelid = c.oid AND parts.is_root AND a.attnum > 0 AND NOT a.attisdropped)
    FROM parts JOIN pg_class c ON c.oid = parts.oid LEFT JOIN pg_am am ON am.oid = c.relam
    ORDER BY 1, 3
"""
"""Reads `pg_inherits` without locks, unlike `pg_partition_tree`, so that it waits for no ALTER of a partition."""
_KINDS = {"f": "a foreign table", "v": "a view", "m": "a materialized view"}
_WHY = "rows and position would not be kept together; expected an ordinary, logged table"
_MISSING = """
    WITH RECURSIVE a (name, number, type, is_needed) AS (
        SELECT attname::text, attnum, atttypid, attnotnull FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
        WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND NOT atthasdef AND attidentity = ''
              AND NOT attname = ANY(%s) AND typdefault IS NULL
        UNION ALL
        SELECT name, number, typbasetype, typnotnull FROM a JOIN pg_type t ON t.oid = a.type AND t.typtype = 'd'
    )
    SELECT ARRAY(SELECT name FROM a GROUP BY name, number HAVING bool_or(is_needed) ORDER BY number)
"""
"""COPY leaves NULL in a column of a NOT NULL domain that gets no value."""


@dataclass(frozen=True, slots=True)
class Postgresql(ServerDialect):
    """PostgreSQL from version 12 on, or behind a PgBouncer that pools transactions."""

    types = POSTGRESQL
    longest_name = 63
    documents = frozenset({"jsonb"})
    adds = "ADD COLUMN IF NOT EXISTS"
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
        """Whether another attempt may succeed. An error without SQLSTATE is the connection's or libpq's own."""
        state, psycopg = error.sqlstate, driver()
        if state is None:
            return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not _refuses_us(error)
        return state in _PASSING or (state[:2] in _PASSING_CLASSES and state not in _LASTING)

    def refuses_rows(self, error: psycopg.Error) -> bool:
        state = error.sqlstate or ""
        return state[:2] in _ROW_CLASSES or state in _OF_ROWS

    def may_refuse_a_row(self, error: psycopg.Error) -> bool:
        return (error.sqlstate or "08")[:2] not in _NEVER_OF_ROWS and not self.passes(error)

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
                "server than the URL's host. Remove this setting on each machine where the sink runs"
            )
        try:
            connection = connection_class().connect(**self._parameters())
        except psycopg.Error as error:
            if _refuses_us(error):
                raise PermanentError(f"opening {self.address}: {str(error).strip()}") from error
            raise
        session = Session(connection, self.limits)
        self.warn_of_losses(session, postgresql_losses)
        return session

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
        names, quoted = [table, LEDGER], [self.named(table), self.named(LEDGER)]
        rows = [_Relation(*row) for row in connection.execute(_TABLES, (names, quoted)).fetchall()]
        problems = (problem for row in rows if (problem := row.problem()))
        its = next((row for row in rows if row.is_root and row.root == table), None)
        connection.is_row_secured = its is not None and its.is_row_secured
        return Look(repr(rows), next(problems, None), its and its.oid)

    def check_table(self, connection: Session, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:  # noqa: ARG002 - ON CONFLICT itself asks for the key's index
        for name, given in ((table, columns), (LEDGER, LEDGER_COLUMNS)):
            ((missing,),) = connection.execute(_MISSING, (self.named(name), list(given))).fetchall()
            if missing:
                return self.needs_value(missing[0], name)
        return None

    def create_table(self, connection: Session, table: str, statement: str) -> None:
        with self.transaction(connection):
            connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
            if not self.columns(connection, table):
                connection.execute(statement)

    def add_columns(self, connection: Session, table: str, columns: Mapping[str, ArrowType]) -> None:
        (statement,) = self.adding(table, columns)
        with self.transaction(connection):
            connection.execute(f"SET LOCAL lock_timeout = '{SHORT_WAIT_S}s'")
            connection.execute(statement)

    def retyping(self, table: str, column: str, kind: ArrowType, key: Sequence[str]) -> str:  # noqa: ARG002
        return f"ALTER TABLE {self.named(table)} ALTER COLUMN {self.quote(column)} TYPE {self.type_name(kind)}"

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str], declared: Mapping[str, str]) -> Rows:  # noqa: ARG002
        return copy_rows(table, key, declared)

    def age(self, expression: str, *, is_text: bool) -> str:
        return f'({expression})::text COLLATE "C"' if is_text else expression

    def remembering(self, connection: Session, table: str, deleted: str, replacing: Replacing) -> Sequence[str]:  # noqa: ARG002
        named, (batch, wal) = self.named(deleted), DELETED_COLUMNS
        typed = f"SELECT {self.listed((*replacing.key, *replacing.newer_by))} FROM {self.named(table)} WITH NO DATA"  # noqa: S608
        ours = f'ADD {batch} bigint NOT NULL, ADD {wal} text COLLATE "C" NOT NULL'
        key = f"ADD PRIMARY KEY ({self.listed(replacing.key)})"
        index = f"CREATE INDEX ON {named} ({batch})"
        return [f"CREATE TABLE {named} AS {typed}; ALTER TABLE {named} {ours}, {key}; {index}"]

    def deleting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        deleted = replacing.deleted or ""
        upsert = Upsert(self, connection, deleted, columns, replace(replacing, deleted=None, strict=False))
        return upsert.deleting(self.named(table))

    def marking(
        self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing, marks: Sequence[str]
    ) -> Put:
        return Upsert(self, connection, table, columns, replacing).marking(marks)

    def putting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        if replacing.key or connection.is_row_secured:  # then COPY into the table is refused
            return Upsert(self, connection, table, columns, replacing).put
        copy = f"COPY {self.named(table)} ({self.listed(columns)}) FROM STDIN"

        def put(rows: Sequence[str]) -> Dropped | None:
            kept = connection.copy(copy, rows)
            return None if kept == len(rows) else Dropped(len(rows), kept)

        return put


class _Relation(NamedTuple):
    """A row of the answer."""

    root: str
    is_root: bool
    oid: int
    name: str
    kind: str
    persistence: str
    method: str | None
    is_row_secured: bool
    has_rule: bool
    columns: str | None

    def problem(self) -> str | None:
        """Why the table is refused; None if it is not. An unknown kind is refused too."""
        which = self.name if self.is_root else f"{self.name}, a partition of {self.root},"
        if self.kind not in {"r", "p"}:
            return f"{which} is {_KINDS.get(self.kind, f'of the unknown kind {self.kind!r}')}: {_WHY}"
        if self.persistence == "u":
            return f"{which} is UNLOGGED: a crash of the server would empty it. ALTER TABLE … SET LOGGED"
        if self.persistence != "p":
            kept = "is temporary" if self.persistence == "t" else f"has the unknown persistence {self.persistence!r}"
            return f"{which} {kept}: {_WHY}"
        if self.kind == "r" and self.method != "heap":
            return f"{which} has the access method {self.method!r}, expected heap: {_WHY}"
        if self.has_rule:
            return f"{which} has a rule ON INSERT, but COPY does not follow rules. Use a trigger, or drop the rule"
        return None


def _refuses_us(error: psycopg.Error) -> bool:
    """Whether a server (or libpq) refused a connection for good."""
    if error.pgconn is not None and getattr(error.pgconn, "needs_password", False):
        return True
    return error.sqlstate is None and any(phrase in str(error) for phrase in _REFUSALS)

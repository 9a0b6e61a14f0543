"""MariaDB and MySQL for `SqlSink`, through PyMySQL: InnoDB tables, the ledger's row locked with the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink_backends.common.columns import stored_type
from wal_sink_backends.sql.base.dialect import LEDGER, Look, Replacing
from wal_sink_backends.sql.base.dropped import Dropped
from wal_sink_backends.sql.base.durability import checked, mariadb_losses
from wal_sink_backends.sql.base.server import ServerDialect
from wal_sink_backends.sql.mariadb.order import in_key_order
from wal_sink_backends.sql.mariadb.session import Session, driver, number_of, passes, refuses_rows
from wal_sink_backends.sql.mariadb.tables import definition_of, hold, problem_of, problem_of_key
from wal_sink_backends.sql.mariadb.types import fits, type_name, value_lists

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Put
    from wal_sink_backends.sql.base.values import Rows

_DEFAULT_PORT = 3306
_STATEMENT_BYTES = 1 << 20
_DENIED = frozenset({1044, 1142, 1227, 1370})
_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"
_COLUMNS = """
    SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""
_REPLACING_NULLS = """
    SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND (extra LIKE '%%auto_increment%%' OR extra LIKE '%% GENERATED%%'
         OR (data_type = 'timestamp' AND is_nullable = 'NO'))
"""
"""Columns in which NULL becomes another value: the next number (AUTO_INCREMENT); the present time (TIMESTAMP, unless
`explicit_defaults_for_timestamp` is on); a computed value (generated columns, where any other value is an error).
DEFAULT_GENERATED of MySQL means something else.
"""
_COLLATIONS = """
    SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND collation_name IS NOT NULL
"""
_MANDATORY = """
    SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%'
    AND extra NOT LIKE '%%GENERATED%%' ORDER BY ordinal_position
"""


@dataclass(frozen=True, slots=True)
class Mariadb(ServerDialect):
    """MariaDB from version 10.5 on, or MySQL from 8.0 on."""

    schema_is = "a database"
    documents = frozenset({"json"})  # of MySQL: MariaDB shows such a column as longtext, and it keeps the text
    slots_at_once = 1000  # each of at most 190 characters: far below any server's max_allowed_packet
    longest_name = 64 * 4
    """The limit is 64 characters, of up to 4 bytes; the server itself refuses longer names with fewer bytes."""
    table_options = " ENGINE=InnoDB CHARACTER SET utf8mb4"
    is_read_only = "UPPER(CAST(@@GLOBAL.read_only AS CHAR)) NOT IN ('0', 'OFF') OR @@GLOBAL.innodb_read_only"
    ledger_ddl = (
        f"CREATE TABLE IF NOT EXISTS {{}} (slot VARCHAR(190) {_ASCII} PRIMARY KEY, term BIGINT NOT NULL, "
        f"batch_id BIGINT NOT NULL, segment_id VARCHAR(64) {_ASCII} NOT NULL, `rows` BIGINT NOT NULL) ENGINE=InnoDB"
    )

    # The driver's errors.

    def driver_error(self) -> type[Exception]:
        error: type[Exception] = driver().MySQLError
        return error

    def passes(self, error: Exception) -> bool:
        return passes(error)

    def refuses_rows(self, error: Exception) -> bool:
        return refuses_rows(error)

    def may_refuse_a_row(self, error: Exception) -> bool:
        """PyMySQL closes a connection before an error of the client, so on an open one a SIGNAL chose its number."""
        return 2000 <= number_of(error) <= 2999 or not passes(error)

    def refuses_creation(self, error: Exception) -> bool:
        return number_of(error) in _DENIED

    def shown(self, error: Exception) -> str:
        return f"{error.args[1] if len(error.args) > 1 else error} (error {number_of(error)})"

    def retold(self, error: Exception, where: str) -> Exception:
        """The same error with its number in front, as PyMySQL raises it."""
        return type(error)(number_of(error), f"{where}{error.args[1] if len(error.args) > 1 else error}")

    # Connections.

    def connect(self) -> Session:
        parameters = self._parameters()
        with self.translated(f"opening {self.address}"):
            session = Session(driver().connect(**parameters), self.limits)
            return checked(session, self.address, mariadb_losses, self.passes, self.driver_error())

    def _parameters(self) -> dict[str, Any]:
        at, limits = self.at, self.limits
        host, port = at.hosts[0] if at.hosts else (None, None)
        given = {"host": host, "port": port, "user": at.user, "password": self.password(), **at.options}
        if "read_default_file" not in at.options:
            given["port"] = port or _DEFAULT_PORT
        return {
            **{name: value for name, value in given.items() if value},
            "database": at.database,
            **({"ssl_verify_cert": True, "ssl_verify_identity": True} if "ssl_ca" in at.options else {}),
            "charset": "utf8mb4",
            "autocommit": True,
            # An UPDATE counts the rows it finds, as in other databases.
            "client_flag": driver().constants.CLIENT.FOUND_ROWS,
            "connect_timeout": max(1, round(limits.connect_timeout_s)),
            "read_timeout": limits.silence_s,
            "write_timeout": limits.silence_s,
        }

    # The ledger.

    def is_one_of(self, column: str, texts: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
        return f"{self.quote(column)} IN ({', '.join(['%s'] * len(texts))})", tuple(texts)

    # The target table.

    def columns(self, connection: Session, table: str) -> dict[str, str]:
        found = connection.execute(_COLUMNS, (self.namespace, table)).fetchall()
        return {self.fold(name): str(declared) for name, declared in found}

    def look(self, connection: Session, table: str) -> Look:
        found = {name: definition_of(connection, self.named(name)) for name in (table, LEDGER)}
        problems = (problem for name, its in found.items() if (problem := problem_of(name, its)))
        return Look(repr(found), next(problems, None))

    def hold(self, connection: Session, table: str, columns: Sequence[str]) -> bool:
        return hold(connection, self.named(table), self.listed(columns), len(columns))

    def check_table(self, connection: Session, table: str, columns: Sequence[str], key: Sequence[str]) -> str | None:
        given = {self.fold(name) for name in columns}
        for (column,) in connection.execute(_MANDATORY, (self.namespace, table)).fetchall():
            if self.fold(column) not in given:
                return self.needs_value(column, table)
        folded = {self.fold(name) for name in key}
        return problem_of_key(connection, (self.namespace, table), given, folded) if key else None

    def replaces_nulls(self, connection: Session, table: str) -> frozenset[str]:
        found = connection.execute(_REPLACING_NULLS, (self.namespace, table)).fetchall()
        return frozenset(self.fold(name) for (name,) in found)

    def collations(self, connection: Session, table: str) -> Mapping[str, str]:
        found = connection.execute(_COLLATIONS, (self.namespace, table)).fetchall()
        return {self.fold(name): str(collation) for name, collation in found}

    def in_key_order(
        self, connection: Session, rows: Rows, table: pa.Table, key: Sequence[str], collations: Mapping[str, str]
    ) -> Rows:
        return in_key_order(rows, table, key, collations, connection)

    def tells_age(self, kind: ArrowType) -> bool:
        """Whether the values of a type keep their order. Durations are texts here."""
        return not pa.types.is_duration(stored_type(kind)) and ServerDialect.tells_age(self, kind)

    def create_once(self, connection: Session, table: str, statement: str) -> None:  # noqa: ARG002 - the statement names the table
        connection.execute(statement)

    def create_table(self, connection: Session, table: str, statement: str) -> None:
        """Create the table with texts that are compared byte by byte. For another collation, users create the table."""
        collation = "utf8mb4_nopad_bin" if connection.is_mariadb else "utf8mb4_0900_bin"
        self.create_once(connection, table, f"{statement} COLLATE {collation}")

    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:
        return type_name(kind, key=key)

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return fits(kind, declared)

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str], declared: object) -> Rows:  # noqa: ARG002
        return value_lists(table, key, connection.quoted)

    def putting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        head = f"INSERT INTO {self.named(table)} ({self.listed(columns)}) VALUES "  # noqa: S608 - quoted
        tail = f" {self.on_conflict(columns, replacing)}" if replacing.key else ""
        room = connection.longest_statement - len(head.encode()) - len(tail.encode())

        def put(rows: Sequence[str]) -> str | Dropped | None:
            kept = 0
            for some in _statements(rows, min(_STATEMENT_BYTES, room)):
                values = ",".join(some)
                if len(values.encode()) > room:
                    return (
                        f"row of {len(values)} characters: max_allowed_packet of the server is too small. Raise "
                        "max_allowed_packet"
                    )
                counted = connection.execute(head + values + tail).rowcount
                kept += min(counted, len(some))  # a replaced row counts as two, an unchanged one as one
            return None if kept == len(rows) else Dropped(len(rows), kept)

        return put

    def on_conflict(self, columns: Sequence[str], replacing: Replacing) -> str:
        """The clause that replaces rows. Assignments run one after the other, so the column of the age comes last."""
        key, age = replacing.key, replacing.newer_by
        names = sorted((name for name in columns if name not in key), key=lambda name: name == age)
        updates = [f"{self.quote(name)} = {self._newer(name, age)}" for name in names]
        same = f"{self.quote(key[0])} = {self.quote(key[0])}"
        return f"ON DUPLICATE KEY UPDATE {', '.join(updates) or same}"

    def _newer(self, name: str, age: str | None) -> str:
        quoted = self.quote(name)
        if age is None:
            return f"VALUES({quoted})"
        at = self.quote(age)
        return f"IF({at} IS NULL OR VALUES({at}) >= {at}, VALUES({quoted}), {quoted})"

    # Names.

    def fold(self, name: str) -> str:
        return name.lower()

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"


def _statements(rows: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Split rows into parts, each as large as one statement may be."""
    joined: list[str] = []
    size = 0
    for row in rows:
        length = len(row.encode()) + 1
        if joined and size + length > most:
            yield joined
            joined, size = [], 0
        joined.append(row)
        size += length
    if joined:
        yield joined

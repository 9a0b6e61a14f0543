"""MariaDB and MySQL for `SqlSink`, through PyMySQL: InnoDB tables, the ledger's row locked with the rows.

Rows of an upsert are sent in the order of their keys, so that all writers lock keys in the same order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink.sinks.calls import is_certificate_error
from wal_sink_backends.common.columns import stored_type
from wal_sink_backends.sql.base.dialect import DELETED_COLUMNS, LEDGER, SHORT_WAIT_S, Look, Replacing, TableAltered
from wal_sink_backends.sql.base.server import ServerDialect
from wal_sink_backends.sql.base.types import MARIADB, value_lists
from wal_sink_backends.sql.base.values import Dropped, Rows
from wal_sink_backends.sql.mariadb.order import in_key_order
from wal_sink_backends.sql.mariadb.session import Session, driver, mariadb_losses, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Put

_NO_SUCH_TABLE, _DUPLICATE_COLUMN = 1146, 1060
_UNFIT = frozenset({_NO_SUCH_TABLE, 1054, 1364})
"""No such table, no such column, a column that needs a value: the table has changed since it was described."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)
_ENGINE = re.compile(r"\bENGINE\s*=\s*(\S+?)(?=[\s,;)*]|$)", re.IGNORECASE)
_NEXT_NUMBER = re.compile(r"^(\) .*?)\bAUTO_INCREMENT=\d+ ", re.MULTILINE)
_ENGINES = frozenset({"innodb"})
"""Other transactional engines may lose their connection before COMMIT (FEDERATED), or commit separately."""


_PASSING = frozenset(
    {
        *(1020, 1205, 1213, 1412, 1614, 3058, 3572),  # changed meanwhile, lock wait, deadlock, table or XA state
        *(1037, 1038, 1041, 1021, 1030, 1114),  # memory, disk, storage engine, table full
        *(1040, 1203, 1226, 1129),  # too many connections, also of one user; host blocked for now
        *(1053, 1077, 1079, 1080, 1152, 1155, 1156, 1157, 1158, 1159, 1160, 1161),  # shutdown, network
        *(1184, 1189, 1317, 1927, 1969, 3024, 3169, 4031),  # aborted, interrupted, killed, statement or idle timeout
        *(1180, 1196),  # COMMIT or ROLLBACK failed
        *(1047, 1290, 1792, 1836),  # Galera not ready; read only, as a server is during a failover
    }
)
"""Errors of the server that may pass, see https://mariadb.com/kb/en/mariadb-error-codes/. Errors of the client may pass
too, except `_LASTING_OF_THE_CLIENT`.
"""
_LASTING_OF_THE_CLIENT = frozenset({2019, 2026, 2049, 2054, 2059, 2061})
"""Character set, TLS, protocol, authentication methods."""
_OF_ROWS = frozenset(
    {
        *(1048, 1062, 1451, 1452, 1216, 1217, 1526, 1557, 1569, 1586, 1748, 1761, 1762, 3819, 4025),  # constraints
        *(1264, 1265, 1292, 1366, 1367, 1406, 1411, 1416, 1441, 1690, 3140, 3141, 4038),  # values
        1644,  # SIGNAL of a trigger
    }
)
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


UNIQUE = """
    SELECT s.index_name, s.column_name, s.sub_part, c.extra FROM information_schema.statistics s
    LEFT JOIN information_schema.columns c USING (table_schema, table_name, column_name)
    WHERE s.table_schema = %s AND s.table_name = %s AND s.non_unique = 0
"""
"""The columns of unique indexes. A part over an expression (MySQL 8) has no column name."""


@dataclass(frozen=True, slots=True)
class Mariadb(ServerDialect):
    """MariaDB from version 10.5 on, or MySQL from 8.0 on."""

    types = MARIADB
    schema_is = "a database"
    same = "<=>"
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
        number = number_of(error)
        if is_certificate_error(error):  # its number is 2003, as for a server that does not answer
            return False
        if _is_of_the_client(number):
            return number not in _LASTING_OF_THE_CLIENT
        return number in _PASSING or number == 0

    def refuses_rows(self, error: Exception) -> bool:
        return number_of(error) in _OF_ROWS

    def may_refuse_a_row(self, error: Exception) -> bool:
        """PyMySQL closes a connection before an error of the client, so on an open one a SIGNAL chose its number."""
        return _is_of_the_client(number_of(error)) or not self.passes(error)

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
            self.warn_of_losses(session, mariadb_losses)
            return session

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
        """Lock the definition by an INSERT of no rows, which needs no further right."""
        nothing = f"SELECT {', '.join(['NULL'] * len(columns))} FROM DUAL WHERE FALSE"  # noqa: S608 - no foreign text
        insert = f"INSERT /* holds the definition */ INTO {self.named(table)} ({self.listed(columns)}) {nothing}"
        try:
            connection.execute(insert)
        except driver().MySQLError as error:
            if number_of(error) in _UNFIT:
                return False
            raise
        return True

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
        return in_key_order(connection, rows, table, key, collations)

    def tells_age(self, kind: ArrowType) -> bool:
        """Whether the values of a type keep their order. Durations are texts here."""
        return not pa.types.is_duration(stored_type(kind)) and ServerDialect.tells_age(self, kind)

    def create_table(self, connection: Session, table: str, statement: str) -> None:  # noqa: ARG002 - the statement names the table
        """Create the table with texts that are compared byte by byte. For another collation, users create the table."""
        own = statement.endswith(self.table_options)  # the ledger and the table of deletes name theirs
        connection.execute(f"{statement} {_byte_by_byte(connection)}" if own else statement)

    def add_columns(self, connection: Session, table: str, columns: Mapping[str, ArrowType]) -> None:
        """Add the columns without a copy of the table, texts as in `create_table`. MySQL has no IF NOT EXISTS."""
        types = {name: self.type_name(kind) for name, kind in columns.items()}
        texts = {name: _byte_by_byte(connection) for name, kind in types.items() if kind == "longtext"}
        added = [f"ADD COLUMN {self.quote(name)} {kind} {texts.get(name, '')}" for name, kind in types.items()]
        connection.execute(f"SET SESSION lock_wait_timeout = {SHORT_WAIT_S}")
        try:
            connection.execute(f"ALTER TABLE {self.named(table)} {', '.join(added)}, ALGORITHM=INSTANT")
        except driver().MySQLError as error:
            if number_of(error) == _DUPLICATE_COLUMN:
                raise TableAltered(f"{table}: another process added a column first. wal-sink tries again") from error
            raise
        finally:
            if connection.usable:
                connection.set(self.limits)

    def retyping(self, table: str, column: str, kind: ArrowType, key: Sequence[str]) -> str:
        its = f"{self.type_name(kind, key=column in key)}{' NOT NULL' * (column in key)}"
        return f"ALTER TABLE {self.named(table)} MODIFY COLUMN {self.quote(column)} {its}"

    def encode(self, connection: Session, table: pa.Table, key: Sequence[str], declared: object) -> Rows:  # noqa: ARG002
        return value_lists(table, key, connection.quoted)

    def putting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        head = f"INSERT INTO {self.named(table)} ({self.listed(columns)}) VALUES "  # noqa: S608 - quoted
        tail = f" {self.on_conflict(columns, replacing)}" if replacing.key else ""
        room = connection.longest_statement - len(head.encode()) - len(tail.encode())

        covered = self._covered(connection, columns, replacing) if replacing.deleted else None

        def put(rows: Sequence[Sequence[str]]) -> str | Dropped | None:
            kept = 0
            if covered:
                gone = [bool(one) for some in _groups(rows) for one in covered(some)]
                rows = [row for row, is_gone in zip(rows, gone, strict=True) if not is_gone]
            for some in _statements([f"({','.join(row)})" for row in rows], min(_STATEMENT_BYTES, room)):
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

    def _covered(
        self, connection: Session, columns: Sequence[str], replacing: Replacing
    ) -> Callable[[Sequence[Sequence[str]]], Sequence[int]]:
        """A function that tells of which rows a delete is remembered that is as new or newer."""
        deleted = self.named(replacing.deleted or "")

        def covered(rows: Sequence[Sequence[str]]) -> Sequence[int]:
            found = []
            for row in rows:
                sent = dict(zip(columns, row, strict=True))
                ours, stored = self.ages(replacing, sent.__getitem__), self.ages(replacing, self.quote)
                newer = self.newer(stored, ours, strict=False)
                found.append(f"EXISTS (SELECT 1 FROM {deleted} WHERE {self._same_key(replacing, sent)} AND ({newer}))")  # noqa: S608
            answer: Sequence[int] = connection.execute(f"SELECT {', '.join(found)}").fetchone() or ()
            return answer

        return covered

    def _same_key(self, replacing: Replacing, sent: Mapping[str, str]) -> str:
        return " AND ".join(f"{self.quote(name)} = {sent[name]}" for name in replacing.key)

    def remembering(self, connection: Session, table: str, deleted: str, replacing: Replacing) -> Sequence[str]:  # noqa: ARG002
        batch, wal = DELETED_COLUMNS
        names = self.listed((*replacing.key, *replacing.newer_by))
        ours = f"{batch} BIGINT NOT NULL DEFAULT 0, {wal} VARCHAR(190) {_ASCII} NOT NULL DEFAULT ''"
        keys = f"PRIMARY KEY ({self.listed(replacing.key)}), KEY ({batch})"
        typed = f"SELECT {names} FROM {self.named(table)} WHERE FALSE"  # noqa: S608 - quoted
        return [f"CREATE TABLE IF NOT EXISTS {self.named(deleted)} ({ours}, {keys}) ENGINE=InnoDB {typed}"]

    def deleting(self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing) -> Put:
        remember = self.putting(
            connection, replacing.deleted or "", columns, replace(replacing, deleted=None, strict=False)
        )

        def put(rows: Sequence[Sequence[str]]) -> str | Dropped | None:
            if (problem := remember(rows)) is not None:
                return problem
            for some in _groups(rows):
                conditions = [self._as_old(replacing, dict(zip(columns, row, strict=True))) for row in some]
                connection.execute(f"DELETE FROM {self.named(table)} WHERE {' OR '.join(conditions)}")  # noqa: S608 - quoted
            return None

        return put

    def marking(
        self, connection: Session, table: str, columns: Sequence[str], replacing: Replacing, marks: Sequence[str]
    ) -> Put:
        named = self.named(table)

        def mark(row: Sequence[str]) -> None:
            sent = dict(zip(columns, row, strict=True))
            changes = ", ".join(f"{self.quote(name)} = {sent[name]}" for name in marks)
            update = f"UPDATE {named} SET {changes} WHERE {self._as_old(replacing, sent)}"  # noqa: S608 - quoted
            look = f"SELECT 1 FROM {named} WHERE {self._same_key(replacing, sent)}"  # noqa: S608 - quoted
            if connection.execute(update).rowcount or connection.execute(look).fetchone():
                return
            connection.execute(f"INSERT INTO {named} ({self.listed(columns)}) VALUES ({', '.join(row)})")  # noqa: S608 - quoted

        def put(rows: Sequence[Sequence[str]]) -> None:
            for row in rows:
                mark(row)

        return put

    def _as_old(self, replacing: Replacing, sent: Mapping[str, str]) -> str:
        """The condition of stored rows that are as old as a row that is sent, or older."""
        ours, stored = self.ages(replacing, sent.__getitem__), self.ages(replacing, self.quote)
        return f"({self._same_key(replacing, sent)} AND ({self.newer(ours, stored, strict=False)}))"

    def age(self, expression: str, *, is_text: bool) -> str:
        return f"CAST(CONVERT({expression} USING utf8mb4) AS BINARY)" if is_text else expression

    def on_conflict(self, columns: Sequence[str], replacing: Replacing) -> str:
        """The clause that replaces rows. Assignments run one after the other, so the parts of the version come last,
        the most important one at the end.
        """
        key, ages = replacing.key, list(replacing.newer_by)
        names = [*(name for name in columns if name not in (*key, *ages)), *reversed(ages)]
        sent = self.ages(replacing, lambda name: f"VALUES({self.quote(name)})")
        newer = self.newer(sent, self.ages(replacing, self.quote), strict=replacing.strict)
        value = "IF({1}, VALUES({0}), {0})" if ages else "VALUES({0})"
        updates = [f"{self.quote(name)} = {value.format(self.quote(name), newer)}" for name in names]
        same = f"{self.quote(key[0])} = {self.quote(key[0])}"
        return f"ON DUPLICATE KEY UPDATE {', '.join(updates) or same}"

    # Names.

    def fold(self, name: str) -> str:
        return name.lower()

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"


def _byte_by_byte(connection: Session) -> str:
    """The clause that lets texts be compared so."""
    return f"COLLATE {'utf8mb4_nopad_bin' if connection.is_mariadb else 'utf8mb4_0900_bin'}"


def _groups(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Rows by hundreds, each with a condition in one statement."""
    return (rows[first : first + 100] for first in range(0, len(rows), 100))


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


def definition_of(session: Session, named: str) -> str:
    """The CREATE statement of a table, without the next AUTO_INCREMENT number; empty if there is no table."""
    try:
        row = session.execute(f"SHOW CREATE TABLE {named}").fetchone()
    except driver().MySQLError as error:
        if number_of(error) == _NO_SUCH_TABLE:
            return ""
        raise
    return _NEXT_NUMBER.sub(r"\1", str(row[1])) if row else ""


def problem_of(name: str, definition: str) -> str | None:
    """Why a table is refused, by its CREATE statement. An unknown engine is refused too."""
    bare = _QUOTED.sub("?", definition)
    if not definition:
        return None  # the table is missing, and the sink makes it
    if not re.match(r"CREATE TABLE\b", bare):
        what = "a view" if re.match(r"CREATE .*\bVIEW\b", bare, re.DOTALL) else "of an unknown kind"
        return f"{name} is {what}, not a table; expected a table with ENGINE=InnoDB"
    if re.search(r"\bSEQUENCE=1\b", bare):
        return f"{name} is a sequence, not a table; expected a table with ENGINE=InnoDB"
    engines = _ENGINE.findall(bare)
    others = [engine for engine in engines if engine.lower() not in _ENGINES]
    if others or not engines:
        engine = f"the engine {others[0]}" if others else "an engine that the server does not name"
        return (
            f"{name} has {engine}; expected ENGINE=InnoDB for every partition: only InnoDB commits rows and position "
            "together. Convert the table (ALTER TABLE … ENGINE=InnoDB), or use another one"
        )
    return None


def problem_of_key(session: Session, at: tuple[Any, str], given: Collection[str], key: set[str]) -> str | None:
    """The problem of a table's unique indexes, by folded names; None if there is none.

    MariaDB replaces a row that collides in any unique index, so only the key's index may collide. A part that is not a
    whole column (a prefix, an expression) never belongs to the key.
    """
    indexes: dict[str, set[str]] = {}
    safe = set()
    for index, column, cut, extra in session.execute(UNIQUE, at).fetchall():
        part = f"a part of {column}" if column is None or cut is not None else column.lower()
        indexes.setdefault(index, set()).add(part)
        if column is not None and "auto_increment" in (extra or "") and column.lower() not in given:
            safe.add(index)
    if key not in indexes.values():
        return f"upsert needs a primary key or unique index of {sorted(key)}; found {sorted(indexes) or 'none'}"
    others = sorted(index for index, its in indexes.items() if its != key and index not in safe)
    if others:
        return (
            f"unique index {others[0]!r} is not the index of the key, but MariaDB would also replace rows that collide "
            "in this index. Drop the index, or use its columns as the key"
        )
    return None


def _is_of_the_client(number: int) -> bool:
    """Whether PyMySQL itself made the error, not the server."""
    return 2000 <= number <= 2999

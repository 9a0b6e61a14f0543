"""A PyMySQL connection with time limits and strict values, and the settings under which its server may lose commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wal_sink_backends.common.sinks import client_library
from wal_sink_backends.sql.base.server import ServerSession

if TYPE_CHECKING:
    from pymysql.connections import Connection as Driver
    from pymysql.cursors import Cursor

    from wal_sink_backends.sql.base.dialect import Limits

_SETTINGS = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog')
"""
_UNTORN = frozenset({"ON", "DETECT_AND_RECOVER", "FAST", "1"})
"""Safe values of `innodb_doublewrite`, in upper case."""
_NO_LIMIT = (1 << 64) - 1


def driver() -> Any:
    return client_library("pymysql", "MariaDB and MySQL need PyMySQL", "mariadb", "'PyMySQL>=1.2'")


def number_of(error: BaseException) -> int:
    """The error number; 0 where PyMySQL has none, as on a closed connection."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


class Session(ServerSession):
    """One connection."""

    def __init__(self, connection: Driver[Any], limits: Limits) -> None:
        self._connection = connection
        try:
            self.is_mariadb = "mariadb" in str(self._value("VERSION()")).lower()
            self.set(limits)
            self.longest_statement = int(self._value("@@max_allowed_packet")) - 1024
        except BaseException:
            connection.close()
            raise

    def set(self, limits: Limits) -> None:
        """Set strict values, every constraint, UTC, READ COMMITTED (no locks on gaps), and all time limits."""
        busy_s = max(1, round(limits.busy_timeout_s))
        modes = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
        settings = {
            "sql_mode": f"'{modes},ERROR_FOR_DIVISION_BY_ZERO'",
            "time_zone": "'+00:00'",
            "innodb_lock_wait_timeout": busy_s,
            "lock_wait_timeout": busy_s,
            "foreign_key_checks": 1,  # a server or a proxy may have switched them off
            "unique_checks": 1,
            "completion_type": "'NO_CHAIN'",  # else COMMIT may disconnect, or begin another transaction
            "sql_select_limit": _NO_LIMIT,  # else an answer may be silently cut
        }
        if self.is_mariadb:
            settings |= {"max_statement_time": limits.statement_timeout_s, "idle_transaction_timeout": busy_s}
            settings["check_constraint_checks"] = 1
        else:  # MySQL ends only a session that idles, in a transaction or not
            settings |= {"wait_timeout": max(busy_s, round(limits.statement_timeout_s))}
        self.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in settings.items()))
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")

    @property
    def usable(self) -> bool:
        return bool(self._connection.open)

    def close(self) -> None:
        """Close the connection, at once if the server no longer listens."""
        if self._connection.open:
            self._connection.close()

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> Cursor:
        cursor: Cursor = self._connection.cursor()
        cursor.execute(statement, values)
        return cursor

    def begin(self) -> None:
        self.execute("START TRANSACTION READ WRITE")

    def commit(self) -> None:
        self.execute("COMMIT")

    def _value(self, expression: str) -> Any:
        (value,) = self.execute(f"SELECT {expression}").fetchone() or (None,)
        return value

    def quoted(self, text: str) -> str:
        """A text as a literal, escaped for the session's SQL mode."""
        literal: str = self._connection.escape(text)
        return literal

    def give_up(self) -> None:
        self._connection._force_close()  # type: ignore[attr-defined]  # noqa: SLF001


def mariadb_losses(session: ServerSession) -> Iterator[str]:
    """Why a server of MariaDB or MySQL may lose acknowledged commits. Ordinary users may not list its replicas."""
    found: Mapping[str, str] = {
        str(name).lower(): str(value).upper() for name, value in session.execute(_SETTINGS).fetchall()
    }
    flush, pages = found.get("innodb_flush_log_at_trx_commit", "unknown"), found.get("innodb_doublewrite", "unknown")
    if flush != "1":
        yield (
            f"innodb_flush_log_at_trx_commit is {flush}: a crash of the machine{' or of the server' * (flush == '0')} "
            "may lose the commits of the last second. Set innodb_flush_log_at_trx_commit to 1"
        )
    if found.get("log_bin", "ON") != "OFF" and (sync := found.get("sync_binlog", "unknown")) != "1":
        yield (
            f"sync_binlog is {sync}: a crash of the machine may lose the newest commits, here or on its replicas. Set "
            "sync_binlog to 1"
        )
    if pages not in _UNTORN:
        yield (
            f"innodb_doublewrite is {pages}: a crash of the machine may damage pages of table or ledger. Set "
            "innodb_doublewrite to ON, unless the storage always writes whole pages"
        )

"""A PyMySQL connection with time limits and strict values, and the meaning of MariaDB's and MySQL's errors."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from wal_sink.errors import ConfigError
from wal_sink.sinks.certificates import is_certificate_error
from wal_sink_backends.sql.base.server import ServerSession

if TYPE_CHECKING:
    from pymysql.connections import Connection as Driver
    from pymysql.cursors import Cursor

    from wal_sink_backends.sql.base.dialect import Limits

_NO_LIMIT = (1 << 64) - 1
_FIRST_OF_THE_CLIENT, _LAST_OF_THE_CLIENT = 2000, 2999
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


def driver() -> ModuleType:
    try:
        import pymysql  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError(
            "MariaDB and MySQL need PyMySQL, on the executors too. Install wal-sink with its extra mariadb, or: pip "
            "install 'PyMySQL>=1.2'"
        ) from error
    return pymysql


def number_of(error: BaseException) -> int:
    """The error number; 0 where PyMySQL has none, as on a closed connection."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def passes(error: BaseException) -> bool:
    """Whether another attempt may succeed."""
    number = number_of(error)
    if is_certificate_error(error):  # its number is 2003, as for a server that does not answer
        return False
    if _FIRST_OF_THE_CLIENT <= number <= _LAST_OF_THE_CLIENT:
        return number not in _LASTING_OF_THE_CLIENT
    return number in _PASSING or number == 0


def refuses_rows(error: BaseException) -> bool:
    """Whether an error is about single rows: a constraint, a value that a column cannot hold."""
    return number_of(error) in _OF_ROWS


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

"""A psycopg connection with time limits on every step, and the settings under which its server may lose commits."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from wal_sink.support.exit_hooks import Owner
from wal_sink_backends.common.sinks import client_library
from wal_sink_backends.sql.base.server import UNREADABLE, ServerSession

if TYPE_CHECKING:
    import psycopg

    from wal_sink_backends.sql.base.dialect import Limits

_SETTINGS = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
           current_setting('synchronous_standby_names'),
           (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS
            (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))
"""
"""Counts standbys by their processes, which every user may see; subscribers and backups do not count."""
_DURABLE = "replace(current_setting('synchronous_commit'), 'off', 'on')"
_DEFAULTS = ("session_authorization", "role", "search_path", "synchronous_commit")
"""Settings that get the value with which the session began. Functions of triggers may use the search path."""


def driver() -> Any:
    return client_library("psycopg", "PostgreSQL needs psycopg 3", "postgresql", "'psycopg[binary]'")


@cache
def connection_class() -> Any:
    """A class of connections that close silently together with a sink that was not closed."""
    import psycopg  # noqa: PLC0415 - an optional dependency

    class Connection(psycopg.Connection[Any]):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._owner = Owner()
            super().__init__(*args, **options)

        def __del__(self, *_: object) -> None:
            if self._owner.is_here:
                self.close()

    return Connection


class Session(ServerSession):
    """One connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], limits: Limits) -> None:
        self._connection = connection
        self._limit_s = limits.silence_s
        self._begin = self._beginning(limits)
        self._role: str | None = None
        self.is_row_secured = False
        """Whether row-level security of the target table applies to this user, by the newest look."""

    @property
    def usable(self) -> bool:
        return not self._connection.closed

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> psycopg.Cursor[Any]:
        with self._bounded():
            return self._connection.execute(statement.encode(), values)

    def copy(self, statement: str, rows: Sequence[str]) -> int:
        """Run COPY … FROM STDIN with a line for each row. Returns the server's count of the rows that the table kept.

        If a pooler adds its own error to the server's last message, psycopg shows neither.
        """
        import psycopg  # noqa: PLC0415 - it made the connection, so it is installed

        data = "\n".join([*rows, ""]).encode()
        try:
            with self._bounded(), self._connection.cursor() as cursor:
                with cursor.copy(statement.encode()) as copy:
                    copy.write(data)
                return cursor.rowcount
        except psycopg.ProgrammingError as error:
            if error.sqlstate is not None:
                raise
            self.close()
            raise ConnectionError(
                f"the server answered COPY with several results, so the connection was closed ({error})"
            ) from error

    def begin(self) -> None:
        try:
            cursor = self.execute(self._begin)
        except driver().errors.FeatureNotSupported as error:  # READ WRITE on a standby, as after a fail-over
            self.close()
            raise ConnectionError(f"the server is read only: {error}. Connect the sink to the primary") from error
        while cursor.nextset():
            pass
        role, commit = cursor.fetchone() or (None, "off")
        self._role = self._role or role
        if role != self._role or commit == "off":
            self.close()
            raise ConnectionError(f"the session has the role {role} (expected {self._role}) and commits with {commit}")

    def commit(self) -> None:
        """Commit. An aborted transaction answers COMMIT with ROLLBACK, without an error, which is refused here."""
        if (answer := self.execute("COMMIT").statusmessage) != "COMMIT":
            raise ConnectionError(f"the server answered COMMIT with {answer}: nothing was committed")

    def release(self, savepoint: str) -> None:
        """Forget a savepoint, unless the transaction cannot go on anyway."""
        if self.usable and self._connection.info.transaction_status.name == "INTRANS":
            self.execute(f"RELEASE SAVEPOINT {savepoint}")

    def _beginning(self, limits: Limits) -> str:
        """The statements that begin a transaction. They set within it what another client of a pooler may have
        left in the session, and durable commits. The last answer tells what holds.
        """
        settings = {
            "statement_timeout": _milliseconds(limits.statement_timeout_s),
            "lock_timeout": _milliseconds(limits.busy_timeout_s),
            "idle_in_transaction_session_timeout": _milliseconds(limits.busy_timeout_s),
            "tcp_keepalives_idle": "10",  # a machine that vanished in the middle of a COPY keeps no lock for hours
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "intervalstyle": "postgres",
            "client_encoding": "utf8",
            "array_nulls": "on",  # else NULL in an array is the text NULL
            "quote_all_identifiers": "off",  # else the server quotes the types that it names
        }
        return "; ".join(
            [
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
                *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()),
                *(f"SET LOCAL {name} TO DEFAULT" for name in _DEFAULTS),
                "SET CONSTRAINTS ALL IMMEDIATE",  # an error deferred to COMMIT would name no row
                f"SELECT current_user::text, set_config('synchronous_commit', {_DURABLE}, true)",
            ]
        )

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Close the connection if the server is silent for too long: it stands still, or the network loses packets."""
        watch = _Watch(self._connection.fileno(), self._limit_s)
        try:
            yield
        except Exception as error:
            if watch.cut:
                raise TimeoutError(f"no answer within {self._limit_s:g} s; the connection was cut") from error
            raise
        finally:
            watch.end()
            if watch.cut:
                self._connection.close()


class _Watch:
    """Shuts a socket down after a time, from a separate thread."""

    def __init__(self, descriptor: int, limit_s: float) -> None:
        self.cut = False
        self._ended = False
        self._lock = threading.Lock()
        self._descriptor = descriptor
        self._timer = threading.Timer(limit_s, self._shut_down)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        with self._lock:
            self._ended = True
        self._timer.cancel()

    def _shut_down(self) -> None:
        with self._lock:
            if self._ended:
                return
            self.cut = True
            with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as twin:
                twin.shutdown(socket.SHUT_RDWR)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def postgresql_losses(session: ServerSession) -> Iterator[str]:
    """Why the session's server may lose acknowledged commits."""
    found = session.execute(_SETTINGS).fetchone()
    if found is None:
        yield UNREADABLE.format("no answer")
        return
    fsync, full_pages, commit, names, standbys = found
    if fsync != "on":
        yield (
            f"fsync is {fsync}: a crash of the machine may lose any commit, and may damage table and ledger: rows may "
            "be lost without their position. Set fsync = on"
        )
    if full_pages != "on":
        yield (
            f"full_page_writes is {full_pages}: a crash of the machine may damage pages of table or ledger. Set "
            "full_page_writes = on, unless the storage always writes whole pages"
        )
    yield from _standby_losses(commit, names, int(standbys))


def _standby_losses(commit: str, names: str, standbys: int) -> Iterator[str]:
    if standbys and not names:
        yield (
            f"the server sends its log to {standbys} standby(s), but waits for none of them (synchronous_standby_names "
            "is empty): a fail-over may lose acknowledged commits. Delivery notices the loss when it next reads the "
            "ledger, but not after its last read. To lose no commit, set synchronous_standby_names"
        )
    if names and commit in ("local", "remote_write"):
        yield (
            f"synchronous_commit is {commit}: although synchronous_standby_names is set, a commit is acknowledged "
            "before a standby has it on disk, and a fail-over may lose this commit. Set synchronous_commit = on for "
            "this user"
        )

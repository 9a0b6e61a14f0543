"""Settings of PostgreSQL, MariaDB and MySQL under which an acknowledged commit may be lost.

They are read with each new connection: after a fail-over the same address may lead to a server with other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from wal_sink_backends.common.durability import warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal_sink_backends.sql.base.server import ServerSession

    S = TypeVar("S", bound=ServerSession)

_UNREADABLE = "the settings of the server cannot be read ({}). Check the list in docs/sinks/sql.md by hand"
_POSTGRESQL = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
           current_setting('synchronous_standby_names'),
           (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS
            (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))
"""
"""Counts standbys by their processes, which every user may see; subscribers and backups do not count."""
_MARIADB = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog')
"""
_UNTORN = frozenset({"ON", "DETECT_AND_RECOVER", "FAST", "1"})
"""Safe values of `innodb_doublewrite`, in upper case."""


def checked(
    session: S,
    address: str,
    losses: Callable[[S], Iterable[str]],
    passes: Callable[[Any], bool],
    error: type[Exception],
) -> S:
    """The session itself, after warnings of what its server may lose. Closes it if the check fails with a passing
    error.

    A server that refuses to tell its settings is only warned of, because it can still take rows.
    """
    try:
        found = list(losses(session))
    except error as refused:
        if passes(refused):
            session.close()
            raise
        found = [_UNREADABLE.format(refused)]
    except BaseException:
        session.close()
        raise
    warn_of(found, address)
    return session


def postgresql_losses(session: ServerSession) -> Iterator[str]:
    """Why the session's server may lose acknowledged commits."""
    found = session.execute(_POSTGRESQL).fetchone()
    if found is None:
        yield _UNREADABLE.format("no answer")
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


def mariadb_losses(session: ServerSession) -> Iterator[str]:
    """Why a server of MariaDB or MySQL may lose acknowledged commits. Ordinary users may not list its replicas."""
    found: Mapping[str, str] = {
        str(name).lower(): str(value).upper() for name, value in session.execute(_MARIADB).fetchall()
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

"""`SqlSink` warns when it opens a real server that may lose rows that it acknowledged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.logged import said_here
from tests.support.servers.databases import MariadbServer, PostgresqlServer, servers_folder
from tests.support.servers.postgres_pair import PostgresPair
from tests.support.sql_chunks import opened, sink_to
from tests.support.waiting import wait_until
from wal_sink_backends.common.sinks import warn_once


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


class DurableServer(PostgresqlServer):
    """As docs/sinks/sql.md asks for."""

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "fsync": "on"}


@pytest.fixture
def durable(sql_folder: Path) -> Iterator[PostgresqlServer]:
    with DurableServer(sql_folder / "durable") as server:
        yield server


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return said_here(caplog)


def test_a_durable_postgresql_is_warned_of_nothing_until_it_is_one_no_more(
    durable: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    database = durable.new_database()
    with opened(sink_to(durable, database)):
        assert told(caplog) == []
    durable.query(database, "ALTER SYSTEM SET full_page_writes = off")
    durable.query(database, "SELECT pg_reload_conf()")
    durable.kill()
    durable.start()
    for _ in range(2):
        with opened(sink_to(durable, database)):
            pass
    (warned,) = told(caplog)
    assert "full_page_writes is off" in warned
    assert f"127.0.0.1:{durable.port}/{database}: " in warned


def test_a_postgresql_without_fsync_is_warned_of(
    postgresql: PostgresqlServer, pg: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(sink_to(postgresql, pg)):
        (warned,) = told(caplog)
    assert "fsync is off: a crash of the machine may lose any commit" in warned


def synchronous_names_of_a_new_session(pair: PostgresPair, database: str) -> str:
    with contextlib.closing(pair.primary.connect(database)) as connection:
        ((names,),) = connection.execute("SHOW synchronous_standby_names").fetchall()
    return str(names)


def test_a_standby_that_is_not_waited_for_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The sink's user may see that there is one, although it sees nothing else of it."""
    with servers_folder() as place, PostgresPair(place) as pair:
        database = pair.primary.new_database()
        with opened(sink_to(pair.primary, database)):
            assert "standby" not in caplog.text
        pair.renew()
        with opened(sink_to(pair.primary, database)):
            assert "to 1 standby(s), but waits for none of them (synchronous_standby_names is empty)" in caplog.text
        caplog.clear()
        warn_once.cache_clear()
        pair.query(database, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        pair.query(database, "SELECT pg_reload_conf()")
        wait_until(lambda: synchronous_names_of_a_new_session(pair, database) == "*", "the server read its settings")
        with opened(sink_to(pair.primary, database)):
            assert "standby" not in caplog.text
        pair.query(database, f"ALTER DATABASE {database} SET synchronous_commit = 'local'")
        with opened(sink_to(pair.primary, database)):
            assert "synchronous_commit is local: although synchronous_standby_names is set" in caplog.text


def test_a_mariadb_that_does_not_flush_is_warned_of(
    mariadb: MariadbServer, maria: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(sink_to(mariadb, maria)):
        (warned,) = told(caplog)
    assert "innodb_flush_log_at_trx_commit is 0: a crash of the machine or of the server" in warned
    caplog.clear()
    mariadb.query(maria, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    try:
        with opened(sink_to(mariadb, maria)):
            assert told(caplog) == []
    finally:
        mariadb.query(maria, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")

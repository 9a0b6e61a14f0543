"""A new database for each test of `SqlSink` on real servers: on both servers, unless the test names one."""

from __future__ import annotations

import pytest

from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, DatabaseServer, MariadbServer, PostgresqlServer


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> str:
    return server.new_database()


@pytest.fixture
def pg(postgresql: PostgresqlServer) -> str:
    return postgresql.new_database()


@pytest.fixture
def maria(mariadb: MariadbServer) -> str:
    return mariadb.new_database()

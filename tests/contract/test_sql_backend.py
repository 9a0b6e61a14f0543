"""`SqlSink` keeps the contract of a transactional sink on real PostgreSQL and MariaDB servers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.contracts import FoldedContract
from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, DatabaseServer, MariadbServer, PostgresqlServer
from tests.support.waiting import PATIENCE_S
from wal_sink_backends.sql.sink import SqlSink

_numbers = itertools.count()


class Target:
    """A separate table in a database."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self.server = server
        self.database = database
        self.table = f"flights_{next(_numbers)}"

    def another(self) -> Target:
        """In the same database, which is as good as new without its ledger."""
        self.server.query(self.database, "DROP TABLE IF EXISTS wal_sink_ledger")
        return Target(self.server, self.database)


class SqlContract(FoldedContract):
    every = 16
    each_line = False
    key = ("id",)
    law = "[SQL](sinks/sql.md)"

    @pytest.fixture(autouse=True)
    def password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)

    def another(self, target: Target) -> Target:
        return target.another()

    def make_sink(self, target: Target) -> SqlSink:
        url = target.server.url(target.database)
        upsert: dict[str, Any] = {"mode": "upsert", "key": self.key} if self.is_keyed else {}
        return SqlSink(url, target.table, password_env=PASSWORD_VARIABLE, connect_timeout_s=PATIENCE_S, **upsert)

    def secrets(self) -> list[str]:
        return [PASSWORD]


class TestPostgresql(SqlContract):
    @pytest.fixture
    def target(self, postgresql: PostgresqlServer) -> Target:
        return Target(postgresql, postgresql.new_database())

    def rows_in(self, target: Target) -> list[Any]:
        if target.server.query(target.database, f"SELECT to_regclass('{target.table}')") == [(None,)]:
            return []
        rows = target.server.query(target.database, f"SELECT to_jsonb(t) FROM {target.table} AS t")
        return [row for (row,) in rows]


class TestMariadb(SqlContract):
    @pytest.fixture
    def target(self, mariadb: MariadbServer) -> Target:
        return Target(mariadb, mariadb.new_database())

    def rows_in(self, target: Target) -> list[Any]:
        found = target.server.query(
            target.database,
            f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{target.database}' "
            f"AND table_name = '{target.table}' ORDER BY ordinal_position",
        )
        names = [name for (name,) in found]
        rows = target.server.query(target.database, f"SELECT * FROM {target.table}") if names else []
        return [dict(zip(names, row, strict=True)) for row in rows]

"""Database servers for any test: one of each per session (and worker), a database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import require
from tests.databases import HOW_TO_GET_THEM, MariadbServer, PostgresqlServer, program, servers_folder


@pytest.fixture(scope="session")
def sql_folder() -> Iterator[Path]:
    with servers_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgresql(sql_folder: Path) -> Iterator[PostgresqlServer]:
    require(program("initdb") is not None, HOW_TO_GET_THEM)
    server = PostgresqlServer(sql_folder / "postgresql")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mariadb(sql_folder: Path) -> Iterator[MariadbServer]:
    require(program("mariadbd") is not None, HOW_TO_GET_THEM)
    server = MariadbServer(sql_folder / "mariadb")
    try:
        yield server
    finally:
        server.stop()

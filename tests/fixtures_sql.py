"""Database servers for any test: one of each per session (and worker), a database of its own for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import require
from tests.databases import HOW_TO_GET_THEM, MariadbServer, PostgresqlServer, program


@pytest.fixture(scope="session")
def sql_folder() -> Iterator[Path]:
    """Not below pytest's own folder, which other users may not enter; in memory where that is a folder too."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of an unforgeable name is made in it
    with tempfile.TemporaryDirectory(prefix="wal-sink-sql-", dir=memory if memory.is_dir() else None) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


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

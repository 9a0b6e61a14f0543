"""A query whose target is restored to its backup, together with its ledger: the case for `catch-up`."""

from __future__ import annotations

import json
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.support.servers.databases import (
    PASSWORD,
    PASSWORD_VARIABLE,
    DatabaseServer,
    PostgresqlServer,
    postgresql_program,
)
from tests.support.sql_chunks import wait_until_alone
from tests.support.staged_log import stage

ROWS = 10
"""Rows of a batch, in two segments of two and three chunks."""
WHY = ("--why", "restored from the backup of Tuesday", "--yes")


class Restorable(ABC):
    """A table `flights` of which a backup is made."""

    environment: Mapping[str, str] = MappingProxyType({})

    @property
    @abstractmethod
    def to(self) -> str:
        """The URL of a sink for it."""

    @abstractmethod
    def rows(self) -> list[int]:
        """Return its ids, sorted, read by the database's own client."""

    @abstractmethod
    def back_up(self) -> Callable[[], None]:
        """Make a backup. The result restores it."""


@dataclass(frozen=True)
class OnServer(Restorable):
    """A database of a server. PostgreSQL is backed up by `pg_dump`, MariaDB by copies of both tables."""

    server: DatabaseServer
    database: str
    environment = MappingProxyType({PASSWORD_VARIABLE: PASSWORD})

    @property
    def to(self) -> str:
        query = f"table=flights&password_env={PASSWORD_VARIABLE}"
        url = self.server.url(self.database)
        return f"{url}{'&' if '?' in url else '?'}{query}"

    def rows(self) -> list[int]:
        return [row for (row,) in self.server.query(self.database, "SELECT id FROM flights ORDER BY 1")]

    def back_up(self) -> Callable[[], None]:
        if isinstance(self.server, PostgresqlServer):
            return self._dump(self.server)
        copies = {name: f"{name}_backup" for name in ("flights", "wal_sink_ledger")}
        for name, copy in copies.items():
            self.server.query(self.database, f"CREATE TABLE {copy} AS SELECT * FROM {name}")

        def restore() -> None:
            for name, copy in copies.items():
                self.server.query(self.database, f"DELETE FROM {name}")
                self.server.query(self.database, f"INSERT INTO {name} SELECT * FROM {copy}")

        return restore

    def _dump(self, server: PostgresqlServer) -> Callable[[], None]:
        dump = server.folder / f"{self.database}.sql"
        to = [f"--port={server.port}", "--host=127.0.0.1", "--username=admin"]
        server.run(postgresql_program("pg_dump"), *to, "--clean", f"--file={dump}", self.database)
        psql = postgresql_program("psql")
        command: list[str | Path] = [psql, *to, "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", self.database]

        def restore() -> None:
            wait_until_alone(server, self.database)
            server.run(*command)

        return restore


@dataclass(frozen=True)
class InFile(Restorable):
    """A file of SQLite. The backup is a copy of the file."""

    path: Path

    @property
    def to(self) -> str:
        return f"sqlite:///{self.path}?table=flights"

    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as database:
            return [row for (row,) in database.execute("SELECT id FROM flights ORDER BY 1")]

    def back_up(self) -> Callable[[], None]:
        copy = self.path.with_suffix(".backup")
        self.rows()  # the last connection that closes leaves everything in the one file
        assert not self._beside("-wal").exists(), f"{self.path} is in use"
        shutil.copyfile(self.path, copy)

        def restore() -> None:
            for tail in ("-wal", "-shm", "-journal"):
                self._beside(tail).unlink(missing_ok=True)
            shutil.copyfile(copy, self.path)

        return restore

    def _beside(self, tail: str) -> Path:
        return self.path.with_name(self.path.name + tail)


@dataclass(frozen=True)
class Site:
    """A query without Spark, its WAL, and a target of which a backup is made."""

    folder: Path
    target: Restorable

    @property
    def wal(self) -> Path:
        return self.folder / "wal"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def stage(self, batches: int, *, wide: int | None = None) -> None:
        """Stage batches up to a number of them. The one that is `wide` has a third segment."""

        def rows(batch: int, _end: int) -> list[pa.Table]:
            first = batch * ROWS
            ends = [0, 4, 7, 10] if batch == wide else [0, 4, 10]
            return [pa.table({"id": list(range(first + at, first + end))}) for at, end in pairwise(ends)]

        stage(self.folder, batches, rows, is_over=True, chunk_rows=2)

    def restored(self, kept: int, batches: int, *, wide: int | None = None) -> Callable[[], None]:
        """Deliver some batches and make a backup, then deliver all batches. The result restores the backup."""
        self.stage(kept)
        self.drain()
        restore = self.target.back_up()
        self.stage(batches, wide=wide)
        self.drain()
        return restore

    def drain(self, code: int = 0) -> Result:
        start = () if (self.wal / "sinks").exists() else ("--start-from", "earliest")
        return self.run("drain", "--checkpoint", str(self.checkpoint), *start, code=code)

    def verify(self, code: int = 0) -> set[str]:
        """Return the faults that `verify` finds."""
        return {
            each["fault"] for each in self.json("verify", "--checkpoint", str(self.checkpoint), code=code)["faults"]
        }

    def command(self, verb: str, *more: str, to: bool = True) -> list[str]:
        """The arguments of a command about the WAL, and about the target unless `to` is false."""
        return [*verb.split(), str(self.wal), *(("--to", self.target.to) if to else ()), *more]

    def attempt(self, verb: str, *more: str, to: bool = True) -> Result:
        """Run a command, which may fail. It uses no Spark session of this process."""
        runner = CliRunner(env={"COLUMNS": "1000", **self.target.environment})
        with patch.object(wal_sink.walsink, "current_session", lambda: None):
            return runner.invoke(main, self.command(verb, *more, to=to))

    def run(self, verb: str, *more: str, code: int = 0, to: bool = True) -> Result:
        result = self.attempt(verb, *more, to=to)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, verb: str, *more: str, code: int = 0, to: bool = True) -> Any:
        return json.loads(self.run(verb, *more, "--json", code=code, to=to).stdout)

    def rows(self) -> list[int]:
        return self.target.rows()

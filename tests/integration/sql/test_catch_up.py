"""A database that was restored from its backup gets what it lost by one command, each row once, and the stream goes on.

The backup is one of `pg_dump`, or a copy of both tables in one transaction. It holds the ledger, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import Log, paths
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.processes import python_environment
from tests.support.servers.databases import (
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


@dataclass
class Site:
    """A query, and a database of which a backup is made."""

    folder: Path
    server: DatabaseServer
    database: str

    @property
    def wal(self) -> str:
        return str(self.folder / "wal")

    @property
    def to(self) -> str:
        query = f"table=flights&password_env={PASSWORD_VARIABLE}"
        url = self.server.url(self.database)
        return f"{url}{'&' if '?' in url else '?'}{query}"

    def stage(self, batches: int, *, wide: int | None = None) -> None:
        """Stage batches up to a number of them. The one that is `wide` has a third segment."""

        def rows(batch: int, _end: int) -> list[pa.Table]:
            first = batch * ROWS
            ends = [0, 4, 7, 10] if batch == wide else [0, 4, 10]
            return [pa.table({"id": list(range(first + at, first + end))}) for at, end in pairwise(ends)]

        stage(self.folder, batches, rows, is_over=True, chunk_rows=2)

    def drain(self, code: int = 0) -> Result:
        known = (self.folder / "wal" / "sinks").exists()
        start = () if known else ("--start-from", "earliest")
        return self.run("drain", "--checkpoint", str(self.folder / "checkpoint"), *start, code=code)

    def run(self, verb: str, *more: str, code: int = 0, to: bool = True) -> Result:
        target = ("--to", self.to) if to else ()
        result = CliRunner(env={"COLUMNS": "1000"}).invoke(main, [*verb.split(), self.wal, *target, *more])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, verb: str, *more: str, code: int = 0, to: bool = True) -> Any:
        return json.loads(self.run(verb, *more, "--json", code=code, to=to).stdout)

    def rows(self) -> list[int]:
        return [row for (row,) in self.server.query(self.database, "SELECT id FROM flights ORDER BY 1")]

    def back_up(self) -> Callable[[], None]:
        """Make a backup. The result restores it."""
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
        return lambda: server.run(*command)


@pytest.fixture
def site(server: DatabaseServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Six batches were delivered. Then the database was restored to its backup, which was made after three."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    site = Site(tmp_path, server, database)
    site.stage(3)
    site.drain()
    restore = site.back_up()
    site.stage(6)
    site.drain()
    assert site.rows() == list(range(6 * ROWS))
    restore()
    assert site.rows() == list(range(3 * ROWS))
    return site


def test_a_restored_database_gets_wednesday_again_with_one_command(site: Site) -> None:
    site.stage(7)
    refused = site.drain(code=1).stderr
    assert "The target was restored to an older state" in refused
    assert "wal-sink catch-up WAL --name SINK --to TARGET --why TEXT" in refused
    found = site.json("verify", "--checkpoint", str(site.folder / "checkpoint"), code=1)
    assert {each["fault"] for each in found["faults"]} == {"target-behind"}

    plan = site.json("catch-up", "--dry-run", *WHY)
    assert plan["batches"] == [[3, 10], [4, 10], [5, 10]]
    assert site.rows() == list(range(3 * ROWS))
    done = site.json("catch-up", *WHY)
    assert (done["batches"], done["rows"], done["through"]) == (3, 30, 5)
    assert site.rows() == list(range(6 * ROWS))

    site.json("verify", "--checkpoint", str(site.folder / "checkpoint"))
    site.stage(8)
    site.drain()
    assert site.rows() == list(range(8 * ROWS))
    assert site.json("catch-up", *WHY)["batches"] == []


def test_killed_half_way_the_same_command_completes_it_and_no_row_is_doubled(site: Site) -> None:
    command = [sys.executable, "-m", "wal_sink.cli", "catch-up", site.wal, "--to", site.to, *WHY, "--rows-per-s", "3"]
    with subprocess.Popen(
        command, env=python_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while len(site.rows()) < 3 * ROWS + 12 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        assert process.poll() is None
        process.kill()
    wait_until_alone(site.server, site.database)
    half = site.rows()
    assert 3 * ROWS + 12 <= len(half) < 6 * ROWS

    sinks = site.json("sinks list", to=False)
    assert [change["outcome"] for sink in sinks for change in sink["changes"]] == ["unfinished"]
    assert "unfinished catch-up" in site.run("status", to=False).stdout
    found = site.json("verify", "--checkpoint", str(site.folder / "checkpoint"), code=1)
    assert {each["fault"] for each in found["faults"]} == {"target-behind"}
    assert "catch-up" in site.drain(code=1).stderr
    assert site.rows() == half

    done = site.json("catch-up", *WHY, "--take-over")

    assert done["rows"] == 6 * ROWS - len(half)
    assert site.rows() == list(range(6 * ROWS))
    site.stage(8)
    site.drain()
    assert site.rows() == list(range(8 * ROWS))


def test_a_backup_without_its_ledger_is_no_empty_target(site: Site) -> None:
    site.server.query(site.database, "DELETE FROM wal_sink_ledger")

    refused = site.run("catch-up", *WHY, code=2).stderr

    assert "its ledger was not restored with its rows" in refused
    assert site.rows() == list(range(3 * ROWS))


def test_after_a_batch_that_is_left_out_the_database_goes_on(
    server: DatabaseServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this batch used the third slot. A chunk without rows moves the slot past it."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    site = Site(tmp_path, server, database)
    site.stage(3)
    site.drain()
    restore = site.back_up()
    site.stage(6, wide=3)
    site.drain()
    restore()
    store = open_store(StoreSpec(site.wal))
    Log(store, SYSTEM, "a collection").raise_low_water(3)
    names = store.list(paths.batch(3), recursive=True)
    store.delete([*(f"{paths.batch(3)}/{name}" for name in names), paths.marker("default", 3)])

    refused = site.run("catch-up", *WHY, code=2).stderr
    assert "batch 3 was deleted from the log" in refused
    assert "add --leave-out 3" in refused
    done = site.json("catch-up", "--leave-out", "3", *WHY)

    assert (done["rows"], done["left_out"]) == (2 * ROWS, ["3"])
    site.stage(7)
    site.drain()
    assert site.rows() == [*range(3 * ROWS), *range(4 * ROWS, 7 * ROWS)]

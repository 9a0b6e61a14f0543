"""A database that was restored from its backup gets what it lost by one command, each row once, and the stream goes on.

The backup is one of `pg_dump`, or a copy of both tables in one transaction. It holds the ledger, too.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house.log import Log, paths
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.processes import python_environment
from tests.support.restored import ROWS, WHY, OnServer, Site
from tests.support.servers.databases import DatabaseServer
from tests.support.sql_chunks import wait_until_alone


@pytest.fixture
def site(server: DatabaseServer, database: str, tmp_path: Path) -> Site:
    """Six batches were delivered. Then the database was restored to its backup, which was made after three."""
    site = Site(tmp_path, OnServer(server, database))
    restore = site.restored(3, 6)
    assert site.rows() == list(range(6 * ROWS))
    restore()
    assert site.rows() == list(range(3 * ROWS))
    return site


def test_a_restored_database_gets_wednesday_again_with_one_command(site: Site) -> None:
    site.stage(7)
    refused = site.drain(code=1).stderr
    assert "The target was restored to an older state" in refused
    assert "wal-sink catch-up WAL --name SINK --to TARGET --why TEXT" in refused
    assert site.verify(code=1) == {"target-behind"}

    plan = site.json("catch-up", "--dry-run", *WHY)
    assert plan["batches"] == [[3, 10], [4, 10], [5, 10]]
    assert site.rows() == list(range(3 * ROWS))
    done = site.json("catch-up", *WHY)
    assert (done["batches"], done["rows"], done["through"]) == (3, 30, 5)
    assert site.rows() == list(range(6 * ROWS))

    assert site.verify() == set()
    site.stage(8)
    site.drain()
    assert site.rows() == list(range(8 * ROWS))
    assert site.json("catch-up", *WHY)["batches"] == []


def test_killed_half_way_the_same_command_completes_it_and_no_row_is_doubled(
    site: Site, server: DatabaseServer, database: str
) -> None:
    command = [sys.executable, "-m", "wal_sink.cli", *site.command("catch-up", *WHY, "--rows-per-s", "3")]
    with subprocess.Popen(
        command, env=python_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while len(site.rows()) < 3 * ROWS + 12 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        assert process.poll() is None
        process.kill()
    wait_until_alone(server, database)
    half = site.rows()
    assert 3 * ROWS + 12 <= len(half) < 6 * ROWS

    sinks = site.json("sinks list", to=False)
    assert [change["outcome"] for sink in sinks for change in sink["changes"]] == ["unfinished"]
    assert "unfinished catch-up" in site.run("status", to=False).stdout
    assert site.verify(code=1) == {"target-behind"}
    assert "catch-up" in site.drain(code=1).stderr
    assert site.rows() == half

    done = site.json("catch-up", *WHY, "--take-over")

    assert done["rows"] == 6 * ROWS - len(half)
    assert site.rows() == list(range(6 * ROWS))
    site.stage(8)
    site.drain()
    assert site.rows() == list(range(8 * ROWS))


def test_a_backup_without_its_ledger_is_no_empty_target(site: Site, server: DatabaseServer, database: str) -> None:
    server.query(database, "DELETE FROM wal_sink_ledger")

    refused = site.run("catch-up", *WHY, code=2).stderr

    assert "its ledger was not restored with its rows" in refused
    assert site.rows() == list(range(3 * ROWS))


def test_after_a_batch_that_is_left_out_the_database_goes_on(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """Only this batch used the third slot. A chunk without rows moves the slot past it."""
    site = Site(tmp_path, OnServer(server, database))
    site.restored(3, 6, wide=3)()
    store = open_store(StoreSpec(str(site.wal)))
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

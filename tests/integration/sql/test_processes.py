"""Processes that write by `SqlSink` and are killed, stopped, woken, or live side by side with different terms."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.programs.sql_writers import BATCH_ROWS, FENCED, writer
from tests.support.servers.databases import DatabaseServer, PostgresqlServer


def check(server: DatabaseServer, database: str, story: str) -> int:
    """Rows and ledger are equal, nothing is there twice; how many rows there are.

    One statement: the last commit of a killed process may still be under way.
    """
    quote = '"' if isinstance(server, PostgresqlServer) else "`"
    ledger = f"SELECT sum(batch_id * {BATCH_ROWS} + {quote}rows{quote}) FROM wal_sink_ledger"
    ((rows, distinct, due),) = server.query(
        database, f"SELECT count(*), count(DISTINCT id), ({ledger}) AS due FROM flights"
    )
    assert (rows, distinct) == (due, due), story
    return int(rows)


def test_kills_at_any_moment_leave_rows_and_ledger_equal(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    counts = []
    for number in range(8):
        with writer(server.url(database, password=True), tmp_path / f"{number}.log") as life:
            life.wait_for_output("wrote")
            time.sleep(moments.uniform(0.0, 0.1))
            life.send(signal.SIGKILL)
            assert life.wait() == -signal.SIGKILL, life.output[-500:]
        counts.append(check(server, database, f"seed {seed}, life {number}"))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0], "the writers were killed before they wrote"


def test_a_zombie_woken_after_its_successor_wrote_writes_nothing(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """The zombie is stopped at random moments, also within its transaction. The server then releases its lock."""
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    url = server.url(database, password=True)
    with ExitStack() as stack:
        zombie = stack.enter_context(writer(url, tmp_path / "1.log", term=1))
        for term in range(2, 7):
            zombie.wait_for_output("wrote")
            time.sleep(moments.uniform(0.0, 0.05))
            zombie.send(signal.SIGSTOP)
            newer = stack.enter_context(writer(url, tmp_path / f"{term}.log", term=term))
            newer.wait_for_output("wrote")
            zombie.send(signal.SIGCONT)
            assert zombie.wait() == FENCED, f"seed {seed}: {zombie.output[-500:]}"
            zombie = newer
    assert check(server, database, f"seed {seed}") > 0


def test_four_processes_write_side_by_side(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    """Segments of one batch, from the creation of ledger and table on."""
    url = server.url(database, password=True)
    with ExitStack() as stack:
        started = (writer(url, tmp_path / f"{n}.log", ordinal=n, batches=4, busy_timeout_s=60) for n in range(4))
        all_of_them = [stack.enter_context(one) for one in started]
        assert [one.wait() for one in all_of_them] == [0] * 4, [one.output[-500:] for one in all_of_them]
        assert not any("again" in one.output for one in all_of_them)
    assert check(server, database, "side by side") == 4 * 4 * BATCH_ROWS


def test_two_processes_with_different_terms_at_once(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    """Both begin with the first row of the slot. The lower term ends, in either order, and no row is there twice."""
    url = server.url(database, password=True)
    with (
        writer(url, tmp_path / "lower.log", batches=30, term=1) as lower,
        writer(url, tmp_path / "higher.log", batches=30, term=2) as higher,
    ):
        assert higher.wait() == 0, higher.output[-500:]
        assert lower.wait() in (0, FENCED), lower.output[-500:]
    assert check(server, database, "two terms") == 30 * BATCH_ROWS

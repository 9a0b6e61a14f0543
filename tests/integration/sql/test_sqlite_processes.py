"""SQLite under processes that write side by side, and are killed."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.programs.sql_writers import BATCH_ROWS, writer
from tests.support.waiting import PATIENCE_S
from wal_sink_backends.sql.base.dialect import LEDGER


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/rows.db"


def check(url: str, story: str) -> int:
    """Rows and ledger are equal, nothing is there twice; how many rows there are."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE_S)) as connection:
        ledger = f"SELECT sum(batch_id * {BATCH_ROWS} + rows) FROM {LEDGER}"
        rows, distinct, due = connection.execute(
            f"SELECT count(*), count(DISTINCT id), ({ledger}) FROM flights"
        ).fetchone()
    assert (rows, distinct) == (due, due), story
    return int(rows)


def test_a_kill_at_any_moment_leaves_rows_and_ledger_equal(url: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    counts: list[int] = []
    for number in range(10):
        with writer(url, tmp_path / f"{number}.log") as life:
            life.wait_for_output("wrote")
            time.sleep(moments.uniform(0.005, 0.15))
            life.kill()
        counts.append(check(url, f"seed {seed}"))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_four_processes_write_side_by_side(url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        started = (writer(url, tmp_path / f"{n}.log", ordinal=n, batches=5, busy_timeout_s=60) for n in range(4))
        all_of_them = [stack.enter_context(one) for one in started]
        assert [one.wait() for one in all_of_them] == [0] * 4, [one.output[-500:] for one in all_of_them]
    assert check(url, "side by side") == 4 * 5 * BATCH_ROWS

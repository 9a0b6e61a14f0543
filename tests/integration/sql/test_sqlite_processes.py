"""SQLite under processes that write side by side, and are killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.chunks import CONTEXT
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink_backends.sql.base.dialect import LEDGER
from wal_sink_backends.sql.sink import SqlSink

ROOT = Path(__file__).parents[4]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def sink(path: Path) -> Iterator[SqlSink]:
    yield from opened(SqlSink(f"sqlite:///{path}", "flights"))


def opened(sink: SqlSink) -> Iterator[SqlSink]:
    sink.open(CONTEXT)
    yield sink
    sink.close()


def query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as connection:
        return connection.execute(statement).fetchall()


WRITER = textwrap.dedent(
    """
    import dataclasses, sys
    import pyarrow as pa
    from wal_sink.sinks.chunk import Chunk, Position
    from wal_sink.sinks.base import Rejected, SinkContext
    from wal_sink_backends.sql.sink import SqlSink

    url, ordinal, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    slot = f"wal/default/{ordinal}"
    sink = SqlSink(url, "flights")
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot)
    pa.table({"id": [1]})  # imports pandas, which takes a while
    print("ready", flush=True)
    for batch in range(last.batch_id if last else 0, batches):
        segment, before = f"{ordinal}-{batch}", last
        for first in range(0, 600, 200):
            ids = [ordinal * 10**9 + batch * 1000 + row for row in range(first, first + 200)]
            chunk = Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * 200}), key=f"{segment}-{first}")
            last = Position(slot, batch, first + 200, segment)
            whose = dict(batch_id=batch, segment_id=segment, position=last, follows=before)
            sink.write(dataclasses.replace(chunk, rows=range(first, first + 200), start=first, **whose))
    sink.close()
    """
)


def start_writer(path: Path, ordinal: int, batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, f"sqlite:///{path}", str(ordinal), str(batches)]
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def tables_in(path: Path) -> bool:
    return bool(query(path, "SELECT name FROM sqlite_master WHERE name = 'flights'"))


def rows_by_ledger(path: Path) -> int:
    """600 rows for each batch before the last, and what the ledger tells of the last."""
    return sum(batch * 600 + rows for batch, rows in query(path, f"SELECT batch_id, rows FROM {LEDGER}"))


def test_a_kill_at_any_moment_leaves_rows_and_ledger_equal(path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    counts: list[int] = []
    for number in range(10):
        with start_writer(path, 0, 10**6) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0.005, 0.15))
            if number == 9:  # on a busy machine the others may have been killed before they wrote
                wait_until(lambda: tables_in(path) and rows_by_ledger(path) > counts[0], "it wrote")
            writer.kill()
        found = query(path, "SELECT count(*), count(DISTINCT id) FROM flights")[0] if tables_in(path) else (0, 0)
        assert found == (rows_by_ledger(path),) * 2, f"seed {seed}"
        counts.append(found[0])
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_four_processes_write_side_by_side(path: Path) -> None:
    writers = [start_writer(path, ordinal, 5) for ordinal in range(4)]
    for writer in writers:
        with writer:
            writer.wait(timeout=120)
        assert writer.returncode == 0
    assert query(path, "SELECT count(*), count(DISTINCT id) FROM flights") == [(4 * 5 * 600,) * 2]
    assert rows_by_ledger(path) == 4 * 5 * 600

"""`crash_matrix` and `FakeQuery.over`: what they count, what they permit, and what they say when used wrongly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wal_sink import Chunk, ConfigError, Delivery, DeliveryError, Sink
from wal_sink.sink import BatchSink, ReleasedBatch
from wal_sink.testing import FakeQuery, crash_matrix

SHORT = [pa.table({"id": [1, 2, 3]}), pa.table({"id": [4]})]
Rows = list[dict[str, Any]]


def plain(rows: list[Any]) -> Callable[[Chunk], None]:
    return lambda chunk: rows.extend(chunk.table.to_pylist())


def test_a_plain_sink_repeats_a_chunk_and_no_more() -> None:
    matrix = crash_matrix(plain, list, list, tables=SHORT).check()

    assert matrix.promise.ability == "plain"
    assert matrix.lost == 0
    assert 0 < matrix.repeated <= matrix.permitted
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0


def test_at_most_once_permits_loss_and_no_repetition() -> None:
    matrix = crash_matrix(
        lambda rows: Delivery(plain(rows), guarantee="at_most_once"), list, list, tables=SHORT, disturb=("dies",)
    ).check()

    assert matrix.lost > 0
    assert matrix.repeated == 0


def test_a_target_that_keeps_earlier_runs_is_judged_by_what_a_run_adds() -> None:
    rows: Rows = []

    assert crash_matrix(plain, list, lambda: rows, tables=SHORT, disturb=("stands still",)).check().takeovers


def test_every_takes_fewer_points_and_double_more_crashes() -> None:
    whole = crash_matrix(plain, list, list, tables=SHORT, disturb=("dies",))
    some = crash_matrix(plain, list, list, tables=SHORT, disturb=("dies",), every=9)
    twice = crash_matrix(plain, list, list, tables=SHORT, disturb=("dies",), every=9, double=True).check()

    assert some.points == -(-whole.points // 9)
    assert twice.crashes > 2 * some.crashes


def test_what_is_wrong_without_any_crash_is_all_that_is_told() -> None:
    matrix = crash_matrix(lambda _: lambda chunk: None, list, list, tables=SHORT)  # noqa: ARG005

    assert len(matrix.violations) == 1
    with pytest.raises(AssertionError, match=r"nothing happened: no crash, no failure\n +4 lost: \{'id': 1\}"):
        matrix.check()


def test_rows_that_were_altered_are_told_as_such() -> None:
    def text(rows: Rows) -> Callable[[Chunk], None]:
        return lambda chunk: rows.extend({"id": str(row)} for row in chunk.table["id"].to_pylist())

    with pytest.raises(AssertionError, match=r"never sent: \{'id': '1'\}.*(?s:.*)override tables\(\)"):
        crash_matrix(text, list, list, tables=SHORT).check()


def test_rows_in_must_give_mappings_with_the_columns() -> None:
    with pytest.raises(AssertionError, match=r"rows_in\(target\) gave 1: expected one mapping a row.*\['id'\]"):
        crash_matrix(plain, lambda _: [1], list, tables=SHORT)  # type: ignore[list-item]


def test_a_writer_of_whole_batches_needs_a_way_to_make_data_frames() -> None:
    class Writer(BatchSink):
        def write_batch(self, batch: ReleasedBatch) -> None:
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"data_frame=spark\.createDataFrame"):
        crash_matrix(lambda _: Writer(), list, list, tables=SHORT)


class InTheMiddle(Sink):
    """Leaves a transaction open for its process to die in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, context: object) -> None:  # noqa: ARG002
        self.database = sqlite3.connect(self.path, timeout=0.1)

    def write(self, chunk: Chunk) -> None:
        self.database.executemany("INSERT INTO rows VALUES (?)", [(id_,) for id_ in chunk.table["id"].to_pylist()])
        self.database.commit()

    def close(self) -> None:
        self.database.close()


def test_the_connections_of_a_dead_process_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as looking:
        looking.execute("CREATE TABLE rows (id INTEGER)")

    def rows_in(_: object) -> Rows:
        return [{"id": id_} for (id_,) in looking.execute("SELECT id FROM rows").fetchall()]

    matrix = crash_matrix(lambda _: InTheMiddle(path), rows_in, lambda: None, tables=SHORT, disturb=("dies",))
    looking.close()
    matrix.check()
    assert matrix.lost == 0


ARRIVED: list[int] = []


class Recorder(Sink):
    def write(self, chunk: Chunk) -> None:
        ARRIVED.extend(int(row["id"]) for row in chunk.table.to_pylist())


def test_a_query_that_is_driven_by_hand() -> None:
    ARRIVED.clear()
    with FakeQuery.over(Recorder()) as query:
        query.batch(*SHORT)
        query.crash_at("before create commits/")
        query.batch(SHORT[1])
        assert not query.alive
        assert ARRIVED == [1, 2, 3, 4], "its batch is not complete"
        query.restart()
        assert "after write of rows 0 to 1 of segment 0 of batch 1" in query.points

    assert ARRIVED == [1, 2, 3, 4, 4]


def test_a_query_says_what_it_cannot_do() -> None:
    query = FakeQuery.over(Recorder())
    with pytest.raises(RuntimeError, match="use the query in a with block"):
        query.deliver()
    with query:
        with pytest.raises(RuntimeError, match=r"call stage\(table\) first"):
            query.complete()
        with pytest.raises(ValueError, match="at least one table"):
            query.batch()
        query.crash()
        with pytest.raises(RuntimeError, match=r"call restart\(\)"):
            query.batch(*SHORT)


def test_a_sink_that_fails_fails_the_query() -> None:
    def refuse(_: Chunk) -> None:
        raise ValueError("no room")

    with pytest.raises(DeliveryError, match="no room"), FakeQuery.over(Delivery(refuse, max_attempts=2)) as query:
        query.batch(*SHORT)

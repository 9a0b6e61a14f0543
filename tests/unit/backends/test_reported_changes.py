"""Wishes that other systems were told of, about deletes, the order of changes, and columns: a test each.

Wishes that another test shows are named there, by the number of their report.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.chunks import chunk
from tests.support.sql_chunks import opened
from tests.support.staged_log import stage
from wal_sink import WalSink
from wal_sink.settings import Delivery
from wal_sink_backends.sql.sink import SqlSink

Event = tuple[str, int, int, str]
"""Operation, key, version, value."""
KINDS = {"op": pa.string(), "id": pa.int64(), "pos": pa.int64(), "name": pa.string()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


def rows_of(events: Sequence[Event]) -> pa.Table:
    columns = zip(KINDS.items(), zip(*events, strict=True), strict=True)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in columns})


def sink_to(path: Path, table: str = "orders") -> SqlSink:
    return SqlSink(f"sqlite:///{path}", table, mode="upsert", key="id", newer_by="pos", operation="op")


def deliver(path: Path, *segments: Sequence[Event]) -> None:
    """Deliver segments of one batch, in this order."""
    with opened(sink_to(path)) as sink:
        for number, events in enumerate(segments):
            one = chunk(rows_of(events), segment=f"s{number}", slot=f"wal/default/{number}")
            assert sink.write(one) is None


def stored(path: Path, table: str = "orders") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def test_a_delete_needs_no_tombstone_behind_it(path: Path) -> None:
    """kafka-connect-jdbc#1508: a lost tombstone left the row, although the event said that it was deleted."""
    deliver(path, [("c", 1, 1, "a"), ("c", 2, 1, "b"), ("d", 1, 2, "")])
    assert stored(path) == [(2, 1, "b")]


def test_a_delete_that_comes_before_its_insert_keeps_the_row_out(path: Path) -> None:
    """airbyte#66330: a row is not inserted if its delete arrived earlier."""
    deliver(path, [("d", 1, 9, "")], [("c", 1, 1, "a"), ("u", 1, 5, "b")])
    assert stored(path) == []


def test_rows_that_were_deleted_and_inserted_again_outlive_the_repeated_delete(path: Path) -> None:
    """clickhouse-sink-connector#1346: a nightly reload lost its rows when the source sent the deletes once more."""
    reload = [("d", 1, 5, ""), ("d", 2, 6, ""), ("c", 1, 7, "new"), ("c", 2, 8, "new")]
    deliver(path, [("c", 1, 1, "old"), ("c", 2, 2, "old")], reload, reload[:2], reload)
    assert stored(path) == [(1, 7, "new"), (2, 8, "new")]


def test_a_row_that_a_snapshot_read_can_be_updated_and_deleted(path: Path) -> None:
    """databricks/iceberg-kafka-connect#318: rows of the snapshot stayed beside their updates."""
    deliver(path, [("r", 1, 0, "read"), ("r", 2, 0, "read")], [("u", 1, 3, "updated"), ("d", 2, 4, "")])
    assert stored(path) == [(1, 3, "updated")]


@pytest.mark.parametrize("segments", [1, 3])
def test_of_an_insert_a_delete_and_an_insert_in_one_batch_the_last_one_counts(path: Path, segments: int) -> None:
    """debezium-server-iceberg#661, flink#12803: a delete won over the later insert of its batch."""
    events = [("c", 1, 1, "hello"), ("d", 1, 2, ""), ("c", 1, 3, "hallo")]
    deliver(path, *([events] if segments == 1 else [[event] for event in reversed(events)]))
    assert stored(path) == [(1, 3, "hallo")]


def test_what_tells_the_operation_is_no_column_of_the_table(path: Path) -> None:
    """debezium-server-iceberg#569: the fields that decide how a row is written need not be in the table."""
    deliver(path, [("c", 1, 1, "a")])
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(orders)")]
    assert names == ["id", "pos", "name"]


def test_a_new_sink_is_filled_from_the_log_and_the_others_get_nothing_again(path: Path, tmp_path: Path) -> None:
    """flusso#128: to fill one sink, every other one was filled anew."""
    batches = [rows_of([("c", 1, 1, "a"), ("c", 2, 1, "b")]), rows_of([("d", 1, 2, ""), ("c", 3, 3, "c")])]
    to: dict[str, object] = {"old": Delivery(sink_to(path), start_from="earliest")}

    def drain_up_to(batches_there: int) -> None:
        stage(tmp_path, batches_there, lambda number, _: [batches[number]], is_over=True)
        with WalSink(to, wal=f"{tmp_path}/wal", checkpoint=f"{tmp_path}/checkpoint") as sink:
            sink.drain()

    drain_up_to(1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM orders")  # it would show if the rows came again
    to["new"] = Delivery(sink_to(path, "copies"), start_from="earliest")
    drain_up_to(2)
    assert stored(path) == [(3, 3, "c")]
    assert stored(path, "copies") == [(2, 1, "b"), (3, 3, "c")]

"""`drain`, `letters replay` and `catch-up` into a change stream's table: the newest version of a key stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.command import invoke
from tests.support.staged_log import stage as stage_log

SHOP = "sqlite:///shop.db?table=orders&mode=upsert&key=id&newer_by=at&operation=op&deletes_kept=2"
OF_A = ("--name", "a", "--to", SHOP)
NAMES, KINDS = ["id", "at", "op", "name"], (pa.int64(), pa.int64(), pa.string(), pa.string())
BATCHES: list[list[tuple[int, int, str, str | None]]] = [
    [(1, 1, "c", "one"), (2, 1, "c", "bad"), (3, 1, "c", "bad"), (4, 1, "c", "bad")],
    [(2, 5, "d", None), (3, 5, "u", "newer"), (1, 4, "u", "two"), (1, 3, "u", "late")],
    [(5, 1, "c", "five"), (5, 2, "d", None)],
    [(6, 1, "r", "six")],
]
DELIVERED = [(1, 4, "two"), (3, 5, "newer"), (6, 1, "six")]
REFUSED = "deletes are remembered from batch 2 on, so rows of batch 0 might bring deleted rows back. Nothing was"


def query(statements: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as database:
        return [database.execute(each).fetchall() for each in statements.split(";")][-1]


def rows() -> list[tuple[Any, ...]]:
    return query("SELECT id, at, name FROM orders ORDER BY id")


@pytest.fixture
def drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Stage and drain batches up to a number of them, into a table that refuses the name `bad`."""
    monkeypatch.chdir(tmp_path)
    query("CREATE TABLE orders (id INT PRIMARY KEY, at INT, name TEXT CHECK (name <> 'bad'))")

    def table(number: int, _: int) -> list[pa.Table]:
        columns = zip(*BATCHES[number], strict=True)
        return [pa.table([pa.array(*each) for each in zip(columns, KINDS, strict=True)], NAMES)]

    def drain(batches: int) -> str:
        stage_log(tmp_path, batches, table, is_over=True)
        wal = str(tmp_path / "wal")
        invoke("drain", wal, *OF_A, "--start-from", "earliest", "--on-rejected", "dead_letter")
        return wal

    return drain


def test_an_old_letter_overwrites_no_newer_row_and_brings_no_deleted_one_back(drained: Callable[[int], str]) -> None:
    wal = drained(2)
    assert rows() == DELIVERED[:2]
    query(
        "ALTER TABLE orders RENAME TO strict; CREATE TABLE orders (id INT PRIMARY KEY, at INT, name TEXT);"
        "INSERT INTO orders SELECT * FROM strict"
    )
    assert "1 dead letter sent" in invoke("letters", "replay", wal, *OF_A).stdout
    assert rows() == [*DELIVERED[:2], (4, 1, "bad")]


def test_what_is_older_than_the_remembered_deletes_is_refused_by_each_command(drained: Callable[[int], str]) -> None:
    wal = drained(4)
    assert rows() == DELIVERED
    late = ("--name", "b", "--to", SHOP, "--start-from", "earliest")
    assert REFUSED in invoke("drain", wal, *late, code=1).output
    replayed = invoke("letters", "replay", wal, *OF_A, code=1).output
    assert REFUSED in replayed
    assert "0 dead letters (0 rows) sent before this one" in replayed
    query("DELETE FROM wal_sink_ledger WHERE slot LIKE '%/a/%'")  # a part of a backup was restored
    catch_up = ("catch-up", wal, *OF_A, "--empty", "--yes", "--why", "the disk failed")
    assert REFUSED in invoke(*catch_up, code=1).output
    assert rows() == DELIVERED


def test_a_backup_of_rows_deletes_and_ledger_catches_up(drained: Callable[[int], str]) -> None:
    wal = drained(2)
    backup = Path("shop.db").read_bytes()
    drained(4)
    Path("shop.db").write_bytes(backup)
    assert "2 batches sent" in invoke("catch-up", wal, *OF_A, "--yes", "--why", "the disk failed").stdout
    assert rows() == DELIVERED
    assert query("SELECT id, at FROM wal_sink_deleted_orders") == [(5, 2)]

"""Every backend keeps the contract of its kind, by the kit that users test their own sinks with and nothing else.

A backend runs the whole contract once for each way in which its code differs. Of formats and of other stores, the
checks are run that depend on them.
"""

from __future__ import annotations

import io
import itertools
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.house.stores import StoreSpec, open_store
from tests.support.contracts import DISTURBED, LOSSES, VALUES, FoldedContract, faults
from tests.support.servers.s3_server import S3Server
from wal_sink_backends import FilesSink, SqlSink

SECRET = "hunter2-from-the-environment"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_TOKEN"
_numbers = itertools.count()


class FilesContract(FoldedContract):
    """A folder, looked at through its own store and pyarrow."""

    format: Any = "jsonl"
    law = "[`FilesSink`](sinks/files.md)"

    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, SECRET)

    @pytest.fixture
    def target(self) -> StoreSpec:
        return StoreSpec(f"memory://backends-{next(_numbers)}")

    def another(self, target: StoreSpec) -> StoreSpec:
        return StoreSpec(f"{target.url}/{next(_numbers)}", target.options)

    def make_sink(self, target: StoreSpec) -> FilesSink:
        return FilesSink(target.url, format=self.format, options_from_env={"wal_sink_unused": VARIABLE})

    def rows_in(self, target: StoreSpec) -> list[Any]:
        store = open_store(target)
        return [row for name in store.list("", recursive=True) for row in READERS[self.format](store.read(name))]

    def secrets(self) -> list[str]:
        return [SECRET]


def rows_of_json_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def rows_of_parquet(data: bytes) -> list[Any]:
    rows: list[Any] = pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


def rows_of_csv(data: bytes) -> list[Any]:
    whole = pyarrow.csv.ReadOptions(block_size=4 << 20)
    lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    # A value between quotes is a text, and an empty field is NULL.
    nulls = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    table = pyarrow.csv.read_csv(io.BytesIO(data), read_options=whole, parse_options=lines, convert_options=nulls)
    rows: list[Any] = table.to_pylist()
    return rows


READERS: dict[str, Callable[[bytes], list[Any]]] = {
    "jsonl": rows_of_json_lines,
    "json": json.loads,
    "csv": rows_of_csv,
    "parquet": rows_of_parquet,
}


class TestFilesOnALocalDisk(FilesContract):
    every = 3

    @pytest.fixture
    def target(self, tmp_path: Path) -> StoreSpec:
        return StoreSpec(str(tmp_path / "out"))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_files_of_this_format_hold_every_value(
    format: str,  # noqa: A002 - the sink's argument
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    contract = FilesContract()
    contract.format = format
    checks = (*VALUES, "an_undisturbed_run_brings_every_row_once", "a_chunk_without_rows_adds_none")
    assert faults(contract, StoreSpec(f"memory://backends-{next(_numbers)}"), *checks) == {}


class FilesOnS3(FilesContract):
    format: Any = "json"
    every = 40
    each_line = False

    def make_sink(self, target: StoreSpec) -> FilesSink:
        return FilesSink(target.url, format=self.format, storage_options=target.options)


@pytest.mark.s3
def test_files_on_s3_come_once_whatever_dies_fails_or_wakes(s3_url: str, s3_server: S3Server) -> None:
    """The sink differs from the one on a local disk only by what the store answers to a second create."""
    checks = (
        *DISTURBED,
        *LOSSES,
        "a_chunk_that_comes_again_changes_nothing",
        "every_row_is_there_when_write_returns",
        "it_travels_to_executors",
    )
    assert faults(FilesOnS3(), StoreSpec(s3_url, s3_server.storage_options), *checks) == {}


class TestSqlite(FoldedContract):
    every = 5
    key = ("id",)
    law = "[SQL](sinks/sql.md)"

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return tmp_path / "rows.db"

    def another(self, target: Path) -> Path:
        return target.with_name(f"{next(_numbers)}.db")

    def make_sink(self, target: Path) -> SqlSink:
        upsert: dict[str, Any] = {"mode": "upsert", "key": self.key} if self.is_keyed else {}
        return SqlSink(f"sqlite:///{target}", "flights", **upsert)

    def rows_in(self, target: Path) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(target)) as database:
            database.row_factory = sqlite3.Row
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'flights'").fetchone() is None:
                return []
            return [dict(row) for row in database.execute("SELECT * FROM flights")]

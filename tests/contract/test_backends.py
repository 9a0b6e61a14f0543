"""Every backend keeps the contract of its kind, by the kit that users test their own sinks with and nothing else."""

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

from tests.support.servers.s3_server import S3Server
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import SinkContract
from wal_sink_backends import FilesSink, SqlSink

SECRET = "hunter2-from-the-environment"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_TOKEN"
_numbers = itertools.count()


class FilesContract(SinkContract):
    """A folder, looked at through its own store and pyarrow."""

    format: Any = "jsonl"

    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, SECRET)

    @pytest.fixture
    def target(self) -> StoreSpec:
        return StoreSpec(f"memory://backends-{next(_numbers)}")

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
    # What stands between quotes is a text, and nothing at all is NULL.
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


class TestCsvFilesInMemory(FilesContract):
    format = "csv"
    every = 5


class TestParquetFilesInMemory(FilesContract):
    format = "parquet"
    every = 5


@pytest.mark.s3
class TestFilesOnS3(FilesContract):
    format: Any = "json"
    every = 11
    each_line = False

    @pytest.fixture
    def target(self, s3_url: str, s3_server: S3Server) -> StoreSpec:
        return StoreSpec(s3_url, s3_server.storage_options)

    def make_sink(self, target: StoreSpec) -> FilesSink:
        return FilesSink(target.url, format=self.format, storage_options=target.options)

    def secrets(self) -> list[str]:
        return []

    def another(self, target: StoreSpec) -> StoreSpec:
        return StoreSpec(f"{target.url}/{next(_numbers)}", target.options)


class TestSqlite(SinkContract):
    every = 5

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return tmp_path / "rows.db"

    def another(self, target: Path) -> Path:
        return target.with_name(f"{next(_numbers)}.db")

    def make_sink(self, target: Path) -> SqlSink:
        return SqlSink(f"sqlite:///{target}", "flights")

    def rows_in(self, target: Path) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(target)) as database:
            database.row_factory = sqlite3.Row
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'flights'").fetchone() is None:
                return []
            return [dict(row) for row in database.execute("SELECT * FROM flights")]

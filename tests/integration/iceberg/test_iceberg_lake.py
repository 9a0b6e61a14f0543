"""Spark with Iceberg's own jar, on a table of `IcebergSink`: it reads each row, and the sink sees what it changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from tests.house.sinks import BatchCommit, CommitPosition
from tests.support.iceberg_tables import KEY, at, catalog_in, context, digest, encoded_segment, opened, rows_in, there
from tests.support.processes import CHECKOUT
from tests.support.servers.jars import Module, jars
from tests.support.spark_versions import run_on
from wal_sink_backends.iceberg.history import UnknownHistoryError, position_of, stored_in

pytestmark = pytest.mark.spark

SPARK, ICEBERG = "4.0.5", "1.11.0"
COUNT = 20_000
ROWS = pa.table(
    {
        "id": pa.array(range(COUNT), pa.int64()),
        "at": pa.array(range(0, COUNT * 997, 997), pa.timestamp("us", "UTC")),
        "local": pa.array(range(0, COUNT * 997, 997), pa.timestamp("us")),
        "day": pa.array(range(COUNT), pa.int32()).cast(pa.date32()),
        "code": [f"{number:036}" for number in range(COUNT)],
        "price": [number / 4 for number in range(COUNT)],
        "ratio": pa.array([number / 4 for number in range(COUNT)], pa.float32()),
        "exact": pa.array([Decimal(number) / 4 for number in range(COUNT)], pa.decimal128(12, 2)),
        "tiny": pa.array([number % 100 - 50 for number in range(COUNT)], pa.int8()),
        "short": pa.array([number - 10_000 for number in range(COUNT)], pa.int16()),
        "whole": pa.array([number - 10_000 for number in range(COUNT)], pa.int32()),
        "good": [number % 2 == 0 for number in range(COUNT)],
        "raw": [f"{number}".encode() for number in range(COUNT)],
        "tags": pa.array([["a", None], None] * (COUNT // 2), pa.list_(pa.field("element", pa.string()))),
        "counts": pa.array([[("x", 1)], None] * (COUNT // 2), pa.map_(pa.string(), pa.int64())),
        "place": pa.array([{"x": 1, "names": ["n"]}, None] * (COUNT // 2)),
    }
)
COLUMNS = ROWS.column_names


def _spark(folder: Path, *statements: str) -> list[list[list[Any]]]:
    """Run statements on the catalogue of a folder, which Spark reaches through JDBC."""
    modules = [
        Module("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", (ICEBERG,)),
        Module("org.xerial", "sqlite-jdbc", ("3.46.1.3",)),
    ]
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.local.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.local.warehouse": f"file://{folder}/warehouse",
    }
    program, needed = CHECKOUT / "tests/support/programs/lake_sql.py", jars(f"iceberg-{ICEBERG}", modules)
    output = run_on(SPARK, program, needed, json.dumps(conf), json.dumps(statements), log=folder / "log")
    found: list[list[list[Any]]] = json.loads(output.splitlines()[-1])
    return found


def test_iceberg_reads_a_table_of_the_sink(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path, name="local")
    with opened(properties, context(columns=COLUMNS), create=True) as sink:
        for batch_id in range(2):
            handle = sink.prepare(encoded_segment(ROWS, batch_id))
            sink.commit(BatchCommit(batch_id, digest(batch_id), ROWS.num_rows, (handle,), sink.position()))
    reads: dict[str, Sequence[Any]] = {
        "SELECT count(*), sum(id), sum(price), max(at), max(local), max(code), count(tags) FROM local.lake.orders": [
            *(40_000, 399_980_000, 99_995_000.0, "1970-01-01 00:00:19.939003", "1970-01-01 00:00:19.939003"),
            *(f"{19_999:036}", 20_000),
        ],
        "SELECT count(*) FROM local.lake.orders WHERE id = 19999 AND at >= '1970-01-01 00:00:19.9'": [2],
        f"SELECT count(*) FROM local.lake.orders WHERE code = '{7:036}'": [2],
        "SELECT count(*) FROM local.lake.orders WHERE id > 19999": [0],
        "SELECT sum(tiny), sum(short), min(whole), sum(exact), sum(ratio), count_if(good) FROM local.lake.orders": [
            *(-20_000, -20_000, -10_000, "99995000.00", 99_995_000.0, 20_000)
        ],
        "SELECT max(day), max(raw), sum(counts['x']), sum(place.x), max(place.names[0]) FROM local.lake.orders": [
            *("2024-10-03", "bytearray(b'9999')", 20_000, 20_000, "n")
        ],
    }
    found = _spark(tmp_path, *reads)
    assert [rows[0] for rows in found] == list(reads.values())
    assert rows_in(properties)[:COUNT] == ROWS.to_pylist()


def _position(table: Table, path: str) -> CommitPosition | type[Exception] | None:
    """Return the position of the sink in the table as a file of metadata has it."""
    metadata = TableMetadataUtil.parse_raw(table.io.new_input(path).open().read().decode())
    stored = stored_in(metadata, KEY)
    try:
        return None if stored is None else position_of(metadata, KEY, stored)
    except UnknownHistoryError as error:
        return type(error)


def test_changes_by_spark_are_no_rollback_and_a_rollback_is_found(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path, name="local")
    with opened(properties, context(columns=COLUMNS), create=True) as sink:
        for batch_id in range(2):
            handle = sink.prepare(encoded_segment(ROWS, batch_id))
            sink.commit(BatchCommit(batch_id, digest(batch_id), ROWS.num_rows, (handle,), sink.position()))
    first, second = (snapshot.snapshot_id for snapshot in there(properties).metadata.snapshots)
    shown, rolled_back = at(1), CommitPosition(1, digest(1), is_shown=False, held_through=0)
    changes = {
        "INSERT INTO local.lake.orders SELECT * FROM local.lake.orders LIMIT 10": shown,
        "DELETE FROM local.lake.orders WHERE id = 5": shown,
        "CALL local.system.rewrite_data_files(table => 'lake.orders', options => map('rewrite-all', 'true'))": shown,
        "CALL local.system.rewrite_manifests('lake.orders')": shown,
        f"CALL local.system.rollback_to_snapshot('lake.orders', {first})": rolled_back,
        f"CALL local.system.set_current_snapshot('lake.orders', {second})": shown,
        "ALTER TABLE local.lake.orders ADD COLUMN more int": shown,
        "CREATE OR REPLACE TABLE local.lake.orders USING iceberg AS SELECT 1 AS id": UnknownHistoryError,
    }
    count, log = "SELECT count(*) FROM local.lake.orders", "SELECT file FROM local.lake.orders.metadata_log_entries"
    found = _spark(tmp_path, *changes, count, log)
    paths = [path for (path,) in found[-1]]
    assert [_position(there(properties), path) for path in paths] == [None, at(0), at(1), *changes.values()]
    assert found[-2] == [[1]]

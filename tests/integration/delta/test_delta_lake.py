"""Spark with Delta Lake's own jars, on a table of `DeltaSink`: it reads each row, and the sink understands its log."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.house.sinks import BatchCommit
from tests.support.delta_tables import at, context, digest, encoded_segment, made, opened
from tests.support.processes import CHECKOUT
from tests.support.servers.jars import Module, jars
from tests.support.spark_versions import run_on

pytestmark = pytest.mark.spark

SPARK, DELTA = "4.0.5", "4.0.1"
"""The newest Delta Lake that was there, and its Spark."""
ROWS = pa.table(
    {
        "id": pa.array(range(20_000), pa.int64()),
        "at": pa.array(range(0, 20_000 * 997, 997), pa.timestamp("us", "UTC")),
        "code": [f"{number:036}" for number in range(20_000)],
        "price": [number / 4 for number in range(20_000)],
        "tags": pa.array([["a", None], None] * 10_000, pa.list_(pa.field("element", pa.string()))),
    }
)
COLUMNS = ROWS.column_names
BEGAN_S = time.time() - 3600
"""When version 0 was made, as Delta sees it; each version of the sink a minute later."""


def _moment(version: float) -> str:
    return datetime.fromtimestamp(BEGAN_S + 60 * version, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _shown(table: Path, version: int, place: Path) -> bool:
    """Return whether the sink finds its newest batch shown in the table as it was at a version."""
    shutil.copytree(table, place)
    for path in (place / "_delta_log").iterdir():
        if not (path.suffix == ".json" and path.stem.isdecimal() and int(path.stem) <= version):
            path.unlink() if path.is_file() else shutil.rmtree(path)  # checksums, compacted entries
    with opened(place, context(columns=COLUMNS)) as sink:
        position = sink.position()
    assert position is not None
    assert position == at(1, held=None if position.is_shown else 0)
    return position.is_shown


def test_delta_lake_reads_alters_and_restores_a_table_of_the_sink(tmp_path: Path) -> None:
    table = tmp_path / "table"
    made(table, ROWS.schema)
    with opened(table, context(columns=COLUMNS)) as sink:
        for batch_id in (0, 5, 1):
            if batch_id == 1:
                DeltaTable(str(table)).restore(1)  # so the number of the position falls
            handle = sink.prepare(encoded_segment(ROWS, batch_id))
            sink.commit(BatchCommit(batch_id, digest(batch_id), ROWS.num_rows, (handle,), sink.position()))
    DeltaTable(str(table)).create_checkpoint()
    for version in range(5):
        moment = BEGAN_S + 60 * version
        os.utime(table / "_delta_log" / f"{version:020}.json", (moment, moment))
    reads: dict[str, list[Any]] = {
        "SELECT count(*), sum(id), sum(price), max(at), max(code), count(tags) FROM {table}": [
            *(40_000, 399_980_000, 99_995_000.0, "1970-01-01 00:00:19.939003", f"{19_999:036}", 20_000)
        ],
        "SELECT count(*) FROM {table} WHERE id = 19999 AND at >= '1970-01-01 00:00:19.9'": [2],
        f"SELECT count(*) FROM {{table}} WHERE code = '{7:036}'": [2],
        "SELECT count(*) FROM {table} WHERE id > 19999": [0],
    }
    changes = {
        5: ("INSERT INTO {table} SELECT * FROM {table} LIMIT 10", True),
        6: ("DELETE FROM {table} WHERE id = 5", True),
        7: ("OPTIMIZE {table}", True),
        8: ("RESTORE TABLE {table} TO VERSION AS OF 3", False),
        9: ("RESTORE TABLE {table} TO VERSION AS OF 4", True),
        10: (f"RESTORE TABLE {{table}} TO TIMESTAMP AS OF '{_moment(4.5)}'", True),
        11: (f"RESTORE TABLE {{table}} TO TIMESTAMP AS OF '{_moment(3.5)}'", False),
    }
    statements = [*reads, *(text for text, _ in changes.values()), "SELECT count(*) FROM {table}"]
    needed = jars(
        f"delta-{DELTA}", [Module("io.delta", name, (DELTA,)) for name in ("delta-spark_2.13", "delta-storage")]
    )
    statements = [text.replace("{table}", f"delta.`{table}`") for text in statements]
    conf = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    program = CHECKOUT / "tests/support/programs/lake_sql.py"
    output = run_on(SPARK, program, needed, json.dumps(conf), json.dumps(statements), log=tmp_path / "log")
    found: list[list[list[Any]]] = json.loads(output.splitlines()[-1])
    assert [rows[0] for rows in found[: len(reads)]] == list(reads.values())
    assert found[-1] == [[20_000]]
    look: Callable[[int], bool] = lambda version: _shown(table, version, tmp_path / str(version))  # noqa: E731
    assert {version: look(version) for version in changes} == {number: shown for number, (_, shown) in changes.items()}

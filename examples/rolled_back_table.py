# python examples/rolled_back_table.py [FOLDER]
"""A query into a Delta table and one into an Iceberg table, which somebody rolls back: the stream stops, and its rows
come back.

Input, WAL, checkpoint and table lie in FOLDER (a new folder), or in a temporary folder. It needs the extras delta and
iceberg.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from wal_sink import HistoryError, Settings, WalSink
from wal_sink.spark import check_java, prepare_python
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.iceberg import IcebergSink

ROWS_PER_FILE = 500
FILES = 4


class Delta:
    """A Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "orders")
        self.sink, self.url = DeltaSink(self.path, create=True), f"delta://{self.path}"

    def look(self) -> tuple[list[Any], int]:
        """The ids in the table, and how many commits were made."""
        table = DeltaTable(self.path)
        return table.to_pyarrow_table().sort_by("id")["id"].to_pylist(), table.version()

    def roll_back(self) -> None:
        """Show the table as it was after batch 0."""
        DeltaTable(self.path).restore(1)


class Iceberg:
    """An Iceberg table, whose catalog is a file of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.sink = IcebergSink("lake.orders", catalog=self.catalog, create=True)
        options = "&".join(f"catalog.{name}={value}" for name, value in self.catalog.items())
        self.url = f"iceberg://lake.orders?{options}"

    def look(self) -> tuple[list[Any], int]:
        """The ids in the table, and how many commits were made."""
        table = self._table()
        return table.scan().to_arrow().sort_by("id")["id"].to_pylist(), len(table.metadata.snapshots)

    def roll_back(self) -> None:
        """Show the table as it was after batch 0."""
        table = self._table()
        table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[0].snapshot_id).commit()

    def _table(self) -> Any:
        return load_catalog("default", **self.catalog).load_table("lake.orders")


def main() -> None:
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))


def run(folder: Path) -> None:
    """Do the same with both tables."""
    check_java()
    prepare_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for kind in (Delta, Iceberg):
        place = folder.absolute() / kind.__name__.lower()
        place.mkdir(parents=True)
        repair(spark, place, kind(place))
    spark.stop()


def repair(spark: SparkSession, folder: Path, lake: Delta | Iceberg) -> None:
    """Run the query, roll the table back, see that the query stops, catch the table up, and count the rows."""
    for number in range(FILES - 1):
        write_input(folder, number)
    print(deliver(spark, folder, lake))
    ids, commits = lake.look()
    assert (len(ids), commits) == (3 * ROWS_PER_FILE, 3), "each of the three batches is one commit"

    lake.roll_back()  # somebody takes batches 1 and 2 back
    assert len(lake.look()[0]) == ROWS_PER_FILE
    write_input(folder, FILES - 1)
    try:
        deliver(spark, folder, lake)
    except HistoryError as error:
        print(f"stopped, as it must: {error}")
    else:
        raise AssertionError("the stream continued without the rows of batches 1 and 2")
    assert len(lake.look()[0]) == ROWS_PER_FILE

    command = ["catch-up", str(folder / "wal"), "--name", "default", "--to", lake.url, "--why", "rolled back", "--yes"]
    subprocess.run([sys.executable, "-m", "wal_sink.cli", *command], check=True)
    assert len(lake.look()[0]) == 3 * ROWS_PER_FILE, "batches 1 and 2 are there again"
    deliver(spark, folder, lake)

    ids, commits = lake.look()
    assert ids == list(range(FILES * ROWS_PER_FILE)), "a row is missing or there twice"
    print(f"ok: {len(ids)} rows, each once, although the table was rolled back; it has {commits} commits")


def deliver(spark: SparkSession, folder: Path, lake: Delta | Iceberg) -> str:
    """Run the query until it has read all files, one in each batch. Return what it guarantees."""
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    settings = Settings(retention_batches=100)  # the WAL keeps batches for such a repair
    wal, checkpoint = str(folder / "wal"), str(folder / "checkpoint")
    with WalSink(lake.sink, wal=wal, checkpoint=checkpoint, settings=settings) as sink:
        sink.run(stream.writeStream.trigger(availableNow=True))
        return next(iter(sink.guarantee().values()))


def write_input(folder: Path, number: int) -> None:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    (folder / "in" / f"{number}.json").write_text("\n".join(json.dumps({"id": row}) for row in ids))


if __name__ == "__main__":
    main()

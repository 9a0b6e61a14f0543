# python examples/rolled_back_table.py [FOLDER]
"""A query into a Delta table, which somebody rolls back: the stream stops, and its rows come back.

Input, WAL, checkpoint and table lie in FOLDER (a new folder), or in a temporary folder. It needs the extra delta.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from wal_sink import HistoryError, Settings, WalSink
from wal_sink.spark import check_java, prepare_python
from wal_sink_backends.delta import DeltaSink

ROWS_PER_FILE = 500
FILES = 4


def main() -> None:
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))


def run(folder: Path) -> None:
    """Run the query, restore the table to an older version, see that it stops, catch it up, and count the rows."""
    check_java()
    prepare_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = DeltaSink(str(folder / "orders"), create=True)

    for number in range(FILES - 1):
        write_input(folder, number)
    print(deliver(spark, folder, table))
    rows, version = look(folder)
    assert (rows, version) == (3 * ROWS_PER_FILE, 3), "each of the three batches is one commit"

    DeltaTable(str(folder / "orders")).restore(1)  # somebody takes batches 1 and 2 back
    assert look(folder)[0] == ROWS_PER_FILE
    write_input(folder, FILES - 1)
    try:
        deliver(spark, folder, table)
    except HistoryError as error:
        print(f"stopped, as it must: {error}")
    else:
        raise AssertionError("the stream continued without the rows of batches 1 and 2")
    assert look(folder)[0] == ROWS_PER_FILE

    wal, to = str(folder / "wal"), f"delta://{folder / 'orders'}"
    command = ["catch-up", wal, "--name", "default", "--to", to, "--why", "rolled back", "--yes"]
    subprocess.run([sys.executable, "-m", "wal_sink.cli", *command], check=True)
    assert look(folder)[0] == 3 * ROWS_PER_FILE, "batches 1 and 2 are there again"
    deliver(spark, folder, table)

    rows, version = look(folder)
    ids = sorted(DeltaTable(str(folder / "orders")).to_pyarrow_table()["id"].to_pylist())
    assert ids == list(range(FILES * ROWS_PER_FILE)), "a row is missing or there twice"
    spark.stop()
    print(f"ok: {rows} rows, each once, although the table was rolled back; it is at version {version}")


def deliver(spark: SparkSession, folder: Path, table: DeltaSink) -> str:
    """Run the query until it has read all files, one in each batch. Return what it guarantees."""
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    settings = Settings(retention_batches=100)  # the WAL keeps batches for such a repair
    with WalSink(table, wal=str(folder / "wal"), checkpoint=str(folder / "checkpoint"), settings=settings) as sink:
        sink.run(stream.writeStream.trigger(availableNow=True))
        return next(iter(sink.guarantee().values()))


def look(folder: Path) -> tuple[int, int]:
    """The number of rows in the table, and its version."""
    table = DeltaTable(str(folder / "orders"))
    return table.to_pyarrow_table().num_rows, table.version()


def write_input(folder: Path, number: int) -> None:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    (folder / "in" / f"{number}.json").write_text("\n".join(json.dumps({"id": row}) for row in ids))


if __name__ == "__main__":
    main()

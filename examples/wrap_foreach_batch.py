# python examples/wrap_foreach_batch.py [FOLDER]
"""An existing foreachBatch writer with wal-sink: it fails in the middle, and the repeat has exactly the same rows.

Input, WAL, checkpoint and result lie in FOLDER (a new folder), or in a temporary folder.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from wal_sink import WalSink, wrap
from wal_sink.spark import check_java, prepare_python

ROWS_PER_FILE = 500
FILES = 3


class OrdersDatabase:
    """The existing writer, used before as `stream.writeStream.foreachBatch(database.write)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = False

    def write(self, df: DataFrame, batch_id: int) -> None:
        rows = [(row.ticket, row.id, batch_id) for row in df.collect()]
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (ticket TEXT PRIMARY KEY, id INTEGER, batch INTEGER)")
            half = len(rows) // 2
            database.executemany("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", rows[:half])
            database.commit()
            if batch_id == 1 and not self.failed:
                self.failed = True
                raise ConnectionError("the database became unreachable in the middle of batch 1")
            database.executemany("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", rows[half:])
            database.commit()

    def count(self) -> tuple[int, int]:
        """The number of rows, and the number of distinct orders."""
        with closing(sqlite3.connect(self.path)) as database:
            rows, orders = database.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
            return rows, orders


def main() -> None:
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))


def run(folder: Path) -> None:
    """Write input, run the query to its end, and count what arrived."""
    check_java()
    prepare_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write_input(folder / "in")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    orders = stream.selectExpr("uuid() AS ticket", "id")  # with Spark alone, a repeated batch has other tickets
    database = OrdersDatabase(folder / "orders.db")

    # Before: orders.writeStream.foreachBatch(database.write).option("checkpointLocation", …).start()
    # The failure would end the query. A restart would write batch 1 again with new tickets, so 250 orders twice.
    # With wal-sink: the writer is idempotent, because the same rows with the same tickets replace themselves.
    writer = wrap.foreach_batch(database.write, idempotent=True)
    with WalSink(writer, wal=str(folder / "wal"), checkpoint=str(folder / "checkpoint")) as sink:
        sink.run(orders.writeStream.trigger(availableNow=True))
        print(sink.guarantee()["default"])

    rows, different = database.count()
    assert database.failed
    assert rows == different == FILES * ROWS_PER_FILE
    spark.stop()
    print(f"ok: {rows} rows of {different} orders in orders.db, although batch 1 was written one and a half times")


def write_input(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        (folder / f"{number}.json").write_text("\n".join(json.dumps({"id": row}) for row in ids))


if __name__ == "__main__":
    main()

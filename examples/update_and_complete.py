# python examples/update_and_complete.py [--kills 3] [--rows 2000]
"""A running total for each shop → an SQL table that always ends up equal to the batch aggregate, in two output modes.

- `update`: each batch has the shops that changed. `SqlSink(mode="upsert")` replaces the rows of these shops.
- `complete`: each batch has all shops, and replaces the table in one transaction: `ReplacedTable`, below. Another
  process reads the table all the time. It must always see the totals of a whole number of files.

The process of each query is killed repeatedly. The tables are then compared with a batch computation.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of
from support.home import Home
from support.kills import arguments, files_for, live_and_die
from support.proof import assert_same_rows, tell_of_changelogs
from support.session import spark_with_rocksdb

from wal_sink import BatchSink, Delivery, FencedError, ReleasedBatch, Settings, WalSink
from wal_sink_backends import SqlSink

MODES = ("update", "complete")
TABLE = "totals"
READ = "SELECT shop, orders, total FROM totals"
SHOPS_A_FILE = 400
NEW_SHOPS_A_FILE = 50
"""Each file has other shops than the one before: so many are new, and as many do not come again."""
ROWS_PER_S = 1_000
"""In update mode the target takes so many, in small transactions, so that a kill meets many batches half delivered."""

Totals = frozenset[tuple[Any, ...]]
"""Shop, number of orders, sum of amounts."""


class ReplacedTable(BatchSink):
    """A table of SQLite that holds the newest result. Each batch replaces all its rows, in one transaction.

    The same transaction stores which batch it was, and the term of the process that wrote it. So a repeated batch
    changes nothing, and a process that was superseded is refused.
    """

    idempotent = True
    replaces_rows = True

    def __init__(self, database: Path) -> None:
        self._database = database

    def describe(self) -> str:
        return f"ReplacedTable({self._database})"

    def write_batch(self, batch: ReleasedBatch) -> None:
        with closing(sqlite3.connect(self._database, timeout=30, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
            database.execute("CREATE TABLE IF NOT EXISTS totals (shop TEXT PRIMARY KEY, orders INTEGER, total INTEGER)")
            database.execute("CREATE TABLE IF NOT EXISTS replaced_by (term INTEGER, batch_id INTEGER)")
            database.execute("BEGIN IMMEDIATE")
            if not self._has(database, batch):
                rows = batch.read().select("shop", "orders", "total").toLocalIterator()
                database.execute("DELETE FROM totals")
                database.executemany("INSERT INTO totals VALUES (?, ?, ?)", map(tuple, rows))
                database.execute("DELETE FROM replaced_by")
                database.execute("INSERT INTO replaced_by VALUES (?, ?)", (batch.term, batch.batch_id))
            database.execute("COMMIT")

    def _has(self, database: sqlite3.Connection, batch: ReleasedBatch) -> bool:
        """Tell whether the table holds this batch or a later one. `FencedError` if a newer process wrote it."""
        term, batch_id = database.execute("SELECT term, batch_id FROM replaced_by").fetchone() or (0, -1)
        if term > batch.term:
            found = f"the table was replaced by term {term}"
            raise FencedError(f"{self.describe()}: batch {batch.batch_id} of term {batch.term}: {found}", term=term)
        return bool(batch_id >= batch.batch_id)


def main() -> None:
    parser = arguments(__doc__, rows=2_000, kills=3)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.query:
        run_query(Home(Path(options.query)), options.mode)
        return
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            prove(Home(Path(folder) / mode), mode, options)
    print(f"ok: update and complete mode ended with the batch aggregate, after {options.kills} kills each")


def prove(home: Home, mode: str, options: argparse.Namespace) -> None:
    """Write the orders, run and kill the query, compare the result."""
    print(f"{mode}:")
    home.write("orders", orders_of(files_for(options.kills), options.rows, random.Random(options.seed)))
    expected = list(totals_after_each_file(home.read("orders")))
    program = ("--mode", mode)
    if mode == "update":
        live_and_die(home, options.kills, options.seed, *program)
    else:
        with a_reader(home, expected) as reader:
            live_and_die(home, options.kills, options.seed, *program, ledger=False)
        reader.tell()
    assert_same_rows(home.query(READ), expected[-1], TABLE)
    tell_of_changelogs(home)


def run_query(home: Home, mode: str) -> None:
    """Run the query in this process until it has read all files, one file in each micro-batch."""
    spark = spark_with_rocksdb(home)
    if mode == "update":
        target: Any = Delivery(
            SqlSink(f"sqlite:///{home.database}", TABLE, mode="upsert", key=("shop",)), rows_per_s=ROWS_PER_S
        )
    else:
        target = ReplacedTable(home.database)
    settings = Settings(chunk_rows=20, max_pending_batches=2)
    with WalSink(target, wal=str(home.wal), checkpoint=str(home.checkpoint), settings=settings) as sink:
        sink.run(totals(spark, home).writeStream.outputMode(mode).trigger(availableNow=True))
        print(sink.guarantee()["default"])
    spark.stop()


def totals(spark: SparkSession, home: Home) -> DataFrame:
    """The streaming query."""
    reader = spark.readStream.schema("shop string, amount long").option("maxFilesPerTrigger", 1)
    orders = reader.json(str(home.root / "orders"))
    return orders.groupBy("shop").agg(count("*").alias("orders"), sum_of("amount").alias("total"))


# A reader of the table that is replaced.


class Reader:
    """Reads the table over and over, and notes what it sees that no prefix of the files explains."""

    def __init__(self, home: Home, expected: list[Totals]) -> None:
        self._home = home
        self._files = {totals: number for number, totals in enumerate(expected, 1)}
        self._looks = 0
        self._versions: list[int] = []
        self._mixtures = 0
        self._stopped = threading.Event()
        self._failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.002):
                self._look()
        except BaseException as error:  # noqa: BLE001 - raised again by `tell`
            self._failed = error

    def stop(self) -> None:
        self._stopped.set()

    def tell(self) -> None:
        """Print and assert what was seen."""
        if self._failed:
            raise self._failed
        print(
            f"another process read the table {self._looks} times: {len(self._versions)} different results, "
            f"{self._mixtures} mixtures of two"
        )
        assert self._mixtures == 0
        assert self._versions == sorted(self._versions), f"the table went back: {self._versions}"
        assert len(self._versions) > len(self._files) // 2, "it hardly saw a change, so this proves nothing"

    def _look(self) -> None:
        if not self._home.query("SELECT name FROM sqlite_master WHERE name = 'totals'"):
            return
        seen = frozenset(self._home.query(READ))
        self._looks += 1
        files = self._files.get(seen)
        if files is None:
            self._mixtures += bool(seen or self._versions)  # before the first version, it has no rows
        elif self._versions[-1:] != [files]:
            self._versions.append(files)


@contextmanager
def a_reader(home: Home, expected: list[Totals]) -> Iterator[Reader]:
    """Read the table in the background. This process is not the one that writes, and is not killed."""
    reader = Reader(home, expected)
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join()


# Input and batch computation.


def orders_of(files: int, rows: int, chance: random.Random) -> list[list[dict[str, object]]]:
    """Orders of shops. Over the files, new shops come and others do not change any more."""

    def order(file: int) -> dict[str, object]:
        shop = file * NEW_SHOPS_A_FILE + chance.randrange(SHOPS_A_FILE)
        return {"shop": f"shop-{shop:05}", "amount": chance.randrange(1, 1_000)}

    return [[order(file) for _ in range(rows)] for file in range(files)]


def totals_after_each_file(files: list[list[Any]]) -> Iterator[Totals]:
    """The batch computation: the totals of the first file, of the first two, and so on."""
    sums: dict[str, tuple[int, int]] = {}
    for orders in files:
        for order in orders:
            number, total = sums.get(order["shop"], (0, 0))
            sums[order["shop"]] = (number + 1, total + order["amount"])
        yield frozenset((shop, number, total) for shop, (number, total) in sums.items())


if __name__ == "__main__":
    main()

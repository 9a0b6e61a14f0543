# python examples/stream_stream_join.py [--kills 6] [--rows 300]
"""Orders joined with their payments, two streams with watermarks → an SQL table, each row of the join exactly once.

It is a left outer join: an order that was not paid within five minutes arrives without a payment, once the watermark
says that none can follow. The query's process is killed repeatedly. The table is then compared with the join that
SQLite computes over the same files.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from support.home import Home
from support.kills import arguments, files_for, live_and_die
from support.proof import assert_same_rows, tell_of_changelogs
from support.session import spark_with_rocksdb

from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends import SqlSink

FILE_S = 60
"""A file has the events of so many seconds."""
OUT_OF_ORDER_S = 40
WATERMARK_S = 120
PAYMENT_LIMIT_S = 300
START = 1_000_000
CLOSING = {"orders": -1, "payments": -2}
"""The ids in the last file of each stream: they move both watermarks past everything else, and match nothing."""

Row = dict[str, int]

ROWS_PER_S = 250
"""The target takes so many, in small transactions, so that a kill meets many batches half delivered."""


def main() -> None:
    options = arguments(__doc__, rows=300).parse_args()
    if options.query:
        run_query(Home(Path(options.query)))
        return
    with tempfile.TemporaryDirectory() as folder:
        prove(Home(Path(folder) / "home"), options)


def prove(home: Home, options: argparse.Namespace) -> None:
    """Write both inputs, run and kill the query, compare the result."""
    orders, payments = orders_and_payments(files_for(options.kills), options.rows, random.Random(options.seed))
    home.write("orders", orders)
    home.write("payments", payments)
    live_and_die(home, options.kills, options.seed)
    found = home.query("SELECT order_id, payment_id, waited_s FROM joined")
    expected = joined_by_sqlite(home.read("orders"), home.read("payments"))
    unpaid = sum(payment is None for _, payment, _ in expected)
    assert 0 < unpaid < len(expected), "the input has no outer rows, or only those"
    assert_same_rows(found, expected, "orders with payments")
    tell_of_changelogs(home)
    inner = len(expected) - unpaid
    print(f"ok: {inner} inner and {unpaid} outer rows, each once, after {options.kills} kills")


def run_query(home: Home) -> None:
    """Run the query in this process until it has read all files; each micro-batch takes one file of each stream."""
    spark = spark_with_rocksdb(home)
    orders = stream(spark, home, "orders", "order_id long, ordered long", "ordered")
    payments = stream(spark, home, "payments", "payment_id long, paid_order long, paid long", "paid")
    in_time = f"paid_at BETWEEN ordered_at AND ordered_at + INTERVAL {PAYMENT_LIMIT_S} SECONDS"
    joined = orders.join(payments, expr(f"order_id = paid_order AND {in_time}"), "leftOuter")
    joined = joined.selectExpr("order_id", "payment_id", "paid - ordered AS waited_s")
    target = Delivery(SqlSink(f"sqlite:///{home.database}", "joined"), rows_per_s=ROWS_PER_S)
    settings = Settings(chunk_rows=10, max_pending_batches=2)
    with WalSink(target, wal=str(home.wal), checkpoint=str(home.checkpoint), settings=settings) as sink:
        sink.run(joined.writeStream.outputMode("append").trigger(availableNow=True))
        print(sink.guarantee()["default"])
    spark.stop()


def stream(spark: SparkSession, home: Home, name: str, schema: str, second: str) -> DataFrame:
    """A stream with a watermark on the column `<second>_at`, made of its seconds."""
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(home.root / name))
    at = f"{second}_at"
    return rows.selectExpr("*", f"timestamp_seconds({second}) AS {at}").withWatermark(at, f"{WATERMARK_S} seconds")


def orders_and_payments(files: int, rows: int, chance: random.Random) -> tuple[list[list[Row]], list[list[Row]]]:
    """Both inputs, out of order by less than the watermark's delay. Some orders are paid late, twice or never."""
    orders: list[list[Row]] = [[] for _ in range(files)]
    payments: list[list[Row]] = [[] for _ in range(files)]
    for order_id in range((files - 1) * rows):
        file = order_id // rows
        ordered = START + file * FILE_S + chance.randrange(FILE_S) - chance.randrange(OUT_OF_ORDER_S)
        orders[file].append({"order_id": order_id, "ordered": ordered})
        for _ in range(chance.choices([0, 1, 2], [10, 80, 10])[0]):
            late = chance.random() < 0.1
            paid = ordered + chance.randrange(PAYMENT_LIMIT_S) + late * (PAYMENT_LIMIT_S + 1)
            paid_in = (paid - START + chance.randrange(OUT_OF_ORDER_S)) // FILE_S
            if 0 <= paid_in < files - 1:  # the others are never paid
                payment = {"payment_id": chance.getrandbits(40), "paid_order": order_id, "paid": paid}
                payments[paid_in].append(payment)
    end = START + files * FILE_S + PAYMENT_LIMIT_S + 10 * WATERMARK_S
    orders[-1].append({"order_id": CLOSING["orders"], "ordered": end})
    payments[-1].append({"payment_id": 0, "paid_order": CLOSING["payments"], "paid": end})
    return orders, payments


def joined_by_sqlite(orders: Iterable[list[Any]], payments: Iterable[list[Any]]) -> list[tuple[Any, ...]]:
    """The batch computation: the same join of all rows, without the closing order."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, ordered INTEGER)")
        database.execute("CREATE TABLE payments (payment_id INTEGER, paid_order INTEGER, paid INTEGER)")
        for file in orders:
            database.executemany("INSERT INTO orders VALUES (:order_id, :ordered)", file)
        for file in payments:
            database.executemany("INSERT INTO payments VALUES (:payment_id, :paid_order, :paid)", file)
        database.execute("CREATE INDEX by_order ON payments (paid_order)")
        join = (
            "SELECT order_id, payment_id, paid - ordered FROM orders LEFT JOIN payments "
            "ON paid_order = order_id AND paid >= ordered AND paid <= ordered + ? WHERE order_id >= 0"
        )
        return database.execute(join, [PAYMENT_LIMIT_S]).fetchall()


if __name__ == "__main__":
    main()

# python examples/change_stream.py [--kills 6] [--rows 400] [--into postgresql://user:password@host/database]
"""Debezium's events of a table → a table of SQLite or PostgreSQL, which becomes the same table, row by row.

The events are a snapshot, creates, updates, deletes, changed keys, tombstones and heartbeats. Some come again, batches
later. The query's process is killed repeatedly. The table is then compared with the one that the events tell of.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.home import Home
from support.kills import arguments, files_for, live_and_die
from support.proof import assert_same_rows
from support.session import spark_with_rocksdb

from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends import SqlSink
from wal_sink_backends.changes import debezium

KEYS = 60
REPEATED = 0.2  # of the events come once more, in a later file
ROWS_PER_S = 200
"""The target takes so many, in small transactions, so that a kill meets many batches half delivered."""

Row = dict[str, Any]


def main() -> None:
    parser = arguments(__doc__, rows=400)
    parser.add_argument("--into", default="", metavar="URL", help="a database without the table orders")
    options = parser.parse_args()
    if options.query:
        run_query(Home(Path(options.query), options.into))
        return
    with tempfile.TemporaryDirectory() as folder:
        prove(Home(Path(folder) / "home", options.into), options)


def prove(home: Home, options: argparse.Namespace) -> None:
    """Write the events, run and kill the query, compare the result."""
    chance = random.Random(options.seed)
    table: dict[int, Row] = {}
    files: list[list[Row]] = []
    source = events_of(table, chance)
    for _ in range(files_for(options.kills)):
        again = [event for file in files[-3:] for event in file if chance.random() < REPEATED]
        files.append([*again, *(next(source) for _ in range(options.rows))])
    home.write("events", files)
    live_and_die(home, options.kills, options.seed, "--into", home.target)
    expected = [(row["id"], row["name"], row["note"]) for row in table.values()]
    number = assert_same_rows(home.query("SELECT id, name, remark FROM orders"), expected, "orders")
    print(f"ok: {number} rows, as in the source, after {options.kills} kills")


def run_query(home: Home) -> None:
    """Run the query in this process until it has read all files, one file in each micro-batch."""
    spark = spark_with_rocksdb(home)
    text = spark.readStream.option("maxFilesPerTrigger", 1).text(str(home.root / "events"))
    rows = debezium(text, columns="id BIGINT, name STRING, note STRING", key="id", connector="postgresql")
    database = home.target or f"sqlite:///{home.database}"
    table = SqlSink(database, "orders", mode="upsert", key="id", newer_by="source_lsn", operation="op")
    target = Delivery(table, columns={"note": "remark"}, rows_per_s=ROWS_PER_S)
    settings = Settings(chunk_rows=10, max_pending_batches=2)
    with WalSink(target, wal=str(home.wal), checkpoint=str(home.checkpoint), settings=settings) as sink:
        sink.run(rows.writeStream.trigger(availableNow=True))
        print(sink.guarantee()["default"])
    spark.stop()


def events_of(table: dict[int, Row], chance: random.Random) -> Iterator[Row]:
    """The events of random changes, for ever. `table` is always as it is after the last one."""
    for key in range(KEYS // 2):
        table[key] = {"id": key, "name": f"name {key}", "note": None}
        yield event("r", None, table[key], lsn=100)
    lsn = 100
    while True:
        lsn += 1
        key = chance.randrange(KEYS)
        before = table.get(key)
        after = {"id": key, "name": f"name {lsn}", "note": chance.choice([None, f"note {lsn}"])}
        if before is None:
            table[key] = after
            yield event("c", None, after, lsn)
        elif chance.random() < 0.2:
            del table[key]
            yield event("d", before, None, lsn)
        elif chance.random() < 0.1 and key + KEYS not in table:
            moved = {**before, "id": key + KEYS}  # in one event, as where the key is not the one of the source's table
            del table[key]
            table[key + KEYS] = moved
            yield event("u", before, moved, lsn)
        elif chance.random() < 0.05:
            yield {"ts_ms": lsn}
        else:
            table[key] = after
            yield event("u", before, after, lsn)


def event(operation: str, before: Row | None, after: Row | None, lsn: int) -> Row:
    """An event as Debezium's connector for PostgreSQL writes it, without its schema."""
    snapshot = "true" if operation == "r" else "false"
    source = {"connector": "postgresql", "schema": "public", "table": "orders", "snapshot": snapshot, "lsn": lsn}
    return {"before": before, "after": after, "source": source, "op": operation, "ts_ms": 1_700_000_000_000}


if __name__ == "__main__":
    main()

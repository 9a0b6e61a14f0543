# python examples/iot_late_data.py [--kills 6] [--rows 500]
"""Measurements, some late and some repeated → sums in windows of event time → an SQL table, exactly once.

Repeats are dropped by `dropDuplicatesWithinWatermark`. Rows that are later than the watermark are dropped, and Spark
counts them. The query's process is killed repeatedly. The table and the counts are then compared with a batch
computation over the same files, which applies the same rule.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, window
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from support.home import Home
from support.kills import arguments, files_for, live_and_die
from support.proof import assert_same_rows, tell_of_changelogs
from support.session import spark_with_rocksdb

from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends import SqlSink

FILE_S = 60
"""A file has the measurements of so many seconds, and older ones."""
WINDOW_S = 20
WATERMARK_S = 120
IN_TIME_S = 50
"""A measurement arrives at most so many seconds after its file began, or it is later than every watermark."""
TOO_LATE_S = (400, 900)
START = 1_000_000
SENSORS = 20
CLOSING = "closing"
"""The sensor of the last measurement. It moves the watermark past all windows except its own."""

Row = dict[str, Any]

ROWS_PER_S = 100
"""The target takes so many, in small transactions, so that a kill meets many batches half delivered."""


def main() -> None:
    options = arguments(__doc__, rows=500).parse_args()
    if options.query:
        run_query(Home(Path(options.query)))
        return
    with tempfile.TemporaryDirectory() as folder:
        prove(Home(Path(folder) / "home"), options)


def prove(home: Home, options: argparse.Namespace) -> None:
    """Write the measurements, run and kill the query, compare the result and the counts."""
    home.write("measurements", measurements(files_for(options.kills), options.rows, random.Random(options.seed)))
    live_and_die(home, options.kills, options.seed)
    found = home.query("SELECT sensor, start, measurements, total FROM windows")
    expected, dropped, repeats = windows_of(home.read("measurements"))
    number = assert_same_rows(found, expected, "windows")
    compare_counts(home, dropped)
    tell_of_changelogs(home)
    late = sum(dropped)
    assert min(late, repeats) > 0, "the input has no late or no repeated measurements"
    print(f"ok: {number} windows, each once, without {late} late and {repeats} repeated rows, {options.kills} kills")


def run_query(home: Home) -> None:
    """Run the query in this process until it has read all files, one file in each micro-batch."""
    spark = spark_with_rocksdb(home)
    spark.streams.addListener(CountsDropped(home))
    target = Delivery(SqlSink(f"sqlite:///{home.database}", "windows"), rows_per_s=ROWS_PER_S)
    settings = Settings(chunk_rows=5, max_pending_batches=2)
    with WalSink(target, wal=str(home.wal), checkpoint=str(home.checkpoint), settings=settings) as sink:
        sink.run(windows(spark, home).writeStream.outputMode("append").trigger(availableNow=True))
        print(sink.guarantee()["default"])
    spark.stop()


def windows(spark: SparkSession, home: Home) -> Any:
    """The streaming query."""
    reader = spark.readStream.schema("sensor string, number long, at long, value long").option("maxFilesPerTrigger", 1)
    rows = reader.json(str(home.root / "measurements")).selectExpr("*", "timestamp_seconds(at) AS moment")
    distinct = rows.withWatermark("moment", f"{WATERMARK_S} seconds").dropDuplicatesWithinWatermark(
        ["sensor", "number"]
    )
    sums = distinct.groupBy(window("moment", f"{WINDOW_S} seconds"), "sensor").agg(
        count("*").alias("measurements"), sum_of("value").alias("total")
    )
    return sums.selectExpr("sensor", "unix_seconds(window.start) AS start", "measurements", "total")


class CountsDropped(StreamingQueryListener):
    """Writes down, for each batch that Spark reports, how many rows were later than the watermark.

    Reports are no part of the exactly-once guarantee: a kill loses those that were under way.
    """

    def __init__(self, home: Home) -> None:
        self._path = counts_path(home)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        late = [each.numRowsDroppedByWatermark for each in progress.stateOperators if "dedupe" in each.operatorName]
        source = progress.sources[0]
        counts = {"after": file_of(source.startOffset), "up_to": file_of(source.endOffset), "dropped": sum(late)}
        with self._path.open("a") as file:
            file.write(json.dumps(counts) + "\n")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""


def counts_path(home: Home) -> Path:
    return home.root / "dropped.jsonl"


def file_of(offset: str | None) -> int:
    """The number of the last file before an offset. Spark numbers them in the order of their age."""
    return -1 if offset is None else int(json.loads(offset)["logOffset"])


def compare_counts(home: Home, dropped: list[int]) -> None:
    """Every batch that Spark reported must have dropped exactly as many rows as the batch computation.

    A batch may have two files: if Spark is killed after it wrote down which file comes next and before it wrote down
    the batch, the batch gets that file and one more.
    """
    reported: set[int] = set()
    for line in counts_path(home).read_text().splitlines():
        if line.endswith("}"):  # else its process was killed as it wrote it
            counts = json.loads(line)
            files = range(counts["after"] + 1, counts["up_to"] + 1)
            assert counts["dropped"] == sum(dropped[file] for file in files), f"files {files}: {counts}"
            reported.update(files)
    print(f"late rows: {sum(dropped)} in {len(dropped)} files; Spark reported {len(reported)} files, equally many")
    assert sum(dropped[file] for file in reported) > 0, "Spark reported no late row"


# Input and batch computation.


def measurements(files: int, rows: int, chance: random.Random) -> list[list[Row]]:
    """Measurements that are in order, late but in time, far too late, or repeated in the same or the next file."""
    content: list[list[Row]] = [[] for _ in range(files)]
    for number in range((files - 1) * rows):
        file = number // rows
        began = START + file * FILE_S
        at, kind = began + chance.randrange(FILE_S), chance.random()
        if kind < 0.2:
            at = began - chance.randrange(IN_TIME_S)
        elif kind < 0.3 and file >= 5:  # in the first files there is no watermark that all agree on
            at = began - chance.randrange(*TOO_LATE_S)
        row = {"sensor": f"sensor-{number % SENSORS}", "number": number, "at": at, "value": chance.randrange(1_000)}
        content[file].append(row)
        if chance.random() < 0.2:
            next_one = at >= began + FILE_S - IN_TIME_S and file + 1 < files - 1
            content[file + (next_one and chance.random() < 0.5)].append(row)
    for file_rows in content:
        chance.shuffle(file_rows)
    end = START + files * FILE_S + WINDOW_S + 10 * WATERMARK_S
    content[-1].append({"sensor": CLOSING, "number": -1, "at": end, "value": 0})
    return content


def windows_of(files: list[list[Row]]) -> tuple[list[tuple[Any, ...]], list[int], int]:
    """The batch computation: the windows, the number of late rows in each file, and the number of repeats.

    The watermark of a batch lies `WATERMARK_S` before the newest measurement of the batches before. A query with
    several stateful operators drops rows by the watermark of one batch earlier, and a batch may have two files. The
    input has no row whose fate depends on that: one that is late after the file before is late after the last but
    three, too.
    """
    sums: dict[tuple[str, int], list[int]] = {}
    seen: set[tuple[str, int]] = set()
    dropped, repeats = [], 0
    newest = [0, 0, 0, 0]
    """The newest measurement of all files so far, without the last one, without the last two, without three."""
    for rows in files:
        late = [row for row in rows if row["at"] < newest[0] - WATERMARK_S]
        assert late == [row for row in rows if row["at"] < newest[-1] - WATERMARK_S], "the input is not exact"
        dropped.append(len(late))
        for row in rows:
            if row["at"] < newest[0] - WATERMARK_S:
                continue
            if (row["sensor"], row["number"]) in seen:
                repeats += 1
                continue
            seen.add((row["sensor"], row["number"]))
            window_sums = sums.setdefault((row["sensor"], row["at"] - row["at"] % WINDOW_S), [0, 0])
            window_sums[0] += 1
            window_sums[1] += row["value"]
        newest = [max(newest[0], *(row["at"] for row in rows)), *newest[:-1]]
    found = [(sensor, start, number, total) for (sensor, start), (number, total) in sums.items() if sensor != CLOSING]
    return found, dropped, repeats


if __name__ == "__main__":
    main()

"""The program of one PySpark, in another process: it writes checkpoints of every kind that this version can write.

Arguments: the folder to write to, and kinds if not all are wanted. Each becomes a folder `<kind>/checkpoint`, and
`<kind>/read.json`: the origins of the rows of each batch, which are names of files and values of a rate source.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark import __version__
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.house.spark import setting_of

VERSION = tuple(int(part) for part in __version__.split(".")[:2])
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FIRST_TIME_S = 1767225600
"""The time of the first file: 2026-01-01T00:00:00Z. Each later file is one second younger."""

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
SINK_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
STATE_IDS = {
    STATE_STORE: ROCKSDB,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}
COMPACTING = {
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


class Kind:
    """A query that is started several times on one checkpoint, and the files that it reads."""

    def __init__(self, folder: Path, name: str, conf: dict[str, str]) -> None:
        self.home = folder / name
        self.checkpoint = self.home / "checkpoint"
        self.home.mkdir(parents=True)
        self.read: dict[int, list[str]] = {}
        self.files = 0
        self.spark = SparkSession.builder.getOrCreate().newSession()
        for key, value in conf.items():
            self.spark.conf.set(key, value)

    def add_file(self, name: str, source: str = "in") -> None:
        folder = self.folder(source)
        (folder / name).write_text(f"row of {name}\n")
        os.utime(folder / name, (FIRST_TIME_S + self.files, FIRST_TIME_S + self.files))
        self.files += 1

    def folder(self, source: str) -> Path:
        folder = self.home / source
        folder.mkdir(exist_ok=True)
        return folder

    def file_source(self, source: str = "in", name: str | None = None) -> DataFrame:
        reader = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        if name is not None:
            reader = reader.name(name)
        return reader.load(str(self.folder(source))).select(sf.col("_metadata.file_name").alias("origin"))

    def rate_source(self, name: str | None = None) -> DataFrame:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "2")
        if name is not None:
            reader = reader.name(name)
        return reader.load().select(sf.concat(sf.lit("rate "), sf.col("value")).alias("origin"))

    def start(self, df: DataFrame, mode: str = "append") -> None:
        """Start the query once. It reads the present files and ends."""
        writer = df.writeStream.foreachBatch(self._note).outputMode(mode).queryName("golden")
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        if setting_of(self.spark, SINK_EVOLUTION).is_true:
            writer._jwrite.name("golden_sink")
        writer.start().awaitTermination()

    def forget(self, batch_id: int) -> None:
        """Delete the entry of this batch, as if the query had died before it wrote it."""
        for log in ("offsets", "commits"):
            for name in (f"{batch_id}", f".{batch_id}.crc"):
                (self.checkpoint / log / name).unlink(missing_ok=True)

    def end(self) -> None:
        (self.home / "read.json").write_text(json.dumps(self.read, indent=1, sort_keys=True) + "\n")

    def _note(self, df: DataFrame, batch_id: int) -> None:
        self.read[batch_id] = sorted(row.origin for row in df.select("origin").collect())


def file(kind: Kind) -> None:
    """Read each file in one batch."""
    for name in ("a.txt", "b.txt", "c.txt"):
        kind.add_file(name)
    kind.start(kind.file_source())


def compacted(kind: Kind) -> None:
    """Run so many batches that the source compacts its log and deletes the compacted entries."""
    for number in range(8):
        kind.add_file(f"{number}.txt")
        kind.start(kind.file_source())


def two_entries(kind: Kind) -> None:
    """Let a query die after its source noted files and before it noted its batch. The next query reads more files."""
    for name in ("a.txt", "b.txt"):
        kind.add_file(name)
        kind.start(kind.file_source())
    kind.forget(1)
    kind.add_file("c.txt")
    kind.start(kind.file_source())
    kind.add_file("d.txt")
    kind.start(kind.file_source())


def rate(kind: Kind) -> None:
    """Read a source whose offsets show their rows."""
    for _ in range(2):
        kind.start(kind.rate_source())


def two_sources(kind: Kind) -> None:
    """Read two sources, one of which has no rows at first."""
    kind.start(kind.file_source().union(kind.rate_source()))
    for name in ("a.txt", "b.txt"):
        kind.add_file(name)
    kind.start(kind.file_source().union(kind.rate_source()))


def named(kind: Kind) -> None:
    """Read named sources, one of which is added later."""
    kind.add_file("a.txt", "orders")
    kind.add_file("b.txt", "clicks")
    orders, clicks = kind.file_source("orders", "orders"), kind.file_source("clicks", "clicks")
    kind.start(orders.union(clicks))
    kind.add_file("c.txt", "late")
    kind.add_file("d.txt", "clicks")
    kind.start(clicks.union(orders).union(kind.file_source("late", "late")))


def named_once(kind: Kind) -> None:
    """Read named sources with an offset log of version 1 in the settings, which Spark 4.3 raises to 2."""
    kind.add_file("a.txt", "orders")
    kind.add_file("b.txt", "clicks")
    kind.start(kind.file_source("orders", "orders").union(kind.file_source("clicks", "clicks")))


def counts(kind: Kind) -> DataFrame:
    return kind.file_source().groupBy("origin").count()


def stateful(kind: Kind) -> None:
    for name in ("a.txt", "b.txt"):
        kind.add_file(name)
    kind.start(counts(kind), "update")


def repartitioned(kind: Kind) -> None:
    """Repartition the state while no query runs, before and after a batch."""
    for partitions in (3, 2):
        kind.add_file(f"before-{partitions}.txt")
        kind.start(counts(kind), "update")
        kind.spark._streamingCheckpointManager.repartition(str(kind.checkpoint), partitions)
    kind.add_file("after.txt")
    kind.start(counts(kind), "update")


KINDS: list[tuple[str, tuple[int, int], dict[str, str], Callable[[Kind], None]]] = [
    ("file", (3, 5), {}, file),
    ("compacted", (3, 5), COMPACTING, compacted),
    ("two_entries", (3, 5), {}, two_entries),
    ("rate", (3, 5), {}, rate),
    ("two_sources", (3, 5), {}, two_sources),
    ("stateful", (3, 5), {}, stateful),
    ("stateful_ids", (4, 0), STATE_IDS, stateful),
    ("offset_log_2", (4, 2), {OFFSET_LOG: "2"}, two_sources),
    ("named", (4, 2), {SOURCE_EVOLUTION: "true", OFFSET_LOG: "2"}, named),
    ("named_in_log_1", (4, 2), {SOURCE_EVOLUTION: "true", OFFSET_LOG: "1"}, named_once),
    ("sink_evolution", (4, 2), {SINK_EVOLUTION: "true"}, stateful),
    ("repartitioned", (4, 2), {STATE_STORE: ROCKSDB}, repartitioned),
    ("repartitioned_ids", (4, 2), {OFFSET_LOG: "2", **STATE_IDS}, repartitioned),
]


def main(folder: Path, wanted: list[str]) -> None:
    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name, since, settings, run in KINDS:
        if since <= VERSION and (not wanted or name in wanted):
            kind = Kind(folder, name, settings)
            run(kind)
            kind.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

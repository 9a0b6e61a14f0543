"""Helpers for tests of a running query: a source with one batch per file, targets that can be counted, programs.

Spark's workers and programs in separate processes import this module too.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import wal_sink
from wal_sink import Chunk, Delivery, PermanentError, Settings, Sink, WalSink, WalSinkError
from wal_sink.settings import Retry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "id long"
POLL_S = 0.02
Trouble = Literal["raise", "permanent", "hang"]

SESSION = """
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF
spark = SparkSession.builder.master("{master}").config(map=SPARK_CONF).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""
"""The start of Spark in a test's program. `format` it with a master."""


@dataclass(frozen=True)
class Feed:
    """A folder of JSON files. Each is one batch of a stream."""

    folder: Path

    def add(self, *batches: Iterable[int], name: str = "") -> None:
        """Add one batch of ids for each argument, in this order."""
        for ids in batches:
            self.add_text("".join(f'{{"id": {number}}}\n' for number in ids), name)

    def add_text(self, text: str, name: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.iterdir()))
        hidden = self.folder / f".{number}"
        hidden.write_text(text)
        os.utime(hidden, (1e9 + number, 1e9 + number))  # Spark takes files by age, to the millisecond
        hidden.rename(self.folder / f"{number:06d}{name}.json")

    def stream(self, spark: SparkSession, schema: str = SCHEMA) -> DataFrame:
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder))


@dataclass(frozen=True)
class Home:
    """The places of one test query, below one folder: input, checkpoint, WAL and target."""

    root: Path
    wal_url: str = ""

    @property
    def feed(self) -> Feed:
        return Feed(self.root / "in")

    @property
    def wal(self) -> Path:
        return self.root / "wal"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def lines(self) -> Lines:
        return Lines(self.root / "out.jsonl")

    @property
    def trouble(self) -> Path:
        """The path of the file that disturbs sinks made by `troubled`. While it exists, they do what it says."""
        return self.root / "trouble"

    def troubled(self, how: Trouble = "raise") -> Lines:
        self.trouble.write_text(how)
        return Lines(self.root / "out.jsonl", trouble=self.trouble)

    def sink(self, to: object = ..., **options: Any) -> WalSink:
        """Return a `WalSink` on this place. The default target is `lines`."""
        target = self.lines if to is ... else to
        given = {"wal": self.wal_url or str(self.wal), "checkpoint": str(self.checkpoint), **options}
        return WalSink(target, **given)

    def writer(self, spark: SparkSession, schema: str = SCHEMA, columns: Sequence[str] = ()) -> DataStreamWriter:
        """Return a writer of the feed's stream, with `columns` as well, that ends when everything is read."""
        return self.feed.stream(spark, schema).selectExpr("*", *columns).writeStream.trigger(availableNow=True)

    def run(self, spark: SparkSession, to: object = ..., **options: Any) -> None:
        """Run once, from opening to closing."""
        with self.sink(to, **options) as sink:
            sink.run(self.writer(spark))

    def object(self, pattern: str) -> Path:
        """Return the first object of the WAL whose path matches."""
        found = sorted(self.wal.glob(pattern))
        assert found, f"no {pattern} in {sorted(str(path) for path in self.wal.rglob('*'))}"
        return found[0]


@dataclass(frozen=True)
class Sent:
    """One call of a target."""

    batch: int
    key: str
    term: int
    ids: tuple[int, ...]
    pid: int
    name: str


@dataclass(frozen=True)
class Lines(Sink):
    """A target that appends a line per chunk to a file, from any process, and can be made to misbehave."""

    path: Path
    trouble: Path | None = None
    name: str = ""
    pause_s: float = 0.0
    idempotent: bool = False

    def write(self, chunk: Chunk) -> None:
        self._misbehave()
        time.sleep(self.pause_s)
        sent = {
            "batch": chunk.batch_id,
            "key": chunk.key,
            "term": chunk.term,
            "ids": chunk.table.column(0).to_pylist(),
            "pid": os.getpid(),
            "name": self.name,
        }
        append_line(self.path, json.dumps(sent))

    def sent(self) -> list[Sent]:
        """Return every call so far, except a line that is being written."""
        return [Sent(**{**line, "ids": tuple(line["ids"])}) for line in read_json(self.path)]

    def ids(self, name: str | None = None) -> list[int]:
        """Return every delivered id, sorted, including repeats."""
        return sorted(number for sent in self.sent() if name in {None, sent.name} for number in sent.ids)

    def repeats(self) -> int:
        """Return how many chunks arrived more than once. Each time they must have had the same rows."""
        counted = Counter((sent.key, sent.ids) for sent in self.sent())
        assert len(counted) == len({key for key, _ in counted}), "one key with two contents"
        return sum(times - 1 for times in counted.values())

    def _misbehave(self) -> None:
        how = self.trouble.read_text() if self.trouble is not None and self.trouble.exists() else ""
        if how == "raise":
            raise OSError("the target is down")
        if how == "permanent":
            raise PermanentError("the target refuses")
        while how == "hang" and self.trouble is not None and self.trouble.exists():
            time.sleep(POLL_S)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file at once, beside any other process that appends."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def read_json(path: Path, *, after: int = 0) -> list[dict[str, Any]]:
    """Return the values of a file's lines that stand after so many bytes, except a line that is being written."""
    text = ""
    if path.exists():
        with path.open() as file:
            file.seek(after)
            text = file.read()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def fails(spark: SparkSession, place: Home, kind: type[WalSinkError], *said: str, to: object = ...) -> str:
    """Run, expect the error itself (not Spark's account of it), and return its message, which says all of `said`."""
    caught: WalSinkError | None = None
    try:
        place.run(spark, to)
    except WalSinkError as error:
        caught = error
    assert caught is not None
    public = next(known for known in type(caught).__mro__ if known.__name__ in wal_sink.__all__)
    assert public is kind, repr(caught)
    missing = [text for text in said if text not in str(caught)]
    assert not missing, f"{caught} does not say {missing}"
    return str(caught)


def quick(to: object, *, attempts: int = 2, attempt_timeout_s: float = 60.0, **options: Any) -> Delivery:
    """Return a delivery that gives up after few attempts, each of which a slow machine can finish."""
    return Delivery(to, retry=Retry(attempts=attempts, attempt_timeout_s=attempt_timeout_s), **options)


def small_chunks(rows: int = 10) -> Settings:
    return Settings(chunk_rows=rows)


def flip(path: Path, at: int = -9) -> bytes:
    """Flip one byte of a file. Return its earlier content."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[at] ^= 0x10
    path.write_bytes(changed)
    return data


def copy_of(folder: Path, name: str) -> Path:
    """Copy a folder to a place beside it."""
    target = folder.with_name(name)
    shutil.copytree(folder, target)
    return target


def restore(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(copy, folder)


def leading(numbers: Sequence[int]) -> int:
    """Return how many of 0, 1, 2, … are there without a gap."""
    there = set(numbers)
    return next(number for number in itertools.count() if number not in there)

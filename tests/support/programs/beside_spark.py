"""The program of `test_beside_spark.py`: the same queries with Spark alone and through `wrap`, and what a writer sees.

`python beside_spark.py FOLDER` prints `SEEN` and JSON: `{side: {writer and case: {fact: [values]}}}`. Both sides have
the same writers, which note each fact as a line of JSON, from any process.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from tests.house.spark import version_of
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home, append_line
from wal_sink import Delivery, Retry, wrap
from wal_sink.spark.private import setting_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK = version_of(pyspark.__version__)

ZONES = {
    "America/New_York": "America/New_York",
    "Asia/Tokyo": "UTC",
    "GMT+8": "Europe/Dublin",
    "Australia/Lord_Howe": "Australia/Lord_Howe",
    "UTC": "UTC",
}
"""The session's time zone, and that of the Python processes. The last one stays for the cases that fail."""
FOLDS = (1730611800, 1730615400, 1729989000, 1729992600, 1712414700, 1712416500, 1710054000, 1711848600)
"""Seconds in or near a repeated or a left-out hour of one of these zones."""


def expressions(text: str) -> dict[str, list[str]]:
    """The lines `name: expression; expression`."""
    lines = (line.strip().partition(": ") for line in text.strip().splitlines())
    return {name: values.split("; ") for name, _, values in lines}


TYPES = expressions(r"""
    boolean: true; null
    byte: -128Y; 127Y
    short: -32768S; 32767S
    int: -2147483648; null
    long: -9223372036854775807L - 1L; 9223372036854775807L
    float: float('NaN'); float('-Infinity'); -0.0f; 1.1f; float('1e-45')
    double: double('NaN'); double('Infinity'); double('-0.0'); double('4.9e-324')
    decimal: cast(repeat('9', 38) as decimal(38,0)); cast('-0.1' as decimal(38,38)); 1.10BD; 0.00BD
    string: ''; 'Zürich 東京 😀'; null
    text with a zero: cast(X'610062' as string)
    char: cast('a' as char(3)); cast('a' as varchar(3))
    binary: X''; X'00ff'; null
    date: date'0001-01-01'; date'9999-12-31'; date'1582-10-10'
    timestamp: timestamp_micros(-1); timestamp'0001-01-05 00:00:00'; timestamp'9999-12-25 00:00:00.999999'
    old timestamp: timestamp'1883-11-18 12:00:00'; timestamp'1850-06-01 00:00:00.000001'
    timestamp_ntz: timestamp_ntz'0001-01-01 00:00:00.000001'; timestamp_ntz'9999-12-31 23:59:59.999999'
    fold in ntz: timestamp_ntz'2024-11-03 01:30:00'
    interval: interval '-1 2:3:4.000005' day to second; interval '5' hour; interval '106751990' day
    void: null
    array: array(1, null); cast(array() as array<int>); array(array('a'), null); array(X'01')
    array of times: array(timestamp_seconds(1730611800), timestamp_seconds(1730615400))
    map: map('k', cast(null as int)); map('b', 2, 'a', 1); map(named_struct('x', 1), array(X'02'))
    map of times: map(timestamp_seconds(1730615400), date'1999-12-31')
    struct: named_struct('a.b', 1, 'c`d', null, ' ', X'01', '', 1.5d); named_struct('x', null)
    struct of a and A: named_struct('a', 1, 'A', float('NaN'))
    deep: array(map(1, named_struct('k', array(named_struct('d', date'2020-02-29', 't', 1Y)))))
""")
TYPES["fold"] = [f"timestamp_seconds({second})" for second in FOLDS]
if SPARK >= (4, 0):
    TYPES |= expressions("""
        variant: parse_json('{"a": [1, null, 1.5, "x"]}'); parse_json('null'); cast(null as variant)
        collation: 'a' collate UNICODE_CI""")
if SPARK >= (4, 1):
    TYPES["time"] = ["time'23:59:59.999999'", "time'00:00:00'"]
NOT_UTF_8 = expressions("t: cast(X'61ff' as string); cast(X'eda080' as string); array(cast(X'ff' as string))")
"""Which a data source cannot read, with Spark alone either."""
UNREADABLE = expressions("""
    date before year 1: date'-0044-03-15'
    timestamp after 9999: timestamp_micros(9223372036854775807)
    year-month interval: interval '1-2' year to month
    calendar interval: make_interval(1, 2, 3)
    array of no type: array()
    not utf-8: cast(X'61ff' as string)
""")
ROWS_FAIL = ("open returns False", "process raises", "process raises StopIteration", "process exits", "close raises")
SOURCE_FAILS = ("write raises", "write raises StopIteration", "write exits", "write returns None", "commit raises")


class Trouble(Exception):
    """The error of a writer that fails."""


RAISED = {"raises": Trouble("the target is down"), "raises StopIteration": StopIteration(), "exits": SystemExit(3)}


def shown(value: object) -> str:
    """Everything that a program can tell about a value of a row."""
    kind, inner = type(value).__name__, value
    if isinstance(value, Row):
        kind += f" of {type(value.__fields__).__name__} {value.__fields__}"
    elif isinstance(value, dict):
        inner = tuple(value.items())
    if isinstance(inner, list | tuple):
        return f"{kind}({', '.join(map(shown, inner))})"
    return f"{kind} {value!r} {vars(value) if hasattr(value, '__dict__') else ''}"


def attempt(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the answer is which
        return f"raises {type(error).__name__}"


@dataclass
class Writer:
    """A writer with the file of its query's facts."""

    path: Path
    fails: str = ""
    count: int = 0
    """Of what this object has had."""

    def note(self, fact: str, value: object) -> None:
        append_line(self.path, json.dumps([fact, shown(value)]))

    def facts(self) -> dict[str, list[str]]:
        """The values of each fact; of one that names its batch, as often as they came. Tasks have no order."""
        found = defaultdict[str, list[str]](list)
        for fact, value in map(json.loads, self.path.read_text().splitlines()):
            found[fact].append(value)
        return {fact: sorted(values if fact.startswith("batch ") else {*values}) for fact, values in found.items()}

    def fail(self, where: str) -> None:
        if error := RAISED.get(self.fails.removeprefix(f"{where} ")):
            raise error

    def note_row(self, row: Row) -> None:
        self.note("class of a row", f"{type(row).__module__}.{type(row).__name__} {row.__fields__}")
        told = (lambda: sorted(row.asDict(True)), lambda: len(row.__reduce__()[1]), lambda: row == Row(*row))
        self.note(f"row {row[0]}: hashed, as dict, pickled, equal", [hash(row[:1]), *map(attempt, told)])
        for name, value in zip(row.__fields__, row, strict=True):
            if name != "once":
                self.note(f"value: {name}", value)

    def note_task(self, what: str) -> None:
        context = TaskContext.get()
        self.note(f"{what}: active session", type(SparkSession.getActiveSession()).__name__)
        self.note(f"{what}: in the driver", str(os.getpid()) == os.environ["DRIVER_PID"])
        self.note(f"{what}: main thread", threading.current_thread() is threading.main_thread())
        self.note(f"{what}: zone of the process, TaskContext", [time.tzname, type(context).__name__])
        if context is not None:
            pool, group = map(context.getLocalProperty, ("spark.scheduler.pool", "spark.jobGroup.id"))
            found = [context.attemptNumber(), context.resources(), context.cpus(), pool, bool(group)]
            self.note(f"{what}: attempt, resources, pool, job group", found)
            for key in ("streaming.sql.batchId", "mine"):
                self.note(f"{what}: local property {key}", context.getLocalProperty(key))


class Batches(Writer):
    """A function of `foreachBatch`."""

    def __call__(self, df: DataFrame, batch_id: int) -> str:
        note, spark, main = self.note, df.sparkSession, SparkSession.builder.getOrCreate()
        self.count += 1
        note(f"batch {batch_id}: calls of the object", self.count)
        self.fail("function")
        note("arguments", [f"{type(one).__module__}.{type(one).__name__}" for one in (df, batch_id, spark)])
        note("df", [df.isStreaming, bool(df.inputFiles()), bool(df.select(sf.input_file_name()).collect()[0][0])])
        note("schema", df.schema.json())
        note(f"batch {batch_id}: partitions", df.rdd.getNumPartitions())
        active = SparkSession.getActiveSession()
        note("session is the caller's, the active one", [spark is main, active is main, active is spark])
        views = ("of_the_caller", "made_in_batch_0", "made_in_the_main_session")
        note(f"batch {batch_id}: views", [spark.catalog.currentDatabase(), *map(spark.catalog.tableExists, views)])
        note("function of the caller", attempt(spark.sql("select twice(2)").collect))
        if batch_id == 0:
            df.createOrReplaceTempView("made_in_batch_0")
            spark.conf.set("set.in.batch", "0")
            main.range(1).createOrReplaceTempView("made_in_the_main_session")
            main.conf.set("set.in.main", "1")
            note("rows of its view", spark.sql("select count(*) from made_in_batch_0").collect())
        for key, value in spark.sql("SET").collect():
            note(f"batch {batch_id}: setting {key}", value)
        for key in ("mine", "spark.scheduler.pool", "streaming.sql.batchId"):
            note(f"local property {key}", spark.sparkContext.getLocalProperty(key))
        group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        note("job group is the query's", group in {query.runId for query in main.streams.active})
        note("queries of its session", len(spark.streams.active))
        first, again = df.collect(), df.select("once").collect()
        note("computed again", sorted(row.once for row in first) == sorted(row.once for row in again))
        for row in first:
            self.note_row(row)
        df.select("id").foreachPartition(partial(Batches.note_partition, Writer(self.path)))
        return "ignored"

    @staticmethod
    def note_partition(writer: Writer, rows: Iterator[Row]) -> None:
        for _ in rows:
            writer.note_task("task of its job")


class Rows(Writer):
    """A `ForeachWriter`."""

    def open(self, partition: int, batch: int) -> bool:
        self.note(f"batch {batch}: open", f"{type(partition).__name__} {type(batch).__name__}")
        self.note("open: rows of the object", self.count)
        self.note_task("open")
        return self.fails != "open returns False"

    def process(self, row: Row) -> None:
        self.count += 1
        self.note_row(row)
        self.note_task("process")
        self.fail("process")

    def close(self, error: Exception | None) -> None:
        self.note("close", f"{type(error).__name__} {error}")
        self.fail("close")


KINDS: dict[str, tuple[Any, Callable[[Any, Any], Any], Callable[[Any], Any], tuple[str, ...]]] = {
    "foreach_batch": (Batches, lambda query, own: query.foreachBatch(own), wrap.foreach_batch, ("function raises",)),
    "foreach_writer": (Rows, lambda query, own: query.foreach(own), wrap.foreach_writer, ROWS_FAIL),
}
"""How a writer of each kind is made, given to Spark alone, wrapped, and fails."""

if SPARK >= (4, 0):
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

    @dataclass
    class Message(WriterCommitMessage):
        rows: int

    class Source(Writer, DataSourceStreamWriter):
        """A writer of a Python data source."""

        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            self.count += 1
            self.note("write: calls of the object, iterator", [self.count, type(iterator).__name__])
            self.note_task("write")
            rows = 0
            for rows, row in enumerate(iterator, 1):  # noqa: B007 - the number of the last one
                self.note_row(row)
                self.fail("write")
            return None if self.fails == "write returns None" else Message(rows)  # type: ignore[return-value]

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
            self.end("commit", messages, batchId)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            self.end("abort", messages, batchId)

        def end(self, call: str, messages: list[Any], batch: int) -> None:
            parts = sorted((type(one).__name__, 0 if one is None else one.rows) for one in messages)
            self.note(f"batch {batch}: {call}", [type(messages).__name__, type(batch).__name__, parts])
            self.note(f"{call}: calls of the object", self.count)
            self.note_task(call)
            self.fail(call)

    def to_source(query: Any, writer: Writer) -> Any:
        class Given(DataSource):
            def streamWriter(self, schema: object, overwrite: bool) -> Any:  # noqa: ARG002, N802 - PySpark's
                return writer

        Given.__name__ = f"beside_{writer.path.parent.name}"
        SparkSession.builder.getOrCreate().dataSource.register(Given)
        return query.format(Given.__name__)

    KINDS["data_source_writer"] = (Source, to_source, wrap.data_source_writer, SOURCE_FAILS)


@dataclass
class Both:
    """Runs each case on both sides, and keeps the facts."""

    spark: SparkSession
    root: Path
    seen: dict[str, dict[str, dict[str, list[str]]]]
    numbers: Iterator[int]

    def run(self, kind: str, case: str, expressions: dict[str, list[str]], fails: str = "") -> None:
        make, plain, wrapped, _ = KINDS[kind]
        columns = [
            f"{one} AS `{name}.{place}`" for name, all_of in expressions.items() for place, one in enumerate(all_of)
        ]
        self.spark.sparkContext.setLocalProperty("mine", "set before start")
        for side, seen in self.seen.items():
            place = Home(self.root / str(next(self.numbers)))
            place.feed.add([1, 2], [3])
            writer, error = make(place.root / "notes", fails), ""
            self.spark.catalog.dropTempView("made_in_the_main_session")
            self.spark.conf.unset("set.in.main")
            df = place.feed.stream(self.spark).repartition(2).selectExpr("id", "uuid() AS once", *columns)
            df = df.withColumn("id", sf.col("id").alias("id", metadata={"comment": "a key"}))
            query = df.writeStream.trigger(availableNow=True)
            try:
                if side == "Spark":
                    plain(query.option("checkpointLocation", str(place.checkpoint)), writer).start().awaitTermination()
                else:
                    with place.sink(Delivery(wrapped(writer), retry=Retry(attempts=1))) as sink:
                        sink.run(query)
            except Exception as raised:  # noqa: BLE001 - the answer is which
                error = f"{type(raised).__name__}: {raised}"
                sys.stderr.write(f"{kind}, {case}, {side}: {error[:2000]}\n")
            writer.note("query's error", error.partition(":")[0])
            writer.note("query ends well", not error)
            writer.note("query's error names row and column", "row 0 of the segment, column 'unreadable.0'" in error)
            writer.note("query's error has the writer's", ["Trouble" in error, "the target is down" in error])
            writer.note("view of batch 0 in the caller's session", self.spark.catalog.tableExists("made_in_batch_0"))
            writer.note("setting of batch 0 in the caller's session", setting_of(self.spark, "set.in.batch"))
            seen[f"{kind}, {case}"] = writer.facts()


def all_cases(spark: SparkSession, root: Path) -> dict[str, Any]:
    worker = spark.sparkContext.environment
    worker["DRIVER_PID"] = os.environ["DRIVER_PID"] = str(os.getpid())
    spark.conf.set("spark.sql.timeType.enabled", "true")  # Spark 4.3 has the type TIME, but switched off
    spark.sql("CREATE DATABASE IF NOT EXISTS other")
    spark.sql("USE other")
    spark.range(1).createOrReplaceTempView("of_the_caller")
    spark.udf.register("twice", lambda number: 2 * number, "int")
    both = Both(spark, root, {"Spark": {}, "wal_sink": {}}, itertools.count())
    for session, process in ZONES.items():
        spark.conf.set("spark.sql.session.timeZone", session)
        worker["TZ"] = os.environ["TZ"] = process  # workers with another environment are other processes
        time.tzset()
        for kind in KINDS:
            both.run(kind, f"{session} and {process}", TYPES | (NOT_UTF_8 if kind == "foreach_writer" else {}))
    cases: list[tuple[Any, ...]] = []
    for kind, (*_, failing) in KINDS.items():
        cases += [(kind, name, {"unreadable": values}) for name, values in UNREADABLE.items()]
        cases += [(kind, fails, {}, fails) for fails in failing]
    with ThreadPoolExecutor(4) as pool:  # most of their time is waiting
        list(pool.map(lambda case: both.run(*case), cases))
    return both.seen


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    sys.stdout.write(f"SEEN {json.dumps(all_cases(session, Path(sys.argv[1])))}\n")

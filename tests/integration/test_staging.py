"""Staging: one job, evaluated once and fully, in bounded memory; reading back what was staged."""

from __future__ import annotations

import base64
import os
import re
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import types as t
from pyspark.sql.functions import rand, udf

from tests.house.log import SegmentLimits, load_segment
from tests.house.protocol import StagedPartition, StagingContext
from tests.house.spark import REPEAT_CHECKS, SparkJobError, setting_of, staging
from tests.house.stores import StoreSpec, open_store
from tests.support.fixtures.spark import processes_of
from tests.support.streams import Home
from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.private import changed
from wal_sink.spark.staging import evaluate_without_staging, stage_dataframe
from wal_sink.spark.whole_batch import read_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.house.log import SegmentRef

pytestmark = pytest.mark.spark

LIMITS = SegmentLimits(chunk_rows=1000, chunk_bytes=32 << 20, segment_bytes=64 << 20)
BATCH_BYTES, BATCH_ROWS = (f"spark.sql.execution.arrow.{key}" for key in ("maxBytesPerBatch", "maxRecordsPerBatch"))
NO_BYTES = 2**31 - 1
DESCRIPTION = "wal-sink orders: batch 7, stage"


def stage(
    df: DataFrame, folder: Path, *, limits: SegmentLimits = LIMITS, under: str = "staged", row_bytes: int = 0
) -> list[SegmentRef]:
    if not folder.exists():
        folder.mkdir()  # a run makes it when it opens the WAL; a task must find it
    store = StoreSpec(url=folder.as_uri())
    context = StagingContext(folder=under, limits=limits, columns=tuple(df.columns))
    staged = stage_dataframe(df, store=store, context=context, description=DESCRIPTION, row_bytes=row_bytes)
    return list(staged.segments)


def read(spark: SparkSession, folder: Path, refs: list[SegmentRef], schema: t.StructType) -> DataFrame:
    store = StoreSpec(url=folder.as_uri())
    return read_segments(spark, store=store, segments=refs, schema=schema, chunk_rows=LIMITS.chunk_rows)


def noting(file: Path, what: Callable[[], object]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step of a DataFrame that appends a line to `file` whenever a partition of it is evaluated to its end."""

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        with file.open("a") as notes:
            notes.write(f"{what()}\n")

    return step


def task_property(key: str) -> str | None:
    """In a task: what the driver's thread had set when it started the job."""
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty(key)


def notes(file: Path) -> list[str]:
    return sorted(file.read_text().splitlines())


def test_every_row_is_staged_and_read_in_order_of_partition_and_file_index(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 10_000, 1, 4)
    refs = stage(df, tmp_path, limits=SegmentLimits(chunk_rows=1000, chunk_bytes=1 << 20, segment_bytes=1))
    assert [Path(ref.path).name[:11] for ref in refs] == [
        f"00000{p}-000{index}" for p in range(4) for index in range(3)
    ]
    assert [ref.rows for ref in refs] == [1000, 1000, 500] * 4
    back = read(spark, tmp_path, refs, df.schema)
    assert back.rdd.getNumPartitions() == len(refs)
    assert [row.id for row in back.collect()] == list(range(10_000))
    assert back.count() == 10_000


def test_nothing_staged_reads_as_an_empty_dataframe_of_the_schema(spark: SparkSession, tmp_path: Path) -> None:
    schema = t.StructType([t.StructField("a.b", t.LongType(), nullable=False, metadata={"k": 1})] * 2)
    back = read(spark, tmp_path, [], schema)
    assert back.schema == schema
    assert back.collect() == []


def test_the_dataframe_is_evaluated_once_and_fully(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    df = spark.range(0, 100, 1, 3).mapInArrow(noting(log, lambda: "evaluated"), "id long")
    stage(df, tmp_path / "wal")
    assert notes(log) == ["evaluated"] * 3
    assert evaluate_without_staging(df, description=DESCRIPTION) == 100
    assert notes(log) == ["evaluated"] * 6


@pytest.mark.parametrize(
    ("theirs", "row_bytes", "limits"),
    [
        ({}, 0, (4 << 20, None)),
        ({BATCH_BYTES: "32m"}, 0, (4 << 20, None)),
        ({BATCH_BYTES: "70000b"}, 0, (70000, None)),
        ({BATCH_BYTES: "70000b"}, 100, (70000, None)),
        ({BATCH_BYTES: "2147483647"}, 0, (NO_BYTES, None)),
        ({BATCH_BYTES: "2147483647"}, 100, (NO_BYTES, None)),
        ({}, 2097, (NO_BYTES, 2000)),
        ({}, 2098, (4 << 20, None)),
        ({BATCH_ROWS: "64"}, 100, (NO_BYTES, 64)),
        ({BATCH_ROWS: "-1"}, 100, (NO_BYTES, 2000)),
    ],
)
def test_the_job_is_described_limited_and_all_is_restored(
    spark: SparkSession, tmp_path: Path, theirs: dict[str, str], row_bytes: int, limits: tuple[int, int | None]
) -> None:
    if spark.version < "4" and limits[1]:
        limits = (4 << 20, None)  # it has no limit of bytes, so it asks for none
    keys = ["spark.job.description", "spark.jobGroup.id", BATCH_BYTES, BATCH_ROWS]
    step = noting(tmp_path / "log", lambda: [task_property(key) for key in keys])
    context = spark.sparkContext
    context.setJobGroup("the stream", "before")
    default = {key: setting_of(spark, key).value for key in keys[2:]}
    try:
        for key, value in theirs.items():
            spark.conf.set(key, value)
        stage(spark.range(0, 1, 1, 1).mapInArrow(step, "id long"), tmp_path / "wal", row_bytes=row_bytes)
        assert context.getLocalProperty("spark.job.description") == "before"
        assert {key: setting_of(spark, key).value for key in default} == default | theirs
    finally:
        for key in keys[2:]:
            spark.conf.unset(key)
        for key in keys[:2]:
            context.setLocalProperty(key, None)  # type: ignore[arg-type]
    rows = str(limits[1]) if limits[1] else theirs.get(BATCH_ROWS)
    assert notes(tmp_path / "log") == [str([DESCRIPTION, "the stream", str(limits[0]), rows])]


def noted_sizes(monkeypatch: pytest.MonkeyPatch, many: int, fails: int = 0) -> list[int]:
    """The bytes of a row that each job of staging is taken to have. `many`: rows after which they are counted. The job
    with the number `fails`, from 1, fails.
    """
    sizes: list[int] = []

    def noting_size(*given: Any, row_bytes: int, **named: Any) -> StagedPartition:
        sizes.append(row_bytes)
        if len(sizes) == fails:
            raise SparkJobError("no memory")
        return stage_dataframe(*given, row_bytes=row_bytes, **named)

    monkeypatch.setattr(staging, "stage_dataframe", noting_size)
    monkeypatch.setattr(staging, "MANY_ROWS", many)
    return sizes


def test_rows_are_counted_after_many_small_ones_of_the_same_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 1 has few rows, and batch 4 larger ones. The job of batch 3 fails, maybe for lack of memory."""
    place, sizes = Home(tmp_path), noted_sizes(monkeypatch, many=30, fails=4)
    place.feed.add(range(30), range(30, 50), range(60, 90), range(90, 120), range(120, 150), range(150, 180))
    texts = "repeat('x', if(id div 30 = 4, 5000, 10)) AS text"
    with pytest.raises(StreamingQueryException, match="no memory"), place.sink() as sink:
        sink.run(place.writer(spark, columns=[texts]))
    with place.sink() as sink:
        sink.run(place.writer(spark, columns=[texts]))
    assert [sorted([0, size, 5000]).index(size) for size in sizes] == [0, 1, 0, 1, 0, 1, 2]


def through_arrow(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(lambda batches: batches, "id long")


def through_udf(rows: DataFrame) -> DataFrame:
    return rows.select(udf(lambda number: number + 1, "long")("id").alias("id"))


@pytest.mark.parametrize(
    ("step", "pattern", "counted"),
    [
        (lambda rows: rows.filter("id < 100").repartition(2), "", True),
        (through_udf, "", False),
        (through_arrow, "", False),
        (through_arrow, "no such name", True),
    ],
    ids=["no Python", "udf", "mapInArrow", "a name that is not known"],
)
def test_a_python_step_keeps_a_limit_of_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any, pattern: str, *, counted: bool
) -> None:
    """Its rows may be large where those that are staged are small."""
    place, sizes = Home(tmp_path), noted_sizes(monkeypatch, many=3)
    if pattern:
        monkeypatch.setattr(staging, "_IN_PYTHON", re.compile(pattern))
    place.feed.add(range(3), range(3, 6))
    with place.sink() as sink:
        sink.run(step(place.feed.stream(spark)).writeStream.trigger(availableNow=True))
    assert [bool(size) for size in sizes] == [False, counted]


def test_a_python_step_that_comes_later_keeps_a_limit_of_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark leaves the branch of a source without new rows out of a batch's plan."""
    place, other, sizes = Home(tmp_path), Home(tmp_path / "other"), noted_sizes(monkeypatch, many=3)
    place.feed.add(range(3))
    other.feed.folder.mkdir(parents=True)
    both = place.feed.stream(spark).union(through_udf(other.feed.stream(spark)))
    with place.sink() as sink:
        query = sink.start(both.writeStream)
        query.processAllAvailable()
        place.feed.add(range(3, 6))
        query.processAllAvailable()
        other.feed.add(range(3))
        query.processAllAvailable()
    assert [bool(size) for size in sizes] == [False, True, False]


@pytest.mark.parametrize(
    "limit", [{"spark.sql.maxPlanStringLength": "60"}, {"spark.sql.redaction.string.regex": "Map"}]
)
def test_a_plan_that_spark_does_not_tell_keeps_a_limit_of_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str]
) -> None:
    place, sizes = Home(tmp_path), noted_sizes(monkeypatch, many=3)
    place.feed.add(range(3), range(3, 6))
    with ExitStack() as changes, place.sink() as sink:
        for key, value in limit.items():
            changes.enter_context(changed(spark, key, value))
        sink.run(through_arrow(place.feed.stream(spark)).writeStream.trigger(availableNow=True))
    assert sizes == [0, 0]


def test_what_foreach_batch_adds_keeps_a_limit_of_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, sizes = Home(tmp_path), noted_sizes(monkeypatch, many=3)
    place.feed.add(range(3), range(3, 6))
    with place.sink() as sink:
        writer: Any = place.writer(spark).foreachBatch(lambda rows, batch: sink.stage(through_arrow(rows), batch))
        writer.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination()
    assert sizes == [0, 0]


def test_a_stateful_query_stages_and_replays(spark: SparkSession, tmp_path: Path) -> None:
    """Batch 1 is evaluated without staging, yet batch 2 counts on it: its state was committed."""
    source = tmp_path / "source"
    source.mkdir()
    for number, words in enumerate(["a b a", "b c", "a b"]):
        file = source / f"{number}.txt"
        file.write_text("\n".join(words.split()))
        os.utime(file, (number + 1, number + 1))  # Spark takes the oldest first
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    counts = lines.groupBy("value").count()
    step = noting(tmp_path / "log", lambda: task_property(BATCH_BYTES))
    staged: dict[int, list[SegmentRef]] = {}

    def handle(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            assert evaluate_without_staging(df, description=DESCRIPTION) == 2
        else:
            staged[batch_id] = stage(df.mapInArrow(step, df.schema), tmp_path / "wal")

    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).foreachBatch(handle).start().awaitTermination()
    found = {batch: read(spark, tmp_path / "wal", refs, counts.schema).collect() for batch, refs in staged.items()}
    assert sorted(found[0]) == [("a", 2), ("b", 1)]
    assert sorted(found[2]) == [("a", 3), ("b", 3)]
    assert set(notes(tmp_path / "log")) == {str(staging.ARROW_BATCH_BYTES)}


def test_a_failing_store_raises_its_own_class_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"{DESCRIPTION}: "):
        stage(spark.range(1), tmp_path / "file")


def test_a_failure_of_the_dataframe_itself_stays_what_it_is(spark: SparkSession, tmp_path: Path) -> None:
    def broken(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ZeroDivisionError("the user's own")

    with pytest.raises(PythonException, match="the user's own"):
        stage(spark.range(1).mapInArrow(broken, "id long"), tmp_path)


def test_a_failure_inside_java_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    broken = spark.range(1).selectExpr("java_method('java.util.UUID', 'fromString', 'x') AS id")
    attempts: list[Callable[[], object]] = [
        lambda: stage(broken, tmp_path),
        lambda: evaluate_without_staging(broken, description=DESCRIPTION),
    ]
    for attempt in attempts:
        with pytest.raises(SparkJobError, match=rf"^{DESCRIPTION}: .*Invalid UUID string: x$") as caught:
            attempt()
        assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 40


def test_a_wrong_not_null_is_explained(spark: SparkSession, tmp_path: Path) -> None:
    def wrong(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.nulls(batch.num_rows, pa.string())], ["name"])

    schema = t.StructType([t.StructField("name", t.StringType(), nullable=False)])
    with pytest.raises(
        ConfigError, match=r"null in a column that the schema declares.*'not null', including nested ones: name\."
    ):
        stage(spark.range(1).mapInArrow(wrong, schema), tmp_path)


def test_the_optimizer_never_takes_a_batch_for_small(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise a join in the function broadcasts the batch, however large it is, and not the small table."""
    df = spark.range(10)
    joined = read(spark, tmp_path, stage(df, tmp_path), df.schema).join(spark.range(100), "id")
    jdf: Any = joined._jdf
    assert "BuildRight" in jdf.queryExecution().executedPlan().toString()
    assert joined.count() == 10


def test_secrets_do_not_show_in_the_plan(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = StoreSpec(url=tmp_path.as_uri(), options={"secret": "hush-hush"})
    back = read_segments(spark, store=store, segments=[], schema=spark.range(1).schema, chunk_rows=10)
    back.explain(extended=True)
    assert "hush" not in capsys.readouterr().out


class TestMemory:
    """2 GiB of Arrow data in one partition, in less than 400 MiB of a worker, its idle 100 MiB or so included."""

    LIMIT_MIB = 400

    def test_narrow_rows(self, spark: SparkSession, tmp_path: Path, own_workers: str) -> None:
        df = spark.range(0, 10 << 20, 1, 1).selectExpr("id", "concat(id, repeat('x', 190)) as text")
        refs = stage(df, tmp_path)
        assert sum(ref.rows for ref in refs) == 10 << 20
        assert peak_mib(own_workers) < self.LIMIT_MIB

    def test_incompressible_strings_of_a_mebibyte(self, spark: SparkSession, tmp_path: Path, own_workers: str) -> None:
        refs = stage(spark.range(0, 2048, 1, 1).mapInArrow(large_strings, "text string"), tmp_path)
        assert sum(ref.rows for ref in refs) == 2048
        assert sum(ref.bytes for ref in refs) > 1500 << 20
        assert max(ref.bytes for ref in refs) < 100 << 20
        assert peak_mib(own_workers) < self.LIMIT_MIB


def large_strings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A string of 1 MiB a row; base64 of random bytes shrinks to three quarters at best."""
    text = base64.b64encode(os.urandom(12 << 20)).decode()
    for batch in batches:
        for row in range(batch.num_rows):
            start = row * 7_919_111 % (15 << 20)
            yield pa.record_batch([pa.array([text[start : start + (1 << 20)]])], ["text"])


def peak_mib(own_workers: str) -> int:
    """Return the highest peak of resident memory (VmHWM) of the test's workers. It is that of a whole life."""
    found = [re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE) for status in processes_of(own_workers).values()]
    return max(int(peak[1]) >> 10 for peak in found if peak)


def test_shuffles_that_nobody_repeated_are_staged_whatever_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """Also with partitions that have no rows."""
    base = spark.range(0, 20, 1, 3)
    with ExitStack() as off:
        for key in REPEAT_CHECKS:
            off.enter_context(changed(spark, key, "false"))
        for number, df in enumerate(
            [
                base.repartition(30, "id"),
                base.repartition(4, rand()).groupBy("id").count(),
                base.limit(5).filter("id > 1"),
                base.orderBy("id").limit(3),
                base.orderBy("id"),
                base.join(base.filter("id > 5"), "id"),
                base.filter("id < 0").repartition(3, "id"),
                base.filter("id < 0").groupBy().count(),
            ]
        ):
            staged = stage(df, tmp_path, under=f"staged-{number}")
            assert sum(segment.rows for segment in staged) == df.count()


def test_partitions_without_rows_make_no_segment(spark: SparkSession, tmp_path: Path) -> None:
    refs = stage(spark.range(0, 4, 1, 4).where("id = 2"), tmp_path)
    assert [(Path(ref.path).name[:6], ref.rows) for ref in refs] == [("000002", 1)]
    assert stage(spark.range(0), tmp_path) == []


def test_staging_twice_uses_other_names(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 10, 1, 2)
    first, second = stage(df, tmp_path), stage(df, tmp_path)
    assert not {ref.path for ref in first} & {ref.path for ref in second}
    assert not {ref.id for ref in first} & {ref.id for ref in second}
    store = open_store(StoreSpec(url=tmp_path.as_uri()))
    assert all(load_segment(store, ref) for ref in [*first, *second])

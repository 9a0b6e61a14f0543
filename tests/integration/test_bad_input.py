"""A fault of a WAL, its store, its sink or its query gives a clear error. After its repair, nothing is lost."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import wal_sink.spark.query
from tests.support.streams import Home, Lines, fails, flip, quick
from tests.support.waiting import wait_until
from wal_sink import (
    BatchSink,
    Chunk,
    ConfigError,
    CorruptError,
    Delivery,
    DeliveryError,
    FencedError,
    HistoryError,
    Settings,
    Sink,
    StoreError,
    UndeliveredError,
    WalSink,
)
from wal_sink.spark.connect import check_classic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.house.protocol import CommitterPool
    from tests.house.sinks import ReleasedBatch


pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def staged(spark: SparkSession, place: Home, *batches: Iterable[int]) -> None:
    """Batches that are staged and complete, and not delivered to the sink the WAL knows."""
    place.feed.folder.mkdir(exist_ok=True)
    place.run(spark)
    place.feed.add(*batches)
    place.run(spark, to=None)


# --- history


def test_a_checkpoint_that_is_deleted_right_before_spark_looks_at_it_is_refused(
    spark: SparkSession, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.feed.add(range(5))
    place.run(spark)
    start = wal_sink.spark.query.start_query

    def deleted_first(*given: Any) -> Any:
        shutil.rmtree(place.checkpoint)
        return start(*given)

    monkeypatch.setattr(wal_sink.spark.query, "start_query", deleted_first)
    fails(spark, place, HistoryError, str(place.wal), "belongs to query", "use a new WAL for this query")
    assert place.lines.ids() == list(range(5)), "nothing of the other query was delivered"


def test_a_deleted_manifest_is_missed(spark: SparkSession, place: Home) -> None:
    staged(spark, place, range(5), range(5, 10))
    manifest = place.object("batches/*0/manifest-*.json")
    kept = manifest.read_bytes()
    manifest.unlink()
    fails(spark, place, HistoryError, "batch 0", str(place.wal), str(place.checkpoint), "restore the manifest")
    assert place.lines.sent() == []
    manifest.write_bytes(kept)
    place.run(spark)
    assert place.lines.ids() == list(range(10))


def test_a_batch_run_without_the_wal_is_missed(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    place.feed.add(range(5, 10))
    writer = place.writer(spark).foreachBatch(lambda *_: None).option("checkpointLocation", str(place.checkpoint))
    assert writer.start().awaitTermination(60)
    place.feed.add(range(10, 15))
    fails(spark, place, HistoryError, "batch 1", str(place.wal), "wal-sink skip")


# --- damaged objects


def damaged(spark: SparkSession, place: Home, pattern: str) -> Path:
    staged(spark, place, range(500), range(500, 510))
    return place.object(pattern)


SEGMENT = "batches/*0/*/*.parquet"


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_a_flipped_segment_is_found_before_any_row_is_sent(spark: SparkSession, place: Home, where: Any) -> None:
    segment = damaged(spark, place, SEGMENT)
    kept = flip(segment, at=300)
    to = Delivery(place.lines, where=where)
    fails(spark, place, CorruptError, "batch 0", segment.name, "expected CRC-32", to=to)
    assert place.lines.sent() == []
    segment.write_bytes(kept)
    place.run(spark, to)
    assert place.lines.ids() == list(range(510))


def test_a_truncated_segment_is_found_before_any_row_is_sent(spark: SparkSession, place: Home) -> None:
    segment = damaged(spark, place, SEGMENT)
    kept = segment.read_bytes()
    segment.write_bytes(kept[:-100])
    fails(spark, place, CorruptError, "batch 0", segment.name, f"{len(kept)} bytes", f"{len(kept) - 100}")
    segment.write_bytes(kept)
    place.run(spark)
    assert place.lines.ids() == list(range(510))


def test_an_unreadable_query_id_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    metadata = place.checkpoint / "metadata"
    kept = metadata.read_bytes()
    metadata.write_text("{}")
    fails(spark, place, CorruptError, str(metadata), "expected Spark's query id", "restore the file")
    metadata.write_bytes(kept)
    (place.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    place.run(spark)
    assert place.lines.ids() == list(range(5))


# --- stores that do not work


@pytest.mark.parametrize(
    ("wal", "said"), [("/proc/wal-sink", "check the disk"), ("/dev/null/wal", "a part of the path is a file")]
)
def test_a_folder_that_cannot_be_written_is_refused_at_once(place: Home, wal: str, said: str) -> None:
    with pytest.raises(StoreError, match=f"{wal}.*{said}"), Home(place.root, wal_url=wal).sink():
        pass


def test_a_wal_that_becomes_unwritable_stops_the_query_and_loses_nothing(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    following = place.wal / "batches" / f"{1:019}"
    following.write_text("a file where a folder is to be")
    place.feed.add(range(5, 10))
    fails(spark, place, StoreError, "batch 1", str(following), "a part of the path is a file")
    following.unlink()
    place.run(spark)
    assert place.lines.ids() == list(range(10))


# --- sinks that misbehave


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_a_sink_that_hangs_ends_within_its_time_budget(spark: SparkSession, place: Home, where: Any) -> None:
    place.feed.add(range(5))
    to = quick(place.troubled("hang"), where=where, attempt_timeout_s=0.5)
    started_s = time.monotonic()
    fails(
        spark, place, DeliveryError, "batch 0", "timed out", "no answer within 0.5 s", "delivery stopped after 2", to=to
    )
    assert time.monotonic() - started_s < 90, "the sink hangs until this test lets it go"
    place.trouble.unlink()
    place.run(spark, Delivery(place.lines, where=where))  # half a second may be too little for a call that goes well
    assert set(place.lines.ids()) == set(range(5))
    assert place.lines.repeats() <= 2, "each of two calls that timed out may still have had its effect"


class Unpicklable(Lines):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a live connection")


def test_a_sink_that_cannot_be_pickled_is_refused_with_the_ways_out(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    sink = Unpicklable(place.root / "out.jsonl")
    fails(spark, place, ConfigError, "'default'", "a live connection", "where='driver'", "open()", to=sink)
    place.run(spark, Delivery(sink, where="driver"))
    assert sink.ids() == list(range(5))


@pytest.fixture
def foreign_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that this process has and Spark's workers lack."""
    module = ModuleType("module_only_here")
    source = "def deliver(chunk):\n    seen.extend(chunk.table.column(0).to_pylist())\nseen = []\n"
    exec(compile(source, "module_only_here.py", "exec"), module.__dict__)  # noqa: S102 - the test's own text
    monkeypatch.setitem(sys.modules, "module_only_here", module)
    return module


def test_a_sink_of_a_module_the_workers_lack_is_refused_with_the_ways_out(
    spark: SparkSession, place: Home, foreign_module: ModuleType
) -> None:
    place.feed.add(range(5))
    fails(spark, place, ConfigError, "No module named 'module_only_here'", "addPyFile", to=foreign_module.deliver)
    place.run(spark, Delivery(foreign_module.deliver, where="driver"))
    assert foreign_module.seen == list(range(5))


class Answering(Sink):
    """Returns what a sink must not return."""

    def write(self, chunk: Chunk) -> Any:
        return chunk.num_rows


# --- stopping


def test_a_failing_query_raises_its_own_error_and_what_it_completed_is_kept(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), [99])
    bad = place.feed.stream(spark).selectExpr("if(id = 99, raise_error('user bug'), id) as id")
    with pytest.raises(StreamingQueryException, match="user bug"), place.sink() as sink:
        sink.run(bad.writeStream.trigger(availableNow=True))
    sink = place.sink()
    sink.start(bad.writeStream.trigger(availableNow=True))
    wait_until(lambda: not spark.streams.active, "the query failed")
    with pytest.raises(PySparkException, match="user bug"):
        sink.close()
    place.run(spark)
    assert place.lines.ids() == [0, 1, 2, 3, 4, 99]


def waits_for_room(spark: SparkSession, place: Home, sink: WalSink) -> StreamingQuery:
    query = sink.start(place.feed.stream(spark).writeStream)
    wait_until((place.checkpoint / "offsets" / "1").exists, "the second batch began")
    time.sleep(0.3)
    assert not list(place.wal.glob("batches/*1/manifest*"))
    return query


def one_pending(place: Home) -> WalSink:
    place.feed.add(*([number] for number in range(4)))
    return place.sink(Delivery(place.troubled("hang"), where="driver"), settings=Settings(max_pending_batches=1))


@pytest.mark.parametrize("how", ["stop", "exception", "close"])
def test_a_query_that_waits_for_room_is_stopped_at_once_and_has_not_failed(
    spark: SparkSession, place: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    monkeypatch.setattr("wal_sink.spark.committers.GRACE_S", 0.3)
    monkeypatch.setattr("wal_sink.spark.committers.CANCEL_S", 0.3)
    sink = one_pending(place)
    query = waits_for_room(spark, place, sink)
    started_s = time.monotonic()
    if how == "stop":
        query.stop()
    elif how == "exception":
        sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    else:
        with pytest.raises(UndeliveredError):
            sink.close(timeout_s=0.5)
    assert time.monotonic() - started_s < 25, "less than the WalSink waits for a query by default"
    assert (query.isActive, query.exception()) == (False, None)
    assert "StackOverflowError" not in capfd.readouterr().err
    place.trouble.unlink()
    if how != "close":
        sink.close()
    place.run(spark)
    assert set(place.lines.ids()) == set(range(4))
    assert place.lines.repeats() <= 1, "the chunk in hand"


# --- queries that cannot be


def test_a_continuous_trigger_is_refused(spark: SparkSession, place: Home) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("value as id").writeStream.trigger(continuous="1 second")
    with pytest.raises(ConfigError, match=r"micro-batches.*continuous and real-time"), place.sink() as sink:
        sink.run(rate)
    place.feed.add(range(5))
    place.run(spark)
    assert place.lines.ids() == list(range(5))


def test_a_real_time_trigger_is_refused(spark: SparkSession, place: Home) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("value as id").writeStream
    with pytest.raises(ConfigError, match=r"micro-batches.*continuous and real-time"), place.sink() as sink:
        sink.run(rate.trigger(realTime="5 minutes").outputMode("update"))  # type: ignore[call-overload]


def test_asynchronous_progress_tracking_is_refused(spark: SparkSession, place: Home) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().selectExpr("value as id")
    options = {
        "asyncProgressTrackingEnabled": "true",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
        "asyncProgressTrackingCheckpointIntervalMs": "1000",
    }
    with pytest.raises(ConfigError, match="asyncProgressTracking"), place.sink() as sink:
        sink.run(rate.writeStream.options(**options))
    assert not spark.streams.active


def test_a_schema_that_cannot_be_staged_is_refused_before_the_query_runs(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    odd = place.feed.stream(spark).selectExpr("make_ym_interval(1, 2) as i")
    with pytest.raises(ConfigError, match="interval"), place.sink() as sink:
        sink.run(odd.writeStream)
    assert not place.checkpoint.exists()


def test_stage_over_spark_connect_is_refused() -> None:
    remote = type("DataStreamWriter", (), {"__module__": "pyspark.sql.connect.streaming.readwriter"})
    with pytest.raises(ConfigError, match=r"Spark Connect.*where no committer can run"):
        check_classic(remote())


# --- Hadoop's file systems


def test_a_checkpoint_that_only_hadoop_reaches_is_read_through_the_jvm(spark: SparkSession, place: Home) -> None:
    spark.conf.set("fs.viewfs.mounttable.walsink.link./mount", place.root.as_uri())
    place.feed.add(range(5), range(5, 10))
    checkpoint = "viewfs://walsink/mount/checkpoint"
    with WalSink(place.lines, wal=str(place.wal), checkpoint=checkpoint) as sink:
        sink.run(place.writer(spark))
    assert place.lines.ids() == list(range(10))
    assert sink.status().checkpoint == checkpoint
    assert (place.checkpoint / "commits" / "1").exists()
    missing = WalSink(place.lines, wal=str(place.root / "w2"), checkpoint="viewfs://walsink/nowhere/checkpoint")
    with pytest.raises(ConfigError, match=r"viewfs://walsink/nowhere/checkpoint.*does not exist"):
        missing.run(place.writer(spark))


def test_a_wal_emptied_under_a_used_checkpoint_begins_where_the_checkpoint_is(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    place.run(spark)
    shutil.rmtree(place.wal)
    place.feed.add(range(5, 10))
    place.run(spark)
    assert place.lines.ids() == list(range(10))
    assert place.sink().status().first_batch == 1


class Counting(BatchSink):
    """An existing whole-batch writer that fails on a damaged segment only while it evaluates the DataFrame."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write_batch(self, batch: ReleasedBatch) -> None:
        ids = [row.id for row in batch.read().collect()]
        with self._path.open("a") as lines:
            lines.writelines(f"{number}\n" for number in ids)


def test_a_flipped_segment_is_named_to_a_whole_batch_writer_too(spark: SparkSession, place: Home) -> None:
    sink = Counting(place.root / "ids")
    place.feed.folder.mkdir()
    place.run(spark, sink)
    place.feed.add(range(500))
    place.run(spark, to=None)
    segment = place.object(SEGMENT)
    kept = flip(segment, at=300)
    fails(spark, place, CorruptError, "batch 0", segment.name, to=sink)
    segment.write_bytes(kept)
    place.run(spark, sink)
    assert sorted(map(int, (place.root / "ids").read_text().split())) == list(range(500))


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_a_sink_that_raises_ends_in_an_error_that_names_it(spark: SparkSession, place: Home, where: Any) -> None:
    place.feed.add(range(5), range(5, 10))
    to = quick(place.troubled("raise"), where=where)
    fails(
        spark,
        place,
        DeliveryError,
        "batch 0",
        "Lines",
        "raised OSError: the target is down",
        "Repair the target",
        to=to,
    )
    place.trouble.unlink()
    place.run(spark, to)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10)), 0)


def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(60)
    yield from batches


def test_stopping_the_query_while_it_stages_is_no_failure(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with place.sink() as sink:
        query = sink.start(place.feed.stream(spark).mapInArrow(slowly, "id long").writeStream)
        wait_until(lambda: bool(list(place.checkpoint.glob("offsets/0"))), "the batch began")
        time.sleep(0.5)
        query.stop()
    assert place.lines.sent() == []
    place.run(spark)
    assert place.lines.ids() == list(range(5))


def test_stopping_the_query_while_it_is_delivered_delivers_what_is_complete(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    with place.sink(Delivery(Lines(place.root / "out.jsonl", pause_s=0.5), where="executors")) as sink:
        query = sink.start(place.feed.stream(spark).writeStream)
        wait_until((place.checkpoint / "commits" / "1").exists, "both batches complete")
        query.stop()
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10)), 0)


def divide_by_zero_beside(query: StreamingQuery) -> None:
    query.processAllAvailable()
    raise ZeroDivisionError


def test_an_error_in_the_block_is_not_hidden_by_the_end_of_the_run(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with pytest.raises(ZeroDivisionError), place.sink() as sink:
        divide_by_zero_beside(sink.start(place.feed.stream(spark).writeStream))
    assert not spark.streams.active
    place.run(spark)
    assert place.lines.ids() == list(range(5))


def test_giving_up_stops_a_query_that_waits_for_room(spark: SparkSession, place: Home) -> None:
    place.feed.add(*([number] for number in range(4)))
    to = quick(place.troubled("raise"), attempts=3)
    sink = place.sink(to, settings=Settings(max_pending_batches=1))
    with pytest.raises(DeliveryError, match="the target is down"):
        sink.run(place.feed.stream(spark).writeStream)
    place.trouble.unlink()
    place.run(spark)
    assert place.lines.ids() == list(range(4))


@pytest.mark.parametrize("how", ["start", "own chain", "a pool of the user"])
def test_a_batch_that_comes_while_the_walsink_closes_is_no_failure(
    spark: SparkSession, place: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The second batch comes to the check whether the object is closed just after it was closed."""
    sink = place.sink()
    second_came = threading.Event()
    open_now = WalSink._open

    def after_the_close(self: WalSink, given: SparkSession | None = None) -> CommitterPool:
        if (place.checkpoint / "commits" / "0").exists():
            second_came.set()
            wait_until(lambda: self._committers.is_closed, "the object was closed")
        return open_now(self, given)

    monkeypatch.setattr(WalSink, "_open", after_the_close)
    place.feed.add([0], [1])
    stream = place.feed.stream(spark).writeStream
    chain = stream.option("checkpointLocation", str(place.checkpoint))
    with ThreadPoolExecutor(1) as pool:
        if how == "start":
            query = sink.start(stream)
        elif how == "own chain":
            query = chain.foreachBatch(sink.stage).start()
        else:
            query = chain.foreachBatch(lambda df, batch_id: pool.submit(sink.stage, df, batch_id).result()).start()
        assert second_came.wait(60)
        sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (query.isActive, query.exception()) == (False, None)
    monkeypatch.undo()
    place.run(spark)
    assert place.lines.ids() == [0, 1]


def test_a_second_run_in_one_process_takes_over_and_the_first_is_told(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    first = place.sink(Delivery(place.lines, where="driver"))
    query = first.start(place.feed.stream(spark).writeStream)
    query.processAllAvailable()
    wait_until(lambda: place.lines.ids() == list(range(5)), "the first batch delivered")
    with place.sink(Delivery(place.lines, where="driver")):
        place.feed.add(range(5, 10))
        wait_until(lambda: not query.isActive, "the first run was stopped")
        with pytest.raises(
            FencedError, match=r"term 1 of 'committer-default'.*a newer process took over: .*\. Stop this"
        ):
            first.close()
    place.run(spark)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10)), 0)

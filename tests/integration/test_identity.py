"""Which query calls `stage`: calls side by side, other threads, sessions and checkpoints, errors that are swallowed."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException

from tests.support.lasting import Lasting
from tests.support.streams import SESSION, Home, quick
from tests.support.waiting import wait_until
from wal_sink import ConfigError, HistoryError, WalSink, WalSinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

OnBatch = Callable[["DataFrame", int], object]


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def writer(spark: SparkSession, place: Home, on_batch: OnBatch) -> DataStreamWriter:
    """An own chain on the place's checkpoint, which ends when everything is read."""

    def call(df: DataFrame, batch_id: int) -> None:
        on_batch(df, batch_id)

    return place.writer(spark).foreachBatch(call).option("checkpointLocation", str(place.checkpoint))


def chain(spark: SparkSession, place: Home, on_batch: OnBatch) -> None:
    """Run an own chain to its end."""
    query = writer(spark, place, on_batch).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def halves(df: DataFrame) -> list[DataFrame]:
    return [df.where("id % 2 = 0"), df.where("id % 2 = 1")]


def side_by_side(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Begin the calls at the same moment, each on a thread of a pool. Return the error of each, or None."""
    gate = threading.Barrier(len(calls))

    def call(each: Callable[[], object]) -> None:
        gate.wait(60)
        each()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.exception(120) for future in [pool.submit(call, each) for each in calls]]


# --- two calls for one batch


@pytest.mark.parametrize("own_job_group", [False, True])
def test_of_two_calls_side_by_side_for_one_batch_one_wins_and_the_other_is_refused(
    spark: SparkSession, place: Home, own_job_group: bool
) -> None:
    place.feed.add(range(10))
    outcomes: list[BaseException | None] = []

    def on_batch(df: DataFrame, batch_id: int) -> None:
        if own_job_group:
            spark.sparkContext.setJobGroup("mine", "my jobs")
        even, odd = halves(df)
        outcomes.extend(side_by_side(lambda: sink.stage(even, batch_id), lambda: sink.stage(odd, batch_id)))

    sink = place.sink()
    chain(spark, place, on_batch)
    with pytest.raises(ConfigError, match="Union the DataFrames"):
        sink.close()

    refused = [error for error in outcomes if error is not None]
    assert [type(error) for error in refused] == [ConfigError], outcomes
    assert "batch 0 of" in str(refused[0])
    assert "Union the DataFrames" in str(refused[0])
    assert len(place.lines.ids()) == 5


def test_after_a_job_group_of_the_users_own_a_second_call_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(10))

    def on_batch(df: DataFrame, batch_id: int) -> None:
        spark.sparkContext.setJobGroup("mine", "my jobs")
        for half in halves(df):
            sink.stage(half, batch_id)

    with pytest.raises(StreamingQueryException, match="Union the DataFrames"), place.sink() as sink:
        chain(spark, place, on_batch)
    assert place.lines.ids() == []


# --- another query's checkpoint


def test_a_batch_of_another_query_is_refused_on_a_thread_of_a_pool_too(
    spark: SparkSession, place: Home, tmp_path: Path
) -> None:
    """The gate would be that of the checkpoint given: open, though the batch at hand is not complete."""
    other = Home(tmp_path / "other")
    place.feed.add(range(5))
    other.feed.add(range(100, 105))
    chain(spark, place, sink_nothing)
    seen: list[list[int]] = []

    def on_batch(df: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sink.stage, df, batch_id).result(60)
        time.sleep(2)
        seen.append(place.lines.ids())

    sink = place.sink()
    with contextlib.suppress(StreamingQueryException):
        chain(spark, other, on_batch)
    assert (seen, place.lines.ids()) == ([], []), "rows are in the target before their own checkpoint is complete"
    with pytest.raises(
        ConfigError, match=r"runs on file:.*/other/checkpoint, .* was given .*/checkpoint\. Pass WalSink"
    ):
        sink.close()


def sink_nothing(_: DataFrame, __: int) -> None:
    """A batch that nobody takes."""


def test_a_copy_of_the_checkpoint_is_refused_though_it_has_the_same_query_id(
    spark: SparkSession, place: Home, tmp_path: Path
) -> None:
    place.feed.add(range(5))
    chain(spark, place, sink_nothing)
    shutil.copytree(place.checkpoint, tmp_path / "copy")
    place.feed.add(range(5, 10))
    sink = WalSink(place.lines, wal=str(place.wal), checkpoint=str(tmp_path / "copy"))
    with pytest.raises(StreamingQueryException, match=r"runs on .*/checkpoint, .* was given .*/copy"), sink:
        chain(spark, place, sink.stage)
    assert not list(place.wal.glob("batches/*"))


def test_other_spellings_of_the_checkpoint_are_the_same(spark: SparkSession, place: Home, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    spellings = [
        str(link / "checkpoint"),
        f"file:{place.checkpoint}",
        f"file://{place.checkpoint}/",
        f"{place.root}/./in/../checkpoint",
    ]
    for number, given in enumerate(spellings):
        place.feed.add([number])
        with WalSink(place.lines, wal=str(place.wal), checkpoint=given) as sink:
            chain(spark, place, sink.stage)
    assert place.lines.ids() == list(range(len(spellings)))


# --- sessions


def test_a_chain_of_another_session_is_stopped_when_its_delivery_gives_up(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    sink = place.sink(quick(place.troubled("permanent")))
    stream = place.feed.stream(spark.newSession()).writeStream.option("checkpointLocation", str(place.checkpoint))
    query = stream.foreachBatch(sink.stage).start()
    try:
        assert query.awaitTermination(120), "the query goes on though nothing is delivered any more"
    finally:
        query.stop()
    with pytest.raises(Exception, match="the target refuses"):
        sink.close()


OF_THE_USERS_SESSION: dict[str, Callable[[SparkSession, DataFrame], DataFrame]] = {
    "createDataFrame": lambda spark, df: spark.createDataFrame([(row.id,) for row in df.collect()], "id long"),
    "a static join": lambda spark, df: spark.range(100).join(df, "id"),
}


@pytest.mark.parametrize("how", OF_THE_USERS_SESSION)
def test_a_dataframe_of_the_users_session_is_staged_on_the_streams_thread(
    spark: SparkSession, place: Home, how: str
) -> None:
    place.feed.add(range(5), range(5, 10))
    made = OF_THE_USERS_SESSION[how]
    with place.sink() as sink:
        chain(spark, place, lambda df, batch_id: sink.stage(made(spark, df), batch_id))
    assert place.lines.ids() == list(range(10))


@pytest.mark.parametrize("thread", [threading.Thread, InheritableThread])
def test_a_dataframe_of_the_users_session_is_refused_on_another_thread(
    spark: SparkSession, place: Home, thread: type[threading.Thread]
) -> None:
    place.feed.add(range(5))
    said: list[BaseException] = []

    def on_batch(_: DataFrame, batch_id: int) -> None:
        started = thread(target=stage, args=(spark.range(5), batch_id))
        started.start()
        started.join(60)
        if said:
            raise said[0]

    def stage(df: DataFrame, batch_id: int) -> None:
        try:
            sink.stage(df, batch_id)
        except WalSinkError as error:
            said.append(error)

    with pytest.raises(StreamingQueryException, match="on the thread that calls foreachBatch"), place.sink() as sink:
        chain(spark, place, on_batch)
    assert [type(error) for error in said] == [ConfigError]


def test_outside_of_a_batch_there_is_no_query(spark: SparkSession, place: Home) -> None:
    with pytest.raises(ConfigError, match=r"batch 0: .* belongs to no running query"), place.sink() as sink:
        sink.stage(spark.range(3), 0)


def test_another_batch_id_than_the_running_one_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with (
        pytest.raises(StreamingQueryException, match=r"runs batch 0, but stage\(\) was given batch 7"),
        place.sink() as s,
    ):
        chain(spark, place, lambda df, batch_id: s.stage(df, batch_id + 7))


# --- errors that user code swallows


def swallowing(stage: OnBatch, said: list[BaseException]) -> OnBatch:
    def on_batch(df: DataFrame, batch_id: int) -> None:
        try:
            stage(df, batch_id)
        except Exception as error:  # noqa: BLE001 - what users do
            said.append(error)

    return on_batch


def first_fails(sink: WalSink) -> OnBatch:
    """The first batch cannot be evaluated."""

    def on_batch(df: DataFrame, batch_id: int) -> None:
        sink.stage(df.selectExpr("raise_error('no such row') as id") if batch_id == 0 else df, batch_id)

    return on_batch


def first_finds_no_store(sink: WalSink, place: Home) -> OnBatch:
    """The first batch finds a store that cannot be written. The next ones find it repaired."""

    def on_batch(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            place.wal.write_text("no such row can be kept: not a folder")
        else:
            place.wal.unlink(missing_ok=True)
        sink.stage(df, batch_id)

    return on_batch


@pytest.mark.parametrize("to", ["a sink", "none"])
@pytest.mark.parametrize("fails", ["evaluating", "opening"])
def test_a_batch_whose_error_was_swallowed_is_not_overtaken(
    spark: SparkSession, place: Home, to: str, fails: str
) -> None:
    place.feed.add(range(5), range(5, 10), range(10, 15))
    said: list[BaseException] = []
    sink = place.sink(place.lines if to == "a sink" else None)
    stage = first_fails(sink) if fails == "evaluating" else first_finds_no_store(sink, place)
    chain(spark, place, swallowing(stage, said))
    with pytest.raises(Exception, match=r"batch 0 of .* was not staged because of this") as caught:
        raise_with_notes(sink.close)
    assert [str(error) for error in said] == [str(said[0])] * 3, caught
    assert not list(place.wal.glob("batches/*/manifest*"))


def test_a_dataframe_of_the_batch_before_is_refused(spark: SparkSession, place: Home) -> None:
    """Its session is the query's own, and it was staged under the present batch's id: those rows came twice."""
    place.feed.add(range(5), range(5, 10), range(10, 15))
    kept: list[DataFrame] = []

    def on_batch(df: DataFrame, batch_id: int) -> None:
        kept.append(df)
        sink.stage(kept[0].join(df, "id", "left_anti") if batch_id == 1 else kept[0], batch_id)

    sink = place.sink(place.lines)
    with pytest.raises(Exception, match=r"batch 2: .* holds rows of batch 0, and none of this batch"):
        chain(spark, place, on_batch)


def raise_with_notes(call: Callable[[], object]) -> None:
    """Call, and raise an error whose text also holds the notes: tracebacks show them, and so does Spark."""
    try:
        call()
    except Exception as error:
        raise RuntimeError("\n".join([str(error), *getattr(error, "__notes__", ())])) from error


def test_a_swallowed_error_of_the_last_batch_is_raised_by_closing(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    sink = place.sink()
    chain(spark, place, swallowing(first_fails(sink), []))
    for _ in range(2):
        with pytest.raises(Exception, match="no such row"):
            sink.close()


@pytest.mark.parametrize("opened", ["before", "by stage"])
def test_a_wal_does_not_begin_behind_a_batch_that_its_run_did_not_stage(
    spark: SparkSession, place: Home, opened: str
) -> None:
    place.feed.add(range(5), range(5, 10), range(10, 15))
    sink = place.sink()
    if opened == "before":
        sink.drain()
    with pytest.raises(StreamingQueryException, match=r"batch 1 .* begins with batch 0 and holds no batch"):
        chain(spark, place, lambda df, batch_id: sink.stage(df, batch_id) if batch_id else None)
    with pytest.raises(HistoryError, match="Spark completed batch 0 in"):
        sink.close()
    with pytest.raises(HistoryError, match="Spark completed batch 0 in"):
        place.run(spark)
    assert place.lines.ids() == []


REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"
IDLE = "spark.sql.streaming.noDataProgressEventInterval"


@contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@pytest.mark.parametrize("kept", ["1", "2"])
def test_a_wal_does_not_begin_behind_a_batch_of_its_run_if_spark_remembers_one_batch_or_none(
    spark: SparkSession, place: Home, kept: str
) -> None:
    """It keeps one fewer than it is told to."""
    place.feed.add(range(5), range(5, 10), range(10, 15))
    sink = place.sink()
    with (
        configured(spark, {REMEMBERED: kept}),
        pytest.raises(StreamingQueryException, match=r"batch 2 .* begins with batch 1 and"),
    ):
        chain(spark, place, lambda df, batch_id: sink.stage(df, batch_id) if batch_id > 1 else None)
    with pytest.raises(HistoryError, match="Spark completed batch 1 in"):
        sink.close()
    assert place.lines.ids() == []


def test_a_wal_does_not_begin_behind_a_batch_of_its_run_if_spark_remembers_idle_triggers_alone(
    spark: SparkSession, place: Home
) -> None:
    """They push the batches out of its memory: after 17 minutes, as it is by default."""
    place.feed.add(range(5))
    sink = place.sink()
    with configured(spark, {REMEMBERED: "3", IDLE: "50"}):
        on_batch = place.feed.stream(spark).writeStream.foreachBatch(
            lambda df, batch_id: sink.stage(df, batch_id) if batch_id else None
        )
        query = on_batch.option("checkpointLocation", str(place.checkpoint)).start()
        wait_until(lambda: {each.batchId for each in query.recentProgress} == {1}, "only idle triggers are remembered")
        place.feed.add(range(5, 10))
        with pytest.raises(StreamingQueryException, match=r"batch 1 .* begins with batch 0 and"):
            query.processAllAvailable()
    with pytest.raises(HistoryError, match="Spark completed batch 0 in"):
        sink.close()


def test_a_wal_does_not_begin_behind_a_batch_that_completed_while_the_wal_was_open(
    spark: SparkSession, place: Home
) -> None:
    place.feed.add(range(5))
    sink = place.sink()
    sink.drain()
    chain(spark, place, lambda _df, _batch_id: None)
    place.feed.add(range(5, 10))
    with pytest.raises(StreamingQueryException, match=r"batch 1 .* begins with batch 0 and"):
        chain(spark, place, sink.stage)
    with pytest.raises(HistoryError, match="Spark completed batch 0 in"):
        sink.close()
    assert place.lines.ids() == []


def test_a_wal_begins_with_the_first_batch_of_a_later_run(spark: SparkSession, place: Home) -> None:
    """An old query that gets a sink."""
    place.feed.add(range(5))
    chain(spark, place, lambda _df, _batch_id: None)
    place.feed.add(range(5, 10))
    with place.sink() as sink:
        chain(spark, place, sink.stage)
    assert place.lines.ids() == list(range(5, 10))


def test_a_block_in_which_no_batch_was_staged_does_not_end_in_silence(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with pytest.raises(HistoryError, match=r"batches 0 to 0 of .* none of these batches was staged"), place.sink():
        chain(spark, place, lambda _df, _batch_id: None)


@pytest.mark.parametrize("is_new", [True, False])
def test_outside_of_a_block_a_sink_that_no_batch_came_to_warns_and_an_old_wal_misses_the_batches(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture, is_new: bool
) -> None:
    """Nothing leads from a `WalSink` that is not open to a query that does not call it. A new WAL loses the batch."""
    if not is_new:
        place.feed.add(range(100, 105))
        place.run(spark)
    sink = place.sink()
    place.feed.add(range(5))
    chain(spark, place, lambda _df, _batch_id: None)
    sink.close()
    assert "was closed but never opened: it staged no batch and delivered nothing" in caplog.text

    place.feed.add(range(5, 10))
    if is_new:
        place.run(spark)
        assert place.lines.ids() == list(range(5, 10))
    else:
        with pytest.raises(HistoryError, match="Spark completed batch 1 in"):
            place.run(spark)


# --- a WalSink made inside foreachBatch


def test_a_sink_made_and_left_inside_foreach_batch_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))

    def on_batch(df: DataFrame, batch_id: int) -> None:
        with place.sink() as sink:
            sink.stage(df, batch_id)

    with pytest.raises(StreamingQueryException, match="inside foreachBatch"):
        chain(spark, place, on_batch)
    place.run(spark)
    assert place.lines.ids() == list(range(5)), "nothing is lost by it"


def test_a_sink_made_anew_for_each_batch_and_dropped_is_refused(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    kept: list[WalSink] = []

    def on_batch(df: DataFrame, batch_id: int) -> None:
        kept.append(place.sink())
        kept[-1].stage(df, batch_id)

    try:
        with pytest.raises(StreamingQueryException, match="another WalSink"):
            chain(spark, place, on_batch)
    finally:
        for sink in kept:
            sink.__exit__(OSError, OSError(), None)


# --- two drivers that only stage, on copies of one checkpoint


SECOND_DRIVER = (
    SESSION.format(master="local[1]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
place = Home(Path(sys.argv[1]), wal_url=sys.argv[2])
with place.sink(None) as sink:
    sink.run(place.writer(spark))
"""
)


def test_of_two_drivers_that_only_stage_on_copies_of_a_checkpoint_the_earlier_ends(
    spark: SparkSession, other_sparks: Lasting, place: Home, tmp_path: Path
) -> None:
    place.feed.add(range(5))
    place.run(spark, to=None)
    second = Home(tmp_path / "second", wal_url=str(place.wal))
    shutil.copytree(place.checkpoint, second.checkpoint)
    with place.sink(None) as sink:
        query = sink.start(place.feed.stream(spark).writeStream)
        place.feed.add(range(5, 10))
        query.processAllAvailable()
        shutil.copytree(place.feed.folder, second.feed.folder)
        second.feed.add(range(100, 105))
        with other_sparks.start(SECOND_DRIVER, second.root, place.wal) as driver:
            driver.wait_until(lambda: not driver.running, "it ended, though its files are elsewhere")
        place.feed.add(range(10, 15))
        with pytest.raises(StreamingQueryException, match="term 2 of 'stager'"):
            query.processAllAvailable()
        sink.__exit__(OSError, OSError(), None)


# --- what a writer already has


def test_another_checkpoint_on_the_writer_is_refused(spark: SparkSession, place: Home, tmp_path: Path) -> None:
    place.feed.add(range(5))
    left = place.writer(spark).option("CheckpointLocation", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match=r"checkpointLocation.*/old.*/checkpoint"), place.sink() as sink:
        sink.run(left)
    assert not place.checkpoint.exists()


def test_the_same_checkpoint_on_the_writer_and_a_writer_used_again_are_fine(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    named = place.writer(spark).option("checkpointLocation", f"file:{place.checkpoint}").queryName("orders")
    with place.sink() as sink:
        sink.start(named).awaitTermination(120)
        place.feed.add(range(5, 10))
        sink.start(named).awaitTermination(120)
    with place.sink() as sink:
        sink.run(named)
    assert place.lines.ids() == list(range(10))


LEFT_ON_THE_WRITER: dict[str, Callable[[Any], Any]] = {
    "format": lambda w: w.format("console"),
    "foreachBatch": lambda w: w.foreachBatch(sink_nothing),
    "foreachBatch, then a format": lambda w: w.foreachBatch(sink_nothing).format("parquet"),
    "foreach": lambda w: w.foreach(print),
    "path": lambda w: w.format("parquet").option("path", "/nowhere"),
    "clusterBy": lambda w: w.clusterBy("id"),
}


@pytest.mark.parametrize("what", LEFT_ON_THE_WRITER)
def test_a_target_that_the_writer_already_has_is_refused(spark: SparkSession, place: Home, what: str) -> None:
    place.feed.add(range(5))
    with pytest.raises(ConfigError, match=rf"{what.partition(',')[0]}\(.*Remove this setting"), place.sink() as sink:
        sink.run(LEFT_ON_THE_WRITER[what](place.writer(spark)))
    assert not place.checkpoint.exists()


def test_a_batch_is_staged_from_a_thread_of_a_pool(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    with place.sink() as sink, ThreadPoolExecutor(1) as pool:
        chain(spark, place, lambda df, batch_id: pool.submit(sink.stage, df, batch_id).result(60))
    assert place.lines.ids() == list(range(10))


def test_a_batch_is_not_staged_after_a_restart_in_between(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with pytest.raises(Exception, match="no such row"), place.sink(None) as sink:
        chain(spark, place, swallowing(first_fails(sink), []))
    place.feed.add(range(5, 10))
    with pytest.raises(HistoryError, match=r"batch 1.* begins with batch 0"):
        place.run(spark, None)
    assert not list(place.wal.glob("batches/*/manifest*"))


def test_stopping_in_the_middle_of_staging_is_no_swallowed_error(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))

    def slowly(df: DataFrame, batch_id: int) -> None:
        sink.stage(
            df.selectExpr("if(java_method('java.lang.Thread', 'sleep', 20000L) is null, id, id) as id"), batch_id
        )

    with place.sink() as sink:
        query = writer(spark, place, slowly).start()
        wait_until(lambda: bool(list(place.wal.glob("wal.json"))), "staging began")
    assert not query.isActive
    place.run(spark)
    assert place.lines.ids() == list(range(5))


def test_after_a_function_of_the_users_own_the_writer_is_refused_again(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    used = place.writer(spark)
    with place.sink() as sink:
        sink.run(used)
    with pytest.raises(ConfigError, match="foreachBatch"), place.sink() as sink:
        sink.run(used.foreachBatch(sink_nothing))

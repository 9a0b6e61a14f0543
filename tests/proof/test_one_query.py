"""The ordinary path: a query, a WAL and its sinks, from the first batch to the last."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.support.lasting import Lasting
from tests.support.processes import Child
from tests.support.streams import SESSION, Home, Lines, append_line, quick, small_chunks
from tests.support.waiting import wait_until
from wal_sink import BatchSink, Chunk, ConfigError, Delivery, Settings, UndeliveredError, idempotent
from wal_sink.spark.staging import RepeatedShuffles
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.sql.sink import SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.house.sinks import ReleasedBatch
    from wal_sink.settings import Where

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


# --- ways to run a query


def test_run_delivers_every_batch_the_last_one_too(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(10), range(10, 20), range(20, 30))
    place.run(spark)
    assert place.lines.ids() == list(range(30))
    assert [sent.batch for sent in place.lines.sent()] == [0, 1, 2]


def test_an_attempt_whose_shuffle_spark_repeated_is_not_delivered(
    spark: SparkSession, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may come from two attempts at the shuffle."""
    looks = ["1 of 2 outputs of shuffle 0 were written after task 3 began", None]
    monkeypatch.setattr(RepeatedShuffles, "found", lambda *_: looks.pop(0))
    place.feed.add(range(5))
    place.run(spark)
    assert looks == []
    assert [path.name for path in place.wal.glob("batches/*/*.json") if path.name != "release.json"] == [
        "manifest-0000000001-0000000002.json"
    ]
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(5)), 0)


def test_start_await_and_close_deliver_what_the_query_completed(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    sink = place.sink()
    assert sink.start(place.writer(spark)).awaitTermination(120)
    sink.close()
    sink.close()
    assert place.lines.ids() == list(range(10))
    with pytest.raises(ConfigError, match="was closed"):
        sink.drain()


def test_an_own_chain_stages_and_leaving_the_block_stops_it_and_delivers(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    writer = place.feed.stream(spark).writeStream.option("checkpointLocation", str(place.checkpoint))
    with place.sink() as sink:
        query = writer.foreachBatch(sink.stage).start()
        query.processAllAvailable()
    assert not query.isActive
    assert place.lines.ids() == list(range(5))


def test_an_own_chain_is_stopped_when_its_delivery_gives_up(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    sink = place.sink(quick(place.troubled("permanent")))
    writer = place.feed.stream(spark).writeStream.option("checkpointLocation", str(place.checkpoint))
    query = writer.foreachBatch(sink.stage).start()
    assert query.awaitTermination(120)
    with pytest.raises(Exception, match="the target refuses"):
        sink.close()


def test_an_own_chain_that_failed_is_started_again_beside_the_same_sink(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10), range(10, 15))
    failures = iter([1])

    def on_batch(df: DataFrame, batch_id: int) -> None:
        sink.stage(df, batch_id)
        if batch_id == 1 and next(failures, None):
            raise OSError("after staging, before the batch is complete")

    writer = place.feed.stream(spark).writeStream.option("checkpointLocation", str(place.checkpoint))
    with place.sink(settings=Settings(max_pending_batches=1)) as sink:
        with pytest.raises(StreamingQueryException, match="before the batch is complete"):
            writer.foreachBatch(on_batch).start().awaitTermination(120)
        query = writer.foreachBatch(on_batch).start()
        query.processAllAvailable()
    assert not query.isActive
    assert len(list((place.wal / "terms" / "stager").iterdir())) == 2
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(15)), 0)


def test_what_completes_after_a_drain_is_delivered_too(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5))
    with place.sink() as sink:
        query = sink.start(place.feed.stream(spark).writeStream)
        query.processAllAvailable()
        sink.drain(timeout_s=60)
        assert place.lines.ids() == list(range(5))
        place.feed.add(range(5, 10))
        query.processAllAvailable()
    assert place.lines.ids() == list(range(10))


def test_a_sink_opened_before_spark_was_there_is_refused_when_spark_comes(
    spark: SparkSession, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.feed.add(range(5))
    monkeypatch.setattr("wal_sink.walsink.current_session", lambda: None)
    early = "Create the SparkSession before you enter the with block"
    with place.sink() as sink, pytest.raises(ConfigError, match=early):
        sink.start(place.writer(spark))
    assert not place.checkpoint.exists()
    monkeypatch.undo()
    place.run(spark)
    assert place.lines.ids() == list(range(5))


def test_an_empty_stream_delivers_nothing_and_is_no_error(spark: SparkSession, place: Home) -> None:
    place.feed.folder.mkdir()
    place.run(spark)
    assert place.lines.sent() == []
    place.feed.add(range(3))
    place.run(spark)
    assert place.lines.ids() == [0, 1, 2]


def test_what_an_earlier_run_left_is_delivered_before_spark_runs(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    place.run(spark, to=None)
    assert place.lines.sent() == []
    with place.sink(Delivery(place.lines, start_from="earliest")):
        assert place.lines.ids() == list(range(10))


def test_a_batch_left_uncommitted_at_the_end_is_staged_again_and_arrives_once(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    place.run(spark)
    for commit in place.checkpoint.glob("commits/*1*"):
        commit.unlink()
    place.feed.add(range(10, 15))
    place.run(spark)
    assert place.lines.ids() == list(range(15))


DRAIN = """
import sys
from wal_sink import Delivery, WalSink
from tests.support.streams import Lines, Home
from pathlib import Path
place = Home(Path(sys.argv[1]))
print("started", flush=True)
with place.sink(Delivery(place.lines, start_from="earliest")) as sink:
    sink.drain({arguments})
assert "pyspark" not in sys.modules, "a drain needs no Spark"
"""


def test_another_process_drains_without_spark_what_was_staged(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    place.run(spark, to=None)
    with Child.python(DRAIN.format(arguments=""), place.root, log=place.root / "log") as child:
        child.succeed()
    assert place.lines.ids() == list(range(10))


def test_a_following_drain_started_before_the_wal_exists_delivers_while_the_query_runs(
    spark: SparkSession, place: Home
) -> None:
    program = DRAIN.format(arguments="follow=True, timeout_s=400")
    with Child.python(program, place.root, log=place.root / "log") as child:
        child.wait_until((place.wal / "terms").exists, "the drain claimed its term")
        place.feed.add(range(5), range(5, 10))
        place.run(spark, to=None)
        child.wait_until(lambda: place.lines.ids() == list(range(10)), "both batches delivered")
    assert place.lines.ids() == list(range(10)), "each once, whatever the drain did until it was ended"


# --- sinks


def lines_in(place: Home, name: str) -> Lines:
    return Lines(place.root / name)


def test_where_a_sink_runs_is_logged_and_true(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    place.feed.add(range(5))
    sinks: dict[Where, Lines] = {
        "driver": lines_in(place, "d"),
        "auto": lines_in(place, "a"),
        "executors": lines_in(place, "e"),
    }
    with caplog.at_level(logging.INFO, "wal_sink"):
        place.run(spark, {where: Delivery(sink, where=where) for where, sink in sinks.items()})
    on_driver = {where: [sent.pid == os.getpid() for sent in sink.sent()] for where, sink in sinks.items()}
    assert on_driver == {"driver": [True], "auto": [True], "executors": [False]}
    said = [record.getMessage() for record in caplog.records if record.name == "wal_sink.spark.committers"]
    assert [line.rpartition("runs ")[2] for line in said] == [
        "in this process",
        "on executors, for small batches as a copy in the driver",
        "on executors",
    ]


def test_under_auto_the_driver_calls_a_copy_so_that_size_never_changes_behaviour(
    spark: SparkSession, place: Home, tmp_path: Path
) -> None:
    seen: list[int] = []
    notes = tmp_path / "notes"

    def note(chunk: Chunk) -> None:
        seen.append(chunk.num_rows)
        notes.write_text(str(len(seen)))

    place.feed.add(range(5))
    place.run(spark, note)
    assert (seen, notes.read_text()) == ([], "1")


def test_starting_leaves_the_users_job_group_alone(spark: SparkSession, place: Home) -> None:
    keys = ("spark.jobGroup.id", "spark.job.description")
    spark.sparkContext.setJobGroup("mine", "my jobs")
    place.feed.add(range(5))
    place.run(spark)
    assert [spark.sparkContext.getLocalProperty(key) for key in keys] == ["mine", "my jobs"]
    for key in keys:
        spark.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type]  # None removes it


def test_a_second_sink_begins_where_it_is_told_to(spark: SparkSession, place: Home) -> None:
    late, all_of_it = lines_in(place, "late"), lines_in(place, "all")
    place.feed.add(range(5))
    place.run(spark)
    with pytest.raises(ConfigError, match=r"'late' is new to .* start_from='earliest'"):
        place.run(spark, {"default": place.lines, "late": late})
    place.feed.add(range(5, 10))
    sinks = {"late": Delivery(late, start_from="next"), "all": Delivery(all_of_it, start_from="earliest")}
    place.run(spark, {"default": place.lines, **sinks})
    assert place.lines.ids() == all_of_it.ids() == list(range(10))
    assert late.ids() == list(range(5, 10))


@pytest.mark.usefixtures("partitions_apart")
def test_total_order_delivers_the_segments_of_a_batch_one_after_the_other(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(100))
    with place.sink(Delivery(place.lines, where="executors", max_concurrency=1), settings=small_chunks()) as sink:
        sink.run(place.feed.stream(spark).repartition(3).writeStream.trigger(availableNow=True))
    segments = [sent.key[:16] for sent in place.lines.sent()]
    assert len(set(segments)) == 3
    assert sum(a != b for a, b in pairwise(segments)) == 2
    assert place.lines.ids() == list(range(100))


def test_a_parked_sink_holds_back_no_other_and_closing_names_it(spark: SparkSession, place: Home) -> None:
    bad = quick(place.troubled("permanent"), on_failure="park")
    good = lines_in(place, "good")
    place.feed.add(range(5), range(5, 10))
    with pytest.raises(
        UndeliveredError, match=r"'bad' of .* is parked, because its delivery failed: .*the target refuses"
    ):
        place.run(spark, {"bad": bad, "good": good})
    assert good.ids() == list(range(10))
    place.trouble.unlink()
    place.run(spark, {"bad": bad, "good": good})
    assert place.lines.ids() == list(range(10))


def test_a_sink_that_keeps_failing_stops_the_query_and_nothing_is_lost(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    with pytest.raises(
        Exception, match=r"batch 0, sink 'default'.*delivery stopped after 2 attempts.*the target is down"
    ):
        place.run(spark, quick(place.troubled("raise")))
    place.trouble.unlink()
    place.run(spark)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10)), 0)


def test_at_most_once_never_repeats_and_keeps_what_it_gave_up(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(30))
    delivery = quick(place.troubled("raise"), guarantee="at_most_once", attempts=1)
    with pytest.raises(Exception, match="the target is down"):
        place.run(spark, delivery, settings=small_chunks())
    place.trouble.unlink()
    place.run(spark, Delivery(place.lines, guarantee="at_most_once"))
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(10, 30)), 0)
    assert len(list(place.wal.glob("sinks/default/dead-letters/*/*.parquet"))) == 1


class LookedUp(Lines):
    """A target that has the chunk although the first call failed, and can say so."""

    def write(self, chunk: Chunk) -> None:
        first = not self.sent()
        super().write(chunk)
        if first:
            raise OSError("the answer was lost")

    def was_applied(self, key: str) -> bool:
        return key in {sent.key for sent in self.sent()}


def test_a_sink_that_looks_up_keys_is_not_sent_again_what_it_has(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(20))
    sink = LookedUp(place.root / "out.jsonl")
    place.run(spark, sink, settings=small_chunks())
    assert (sink.ids(), sink.repeats()) == (list(range(20)), 0)


def test_every_sink_says_what_holds_for_it(place: Home) -> None:
    plain = lines_in(place, "plain")
    said = place.sink(
        {
            "plain": plain,
            "once": Lines(place.root / "once", idempotent=True),
            "marked": idempotent(lambda _: None),
            "lookup": LookedUp(place.root / "lookup"),
            "sql": SqlSink("sqlite:////nowhere.db", "t"),
            "most": Delivery(lines_in(place, "most"), guarantee="at_most_once"),
        }
    ).guarantee()
    assert {name: sentence.partition(":")[0].partition(" (")[0] for name, sentence in said.items()} == {
        "plain": "at least once",
        "once": "exactly once in effect",
        "marked": "exactly once in effect",
        "lookup": "at least once",
        "sql": "exactly once",
        "most": "at most once",
    }
    with pytest.raises(ConfigError, match="a plain sink does not support exactly_once"):
        place.sink(plain, guarantee="exactly_once")


def test_status_tells_where_the_wal_and_its_sinks_stand(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 10))
    assert (place.sink().status().newest_batch, place.sink().status().sinks) == (-1, ())
    place.run(spark)
    status = place.sink().status()
    assert (status.newest_batch, status.first_batch, status.checkpoint) == (1, 0, place.checkpoint.as_uri())
    assert [(sink.name, sink.delivered_through, sink.pending_batches) for sink in status.sinks] == [("default", 1, 0)]


def test_sqlite_gets_rows_and_position_in_one_transaction(spark: SparkSession, place: Home) -> None:
    url = f"sqlite:///{place.root}/target.db"
    place.feed.add(range(25), range(25, 40))
    place.run(spark, Delivery(SqlSink(url, "t"), where="executors"), settings=small_chunks())
    place.feed.add(range(40, 50))
    place.run(spark, f"{url}?table=t")
    with sqlite3.connect(place.root / "target.db") as connection:
        assert [row[0] for row in connection.execute("select id from t order by id")] == list(range(50))
    connection.close()


def test_a_folder_of_files_gets_each_chunk_as_one(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(25))
    place.run(spark, FilesSink(str(place.root / "files")), settings=small_chunks())
    files = sorted((place.root / "files").rglob("*.jsonl"))
    ids = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert (len(files), sorted(ids)) == (3, list(range(25)))


# --- queries of other kinds


def counts_by_group(spark: SparkSession, place: Home) -> DataFrame:
    return place.feed.stream(spark).groupBy((f.col("id") % 3).alias("group")).count()


@pytest.mark.parametrize(("mode", "last"), [("update", 2), ("complete", 3)])
def test_a_stateful_query_keeps_its_counts_over_a_failure(
    spark: SparkSession, place: Home, mode: str, last: int
) -> None:
    place.feed.add([0, 1, 2], [3, 4])

    def once(to: object) -> None:
        with place.sink(to) as sink:
            sink.run(counts_by_group(spark, place).writeStream.outputMode(mode).trigger(availableNow=True))

    with pytest.raises(Exception, match="the target refuses"):
        once(rows_into(place, trouble=True))
    once(rows_into(place))
    seen = [(sent["batch"], len(sent["rows"])) for sent in rows_of(place)]
    assert sum(count for batch, count in seen if batch == 1) == last
    final = {row["group"]: row["count"] for sent in rows_of(place) for row in sent["rows"]}
    assert final == {0: 2, 1: 2, 2: 1}


def test_a_watermark_emits_each_window_once_from_no_data_batches_too(spark: SparkSession, place: Home) -> None:
    place.feed.add([1, 2, 12], [25])
    events = place.feed.stream(spark).select(f.timestamp_seconds("id").alias("at"))
    windows = events.withWatermark("at", "0 seconds").groupBy(f.window("at", "10 seconds").alias("w")).count()
    counted = windows.select(f.col("w.start").cast("long").alias("start"), "count")

    def once() -> None:
        with place.sink(rows_into(place)) as sink:
            sink.run(counted.writeStream.outputMode("append").trigger(availableNow=True))

    once()
    place.feed.add([40])
    once()
    rows = [(row["start"], row["count"]) for sent in rows_of(place) for row in sent["rows"]]
    assert sorted(rows) == [(0, 2), (10, 1), (20, 1)]
    assert place.sink().status().newest_batch > 2, "no batch without data ran"


def test_a_schema_may_change_between_restarts(spark: SparkSession, place: Home) -> None:
    place.feed.add([1])
    place.run(spark, to=None)
    place.feed.add_text('{"id": 2, "name": "b"}\n')
    with place.sink(Delivery(rows_into(place), start_from="earliest")) as sink:
        sink.run(place.writer(spark, "id long, name string"))
    assert [sent["rows"] for sent in rows_of(place)] == [[{"id": 1}], [{"id": 2, "name": "b"}]]


def test_names_with_dots_and_spaces_reach_the_sink_as_they_are(spark: SparkSession, place: Home) -> None:
    place.feed.add([1])
    odd = place.feed.stream(spark).select(f.col("id").alias("a.b"), f.struct("id").alias("c d"))
    with place.sink(rows_into(place)) as sink:
        sink.run(odd.writeStream.trigger(availableNow=True))
    assert [sent["rows"] for sent in rows_of(place)] == [[{"a.b": 1, "c d": {"id": 1}}]]


def rows_into(place: Home, *, trouble: bool = False) -> Rows:
    if trouble:
        place.troubled("permanent")
        return Rows(place.root / "rows", place.trouble)
    place.trouble.unlink(missing_ok=True)
    return Rows(place.root / "rows", place.trouble)


def rows_of(place: Home) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.root / "rows").read_text().splitlines()]


class Rows(Lines):
    """Appends whole rows instead of the first column."""

    def write(self, chunk: Chunk) -> None:
        self._misbehave()
        append_line(self.path, json.dumps({"batch": chunk.batch_id, "rows": json.loads(chunk.to_json())}))


# --- bounds


def test_too_much_undelivered_holds_staging_back(spark: SparkSession, place: Home) -> None:
    place.feed.add(*([number] for number in range(6)))
    sink = place.sink(Delivery(place.troubled("hang"), where="driver"), settings=Settings(max_pending_batches=2))
    running = threading.Thread(target=sink.run, args=(place.writer(spark),))
    running.start()
    wait_until(lambda: sink.status().newest_batch == 1, "two batches staged")
    wait_until((place.checkpoint / "offsets" / "2").exists, "the third batch began")
    assert not list(place.wal.glob("batches/*2/manifest*"))
    place.trouble.unlink()
    running.join(180)
    assert place.lines.ids() == list(range(6))


def test_no_thread_is_left_behind(spark: SparkSession, place: Home) -> None:
    of_others = set(threading.enumerate())  # a call that another test abandoned may still sleep
    place.feed.add(range(5))
    place.run(spark, {"one": place.lines, "two": Delivery(lines_in(place, "two"), where="driver")})

    def left() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - of_others if thread.name.startswith("wal-sink")]

    wait_until(lambda: not left(), "threads ended")
    assert left() == []


class Counted(BatchSink):
    """An existing writer of whole batches: appends its number of rows to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write_batch(self, batch: ReleasedBatch) -> None:
        rows = batch.read().count()
        with self._path.open("a") as lines:
            lines.write(f"{batch.batch_id}:{rows}\n")


def test_a_whole_batch_writer_reads_the_staged_rows_again(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(5), range(5, 12))
    place.run(spark, Counted(place.root / "counts"))
    assert (place.root / "counts").read_text() == "0:5\n1:7\n"


ONE_CORE = (
    SESSION.format(master="local[1]")
    + """
import sys
from pathlib import Path
from wal_sink import Delivery
from tests.support.streams import Home
place = Home(Path(sys.argv[1]))
place.feed.add(*(range(number * 10, number * 10 + 10) for number in range(4)))
place.run(spark, Delivery(place.lines, where="executors"))
"""
)


def test_one_core_is_enough_for_staging_and_delivery(other_sparks: Lasting, place: Home) -> None:
    other_sparks.run(ONE_CORE, place.root)
    assert place.lines.ids() == list(range(40))


def test_what_is_no_sink_is_refused_at_once(place: Home) -> None:
    with pytest.raises(ConfigError, match="rows cannot be delivered to int"):
        place.sink(7)

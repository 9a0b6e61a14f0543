"""Wrapped writers end to end: a running query, the WAL, and what the existing writer gets to see."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyspark
import pytest

from tests.house.spark import version_of
from tests.support.servers.s3_server import S3Server
from tests.support.streams import Home, Lines
from tests.support.waiting import PATIENCE_S
from tests.support.writers import Notes, NotingForeachWriter, noting
from wal_sink import (
    Chunk,
    ConfigError,
    Delivery,
    DeliveryError,
    Retry,
    Settings,
    UndeliveredError,
    WalSinkError,
    idempotent,
    wrap,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture(params=["local", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Home, dict[str, Any]]:
    """A place with its WAL on disk or on S3, and the options of its store. This Spark has no connector for S3."""
    if request.param == "local":
        return Home(tmp_path), {}
    server: S3Server = request.getfixturevalue("s3_server")
    return Home(tmp_path, request.getfixturevalue("s3_url")), {"storage_options": server.storage_options}


def run(spark: SparkSession, place: Home, to: object, *columns: str, **options: Any) -> None:
    """Run the feed's stream once, with `columns` as well as `id`."""
    with place.sink(to, **options) as sink:
        sink.run(place.feed.stream(spark).selectExpr("id", *columns).writeStream.trigger(availableNow=True))


def test_foreach_batch_gets_every_batch_as_an_ordinary_dataframe(
    spark: SparkSession, where: tuple[Home, dict[str, Any]]
) -> None:
    place, options = where
    place.feed.add(range(5), range(5, 8))
    seen: dict[int, list[int]] = {}

    def write(df: DataFrame, batch_id: int) -> bool:
        assert df.schema.simpleString() == "struct<id:bigint,u.v:string>"
        rows = df.persist().collect()
        assert df.count() == len(rows)
        df.unpersist()
        assert sorted(df.collect()) == sorted(rows)
        df.createOrReplaceTempView("wrapped_rows")
        total = df.sparkSession.sql("SELECT sum(id) FROM wrapped_rows").collect()[0][0]
        assert total == sum(row.id for row in rows)
        seen[batch_id] = sorted(row.id for row in rows)
        return True

    run(spark, place, wrap.foreach_batch(write), "uuid() AS `u.v`", **options)
    assert seen == {0: list(range(5)), 1: list(range(5, 8))}


def test_wrapped_writers_get_renamed_columns(spark: SparkSession, place: Home, notes: Notes) -> None:
    """Of a query whose names Spark cannot resolve; each writer sees the type and the NOT NULL of the query."""
    place.feed.add([1])
    columns: dict[str, str | None] = {"id": "number", "u.v": None, "w": "w.x"}

    def write(df: DataFrame, _: int) -> None:
        notes.note("batch", schema=df.schema.simpleString(), rows=[list(row) for row in df.collect()])

    writers = {
        "batch": Delivery(wrap.foreach_batch(write), columns=columns),
        "row": Delivery(wrap.foreach_writer(lambda row: notes.note("row", row=row.asDict())), columns=columns),
    }
    run(spark, place, writers, "uuid() AS `u.v`", "'x' AS w")
    (batch,), (row,) = notes.all("batch"), notes.all("row")
    assert (batch["schema"], batch["rows"]) == ("struct<number:bigint,w.x:string>", [[1, "x"]])
    assert row["row"] == {"number": 1, "w.x": "x"}
    with pytest.raises(ConfigError, match="sink 'batch': columns: the query has no column 'w'"):
        run(spark, place, writers, "uuid() AS `u.v`")


@pytest.mark.parametrize("on_failure", ["stop", "park"])
@pytest.mark.parametrize("kind", ["batches", "chunks"])
def test_a_call_that_outlived_its_time_is_waited_for_by_the_next_run_of_this_process(
    spark: SparkSession, place: Home, kind: str, on_failure: Literal["stop", "park"]
) -> None:
    """A notebook cell that is run again makes a new function for the same sink."""
    place.feed.add([0], [1])
    wrote, let_go, entered = list[int](), threading.Event(), threading.Event()

    def cell(limit_s: float, *, is_slow: bool) -> None:
        def write(ids: list[int]) -> None:
            if is_slow:
                entered.set()
                assert let_go.wait(PATIENCE_S)
            wrote.extend(ids)

        if kind == "batches":
            merge = wrap.foreach_batch(lambda df, _: write([row.id for row in df.collect()]), idempotent=True)
            to = Delivery(merge, retry=Retry(budget_s=limit_s), on_failure=on_failure)
        else:
            merged = idempotent(lambda chunk: write(chunk.table["id"].to_pylist()))
            to = Delivery(merged, where="driver", retry=Retry(attempt_timeout_s=limit_s), on_failure=on_failure)
        run(spark, place, to)

    with pytest.raises(WalSinkError, match="is still running after 2 s"):
        cell(2, is_slow=True)
    assert entered.is_set()
    threading.Timer(2, let_go.set).start()
    cell(PATIENCE_S, is_slow=False)

    assert wrote[-2:] == [0, 1]  # the older call writes nothing after the newer one
    assert set(wrote[:-2]) <= {0}


def test_the_jobs_of_a_call_that_outlived_its_time_are_cancelled(spark: SparkSession, place: Home) -> None:
    place.feed.add([0])
    ended = threading.Event()

    def write(df: DataFrame, _: int) -> None:
        try:
            df.sparkSession.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(PATIENCE_S))
        finally:
            ended.set()

    with pytest.raises(DeliveryError, match="is still running after 3 s"):
        run(spark, place, Delivery(wrap.foreach_batch(write), retry=Retry(budget_s=3)))
    assert ended.wait(20)


@pytest.mark.parametrize("kind", ["rows", "chunks"])
def test_a_broadcast_variable_reaches_a_writer_with_every_batch(
    spark: SparkSession, place: Home, notes: Notes, kind: str
) -> None:
    names: Any = spark.sparkContext.broadcast({0: "none", 1: "one"})

    def row(given: Row) -> None:
        notes.note("row", name=names.value[given.id])

    def chunk(given: Chunk) -> None:
        for each in given.table["id"].to_pylist():
            notes.note("row", name=names.value[each])

    to = wrap.foreach_writer(row) if kind == "rows" else chunk
    place.feed.add(range(1), range(1, 2))
    run(spark, place, to)
    assert [each["name"] for each in notes.all("row")] == ["none", "one"]


@pytest.mark.parametrize("runs", ["driver", "executors", "auto"])
def test_a_foreach_writer_is_opened_fed_and_closed_for_each_segment(
    spark: SparkSession, where: tuple[Home, dict[str, Any]], notes: Notes, runs: Any
) -> None:
    place, options = where
    place.feed.add(range(4), [7])
    writer = wrap.foreach_writer(NotingForeachWriter(notes))
    settings = Settings(chunk_rows=1, segment_bytes=1)  # three segments or so
    run(spark, place, Delivery(writer, where=runs), "id * 2 AS two", settings=settings, **options)
    rows = sorted((note["batch"], *note["row"].items()) for note in notes.all("process"))
    expected = [(batch, ("id", row), ("two", 2 * row)) for batch, row in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 7)]]
    assert rows == expected
    opened = [(note["batch"], note["segment"]) for note in notes.all("open")]
    assert sorted(opened) == sorted((note["batch"], note["segment"]) for note in notes.all("close"))
    assert len(set(opened)) == len(opened)
    assert len(opened) > 2
    assert {note["error"] for note in notes.all("close")} == {None}
    here = {note["pid"] for note in notes.all()} == {os.getpid()}
    assert here == (runs == "driver")
    if runs != "driver":
        assert all(note["fresh"] for note in notes.all("open"))


def test_rows_are_those_pysparks_own_foreach_gives(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add([1])
    columns = (
        "timestamp'2024-07-01 12:00:00.123456' AS at", "timestamp_ntz'2024-07-01 12:00:00' AS local",
        "date'2024-02-29'",
        "cast(1.5 AS decimal(10, 3)) AS d", "cast('ab' AS binary) AS bytes", "interval '1 02:03:04' day to second AS i",
        "map('k', named_struct('x', 1, 'y', array(cast(null AS string)))) AS m", "cast(null AS void) AS v",
        "array(timestamp'2024-01-01 00:00:00') AS times", "float('nan') AS f", "cast(1 AS byte) AS b", "true AS t",
    )  # fmt: skip

    def note(row: Row) -> None:
        notes.note("row", text=repr(row), types=[type(value).__name__ for value in row])

    stream = place.feed.stream(spark).selectExpr("id", *columns)
    stream.writeStream.foreach(note).option("checkpointLocation", str(place.root / "own")).trigger(
        availableNow=True
    ).start().awaitTermination()
    run(spark, place, Delivery(wrap.foreach_writer(note), where="executors"), *columns)
    own, wrapped = notes.all("row")
    assert {**wrapped, "pid": 0} == {**own, "pid": 0}


def test_a_batch_remembers_the_time_zone_of_its_session(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add([1])
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    writer = wrap.foreach_writer(lambda row: notes.note("row", at=str(row.at)))
    spark.conf.set("spark.sql.session.timeZone", "GMT+8")
    try:
        run(spark, place, Delivery(writer, where="driver"), "timestamp'2024-07-01 05:30:00Z' AS at")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [note["at"] for note in notes.all("row")] == ["2024-07-01 13:30:00"]


@pytest.mark.skipif(version_of(pyspark.__version__) < (4, 0), reason="Spark has VARIANT since 4.0")
def test_a_variant_comes_to_wrapped_writers_and_is_refused_for_others_before_the_query_runs(
    spark: SparkSession, place: Home, tmp_path: Path, notes: Notes
) -> None:
    """A sink of chunks would get its internal bytes, in a later run too."""
    place.feed.add([1])
    column = "array(parse_json('{\"a\":1}')) AS v"
    files = f"files://{tmp_path}/files?format=jsonl"
    writers = {
        "row": wrap.foreach_writer(lambda row: notes.note("row", text=row["v"][0].toJson())),
        "batch": wrap.foreach_batch(
            lambda df, _: notes.note("batch", text=df.selectExpr("to_json(v)").collect()[0][0])
        ),
    }
    with pytest.raises(ConfigError, match=r"sink 'files', .* column 'v' holds a VARIANT"):
        run(spark, place, {**writers, "files": files}, column)
    run(spark, place, writers, column)
    assert [notes.all(kind)[0]["text"] for kind in writers] == ['{"a":1}', '[{"a":1}]']
    with (
        pytest.raises(DeliveryError, match="column 'v' holds a VARIANT"),
        place.sink({**writers, "late": Delivery(files, start_from="earliest")}) as sink,
    ):
        sink.drain()
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_sparks_own_file_writers_write_every_row_once(
    spark: SparkSession, where: tuple[Home, dict[str, Any]], tmp_path: Path, form: str
) -> None:
    place, options = where
    place.feed.add(range(50), range(50, 60))
    target = str(tmp_path / "target")
    run(spark, place, wrap.spark_writer(form, {"path": target, "header": True}), "id * 2 AS two", **options)
    back = spark.read.schema("id long, two long").option("header", True).format(form).load(target)
    assert sorted((row.id, row.two) for row in back.collect()) == [(row, 2 * row) for row in range(60)]


def test_sparks_jdbc_writer_writes_every_row_once_and_shows_no_password(
    spark: SparkSession, place: Home, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    place.feed.add(range(50), range(50, 60))
    options = {
        "url": f"jdbc:derby:{tmp_path / 'db'};create=true",
        "driver": "org.apache.derby.jdbc.EmbeddedDriver",
        "dbtable": "orders",
        "user": "app",
        "password": "hunter-2",
    }
    run(spark, place, wrap.spark_writer("jdbc", options), "uuid() AS u")
    back = spark.read.format("jdbc").options(**options).load()
    assert sorted(row.ID if "ID" in row else row.id for row in back.collect()) == list(range(60))
    wal = "".join(path.read_text(errors="replace") for path in place.wal.rglob("*.json"))
    assert "wrap.spark_writer('jdbc', mode='append')" in wal
    assert "hunter-2" not in wal


def test_a_failed_segment_is_closed_with_the_error_and_repeated_whole(
    spark: SparkSession, place: Home, notes: Notes
) -> None:
    place.feed.add(range(4))
    notes.plan_trouble("process-2")
    run(spark, place, Delivery(wrap.foreach_writer(NotingForeachWriter(notes)), where="executors"), "uuid() AS u")
    assert [note["error"] for note in notes.all("close")] == ["trouble at process-2", None]
    processed = [(note["row"]["id"], note["row"]["u"]) for note in notes.all("process")]
    assert [number for number, _ in processed] == [0, 1, 2, 0, 1, 2, 3]
    assert len(set(processed)) == 4


def test_a_jdbc_writer_that_cannot_connect_names_no_password(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(3))
    options = {"url": "jdbc:nothing://db/x?user=me&password=hunter-2", "dbtable": "orders"}
    with pytest.raises(DeliveryError) as caught:
        run(spark, place, Delivery(wrap.spark_writer("jdbc", options), retry=Retry(attempts=1)))
    assert "spark_writer('jdbc'" in str(caught.value)
    assert "hunter-2" not in str(caught.value)


def test_a_batch_that_was_given_up_comes_to_the_next_run_with_the_same_rows(
    spark: SparkSession, place: Home, notes: Notes
) -> None:
    place.feed.add(range(4))
    notes.plan_trouble("batch", times=1)
    note = noting(notes)

    def write(df: DataFrame, batch_id: int) -> None:
        note(df, batch_id)
        notes.trouble("batch")

    with pytest.raises(WalSinkError):
        run(spark, place, Delivery(wrap.foreach_batch(write), retry=Retry(attempts=1)), "uuid()")
    run(spark, place, wrap.foreach_batch(write), "uuid()")
    first, again = notes.all()
    assert first["rows"] == again["rows"]


@pytest.mark.parametrize("whole", [False, True], ids=["chunk by chunk", "as whole batches"])
def test_a_sink_whose_batch_lost_a_segment_is_parked_and_the_other_goes_on(
    spark: SparkSession, place: Home, whole: bool
) -> None:
    target = place.troubled()

    def collected(batch: DataFrame, _: int) -> None:
        batch.collect()
        if place.trouble.exists():
            raise OSError("down")

    def run() -> None:
        lost = Delivery(wrap.foreach_batch(collected) if whole else target, on_failure="park", retry=Retry(attempts=1))
        place.run(spark, {"a": Lines(place.root / "a.jsonl"), "b": lost})

    place.feed.add([1, 2])
    with pytest.raises(UndeliveredError, match=r"sink 'b' of .* is parked"):
        run()
    place.trouble.unlink()
    place.object("batches/*/*/*.parquet").unlink()
    place.feed.add([3])

    with pytest.raises(UndeliveredError, match=r"sink 'b' of .* is parked, .*parquet"):
        run()

    assert [number for sent in Lines(place.root / "a.jsonl").sent() for number in sent.ids] == [1, 2, 3]

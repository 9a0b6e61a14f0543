"""Wrapped writers of Python data sources end to end. Spark 3.5 has no Python data source."""

from __future__ import annotations

import json
import os
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.house.spark import version_of
from tests.support.data_source_writers import LateWriter, RowWriter, SilentWriter
from tests.support.servers.s3_server import S3Server
from tests.support.streams import Home, flip
from tests.support.writers import Notes
from wal_sink import CorruptError, Delivery, DeliveryError, Retry, Settings, wrap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS, ARROW = "tests.support.data_source_writers", "tests.support.arrow_writers"
WRITERS = [ROWS, *([ARROW] if version_of(pyspark.__version__) >= (4, 1) else [])]
"""Modules with a writer of rows, and one of record batches, which Spark 4.0 does not have."""


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture(params=["local", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Home, dict[str, Any]]:
    """A place with its WAL on disk or on S3, which Spark itself has no connector for, and the options of its store."""
    if request.param == "local":
        return Home(tmp_path), {}
    server: S3Server = request.getfixturevalue("s3_server")
    return Home(tmp_path, request.getfixturevalue("s3_url")), {"storage_options": server.storage_options}


def run(spark: SparkSession, place: Home, to: object, *columns: str, **options: Any) -> None:
    """Run the feed's stream once, with `columns` as well as `id`."""
    with place.sink(to, **options) as sink:
        sink.run(place.feed.stream(spark).selectExpr("id", *columns).writeStream.trigger(availableNow=True))


@pytest.mark.parametrize("module", WRITERS)
def test_a_data_source_writer_writes_on_executors_and_commits_on_the_driver(
    spark: SparkSession, where: tuple[Home, dict[str, Any]], notes: Notes, module: str
) -> None:
    place, options = where
    writer = import_module(module).RowWriter if module == ROWS else import_module(module).ArrowWriter
    place.feed.add(range(4), [7])
    settings = Settings(chunk_rows=1, segment_bytes=1)
    run(spark, place, wrap.data_source_writer(writer(notes)), settings=settings, **options)
    commits = notes.all("commit")
    assert [note["batch"] for note in commits] == [0, 1]
    assert [list(chain.from_iterable(note["messages"])) for note in commits] == [[0, 1, 2, 3], [7]]
    assert len(commits[0]["messages"]) > 1
    assert [note["batch"] for note in notes.all("write")] == ["0"] * len(commits[0]["messages"]) + ["1"]
    assert {note["pid"] for note in commits} == {os.getpid()}
    assert os.getpid() not in {note["pid"] for note in notes.all("write")}
    assert not notes.all("abort")


def test_a_failed_write_aborts_with_the_messages_there_are(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(4))
    notes.plan_trouble("write-1")
    settings = Settings(chunk_rows=1, segment_bytes=1)
    run(spark, place, wrap.data_source_writer(RowWriter(notes)), settings=settings)
    (abort,) = notes.all("abort")
    (commit,) = notes.all("commit")
    assert abort["batch"] == commit["batch"] == 0
    assert [None if 1 in message else message for message in commit["messages"]] == abort["messages"]


def test_an_empty_batch_is_committed_without_messages(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(4))
    with place.sink(wrap.data_source_writer(RowWriter(notes))) as sink:
        sink.run(place.feed.stream(spark).where("id > 9").writeStream.trigger(availableNow=True))
    assert [(note["what"], note.get("messages")) for note in notes.all()] == [("commit", [])]


def test_a_failed_commit_aborts_with_the_same_messages(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(4))
    notes.plan_trouble("commit", times=2)
    notes.plan_trouble("abort")  # which is only logged
    run(spark, place, wrap.data_source_writer(RowWriter(notes)))
    assert [note["what"] for note in notes.all() if note["what"] != "write"] == ["commit", "abort"] * 2 + ["commit"]
    assert {json.dumps(note["messages"]) for note in notes.all() if note["what"] != "write"} == {"[[0, 1, 2, 3]]"}


def test_a_commit_that_returns_a_coroutine_is_no_commit(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(3))
    with pytest.raises(DeliveryError, match="commit returned a coroutine, which wal-sink would never run"):
        run(spark, place, wrap.data_source_writer(LateWriter(notes)))
    assert len(notes.all("abort")) == 1


def test_a_write_without_a_message_is_refused_for_good(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(4))
    with pytest.raises(DeliveryError, match=r"write\(\) returned NoneType, but PySpark expects a WriterCommitMessage"):
        run(spark, place, wrap.data_source_writer(SilentWriter(notes)))
    assert [note["messages"] for note in notes.all()] == [[None]]


def test_a_damaged_segment_aborts_and_is_named(spark: SparkSession, place: Home, notes: Notes) -> None:
    place.feed.add(range(4))
    notes.plan_trouble("commit", times=99)
    with pytest.raises(DeliveryError):
        run(spark, place, Delivery(wrap.data_source_writer(RowWriter(notes)), retry=Retry(attempts=1)))
    flip(place.object("batches/*/*/*.parquet"))
    with pytest.raises(CorruptError, match="CRC-32"):
        run(spark, place, wrap.data_source_writer(RowWriter(notes)))
    assert notes.all()[-1]["what"] == "abort"
    assert notes.all()[-1]["messages"] == [None]

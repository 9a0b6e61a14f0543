"""Drivers killed in the middle of a stream, and one that another takes over from: what the target holds is counted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.killed_drivers import Served, kill_twice, lost_and_doubled
from tests.support.processes import Child
from tests.support.servers.seaweedfs import SeaweedServer
from tests.support.streams import SESSION, Home, small_chunks
from tests.support.writers import Notes, noting
from wal_sink import wrap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CHUNK_ROWS, ROWS = 10, 40

SLOW_DRIVER = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home, Lines, small_chunks
place = Home(Path(sys.argv[1]))
to = Lines(place.root / "out.jsonl", trouble=place.trouble)
with place.sink(to, settings=small_chunks(10)) as sink:
    sink.run(place.feed.stream(spark).writeStream)
"""
)

KILLED_BY_ITS_WRITER = (
    SESSION.format(master="local[2]")
    + """
import os, signal, sys
from pathlib import Path
from tests.support.streams import Home
from tests.support.writers import Notes, noting
from wal_sink import wrap
place = Home(Path(sys.argv[1]))
note = noting(Notes(place.root / "notes"))
def write(df, batch_id):
    note(df, batch_id)
    os.kill(os.getpid(), signal.SIGKILL)
with place.sink(wrap.foreach_batch(write)) as sink:
    sink.run(place.writer(spark, columns=("uuid()",)))
"""
)


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_two_killed_drivers_with_the_wal_on_s3_lose_and_repeat_no_row_in_sqlite(
    seaweedfs: SeaweedServer, tmp_path: Path
) -> None:
    wal, prefix = f"s3://{seaweedfs.bucket}/{tmp_path.name}", f"{tmp_path.name}/"

    def objects() -> list[str]:
        found = seaweedfs.client().list_objects_v2(Bucket=seaweedfs.bucket, Prefix=prefix).get("Contents", [])
        return [entry["Key"].removeprefix(prefix) for entry in found]

    query = Served(tmp_path, wal, str(tmp_path / "checkpoint"), objects, seaweedfs.storage_options)
    kill_twice([query], tmp_path)
    assert lost_and_doubled(query) == (set(), set())


def test_a_driver_that_hangs_is_taken_over_and_ends_with_an_error(spark: SparkSession, place: Home) -> None:
    place.feed.add(range(ROWS), range(ROWS, 2 * ROWS))
    place.trouble.write_text("hang")
    with Child.python(SLOW_DRIVER, place.root, log=place.root / "driver") as child:
        child.wait_until((place.checkpoint / "commits" / "1").exists, "both batches are complete")
        place.run(spark, settings=small_chunks(CHUNK_ROWS))
        assert place.lines.ids() == list(range(2 * ROWS))
        place.trouble.unlink()
        assert child.wait() != 0
        assert "FencedError" in child.output
    assert sorted(set(place.lines.ids())) == list(range(2 * ROWS))
    assert place.lines.repeats() <= 1, "the chunk that the driver held"


def test_after_a_crash_in_the_middle_a_wrapped_writer_gets_the_same_rows_again(
    spark: SparkSession, place: Home
) -> None:
    place.feed.add(range(20), range(20, 25))
    with Child.python(KILLED_BY_ITS_WRITER, place.root, log=place.root / "driver") as child:
        assert child.wait() == -9
    notes = Notes(place.root / "notes")
    with place.sink(wrap.foreach_batch(noting(notes))) as sink:
        sink.run(place.writer(spark, columns=("uuid()",)))
    first, again, last = notes.all()
    assert (first["batch"], again["batch"], last["batch"]) == (0, 0, 1)
    assert first["rows"] == again["rows"]
    assert first["pid"] != again["pid"]

"""Spark's own files, as real Sparks write them: which batch reads what, and batches that no query ran."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.streams import Home
from wal_sink import HistoryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_restored_checkpoint_with_other_files_is_refused_in_offset_log_2(spark: SparkSession, place: Home) -> None:
    """Before: its offsets were equal and its files were not looked at, so that its rows were dropped as a replay."""
    place.feed.add([1], [2])
    spark.conf.set(OFFSET_LOG, "2")
    try:
        place.run(spark)
        forget_commit(place, 1)
        log = place.checkpoint / "sources" / "0" / "1"
        other = place.feed.folder / "000002other.json"
        other.write_text('{"id": 7}\n')
        version, line = log.read_text().split("\n")
        rewrite(log, "\n".join([version, json.dumps({**json.loads(line), "path": other.as_uri()})]))

        with pytest.raises(HistoryError, match="batch 1 of"):
            place.run(spark)
    finally:
        spark.conf.unset(OFFSET_LOG)
    assert place.lines.ids() == [1, 2]


def test_a_replay_of_another_number_of_rows_is_told(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A file overwritten in place, with the same time: nothing else shows it. Before: not a word."""
    place.feed.add([1], [2, 3, 4])
    place.run(spark)
    forget_commit(place, 1)
    file = place.feed.folder / "000001.json"
    modified = file.stat().st_mtime_ns
    file.write_text('{"id": 2}\n')
    os.utime(file, ns=(modified, modified))

    with caplog.at_level(logging.WARNING, logger="wal_sink"):
        place.run(spark)

    (told,) = [record.getMessage() for record in caplog.records if "replay" in record.getMessage()]
    assert "batch 1: the replay had 1 rows, but 3 rows were released. The sinks receive the released rows" in told
    assert place.lines.ids() == [1, 2, 3, 4]


def test_a_file_that_was_deleted_between_two_attempts_is_told(
    spark: SparkSession, place: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark replays the batch without the file, and fails no job. Before: not a word, though the WAL had the rows."""
    place.feed.add([1], [2, 3], [4])

    def dies(df: DataFrame, batch_id: int) -> None:
        sink.stage(df, batch_id)
        if batch_id == 1:
            raise RuntimeError("the driver died")

    with contextlib.suppress(StreamingQueryException), place.sink() as sink:
        writer = place.writer(spark).option("checkpointLocation", str(place.checkpoint))
        writer.foreachBatch(dies).start().awaitTermination()
    (place.feed.folder / "000001.json").unlink()

    with caplog.at_level(logging.WARNING, logger="wal_sink"):
        place.run(spark)

    (told,) = [record.getMessage() for record in caplog.records if "staged again" in record.getMessage()]
    assert "was staged again with 0 rows. The sinks receive these rows. An earlier attempt" in told
    assert "had 2 rows from the same input" in told
    assert place.lines.ids() == [1, 4]


def forget_commit(place: Home, batch_id: int) -> None:
    """As if Spark had died between the sink and the commit."""
    for name in (f"{batch_id}", f".{batch_id}.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

"""A query whose checkpoint is lost: the WAL delivers what it holds, and Spark starts no query from the new folder. And
one of which a crash of the machine emptied a file: the query goes on as `docs/operations/repair.md` says.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import Log, note_end, paths
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.streams import Home
from wal_sink import CorruptError, HistoryError, WalSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.writelines(f"{number}\\n" for number in chunk.table["id"].to_pylist())
"""


def command(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, args)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_lost_checkpoint(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settling_targets.py").write_text(MODULE)
    place = Home(tmp_path)
    place.feed.add([1, 2], [3], [4, 5])
    with WalSink(None, wal=str(place.wal), checkpoint=str(place.checkpoint)) as sink:
        sink.run(place.writer(spark))
    shutil.rmtree(place.checkpoint)
    with pytest.raises(HistoryError, match="wal-sink settle"):
        place.run(spark)
    shutil.rmtree(place.checkpoint, ignore_errors=True)
    rest = tmp_path / "rest"
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    _note_that_its_query_ended(place.wal)

    assert "is a checkpoint for drains" in command("settle", place.wal, rest, "--newest", "complete", "--take-over")

    drain = ("--checkpoint", rest, "--to", "settling_targets:take", "--start-from", "earliest")
    command("drain", place.wal, *drain)
    assert sorted(map(int, (tmp_path / "taken.txt").read_text().split())) == [1, 2, 3, 4, 5]
    place.feed.add([6])
    query = place.writer(spark).format("noop").option("checkpointLocation", str(rest)).start()
    with pytest.raises(StreamingQueryException, match="v2147483647"):
        query.awaitTermination()


def _note_that_its_query_ended(wal: Path) -> None:
    """The query ran in this process, which lives on. In truth it would have ended."""
    log = Log(open_store(StoreSpec(str(wal))), SYSTEM, "test")
    for role in log.store.list(paths.TERMS):
        for number in log.numbers(f"{paths.TERMS}/{role}".rstrip("/")):
            note_end(log, role.rstrip("/"), number)


@pytest.mark.parametrize(
    ("emptied", "said"),
    [
        (["metadata"], r"expected Spark's query id, found b''.*wal-sink status shows"),
        (["commits/2"], "Incomplete log file"),
        (["offsets/2", "commits/2"], "expected a version line, a line of metadata and a line for each source"),
    ],
    ids=["metadata", "the newest commit", "the newest offsets"],
)
def test_a_checkpoint_with_an_emptied_file(spark: SparkSession, tmp_path: Path, emptied: list[str], said: str) -> None:
    place = Home(tmp_path)
    place.feed.add([1, 2], [3])
    place.run(spark)
    place.feed.add([4])
    with WalSink(None, wal=str(place.wal), checkpoint=str(place.checkpoint)) as sink:
        sink.run(place.writer(spark))  # a batch that no sink has
    metadata = (place.checkpoint / "metadata").read_text()
    for name in emptied:
        at = place.checkpoint / name
        at.write_bytes(b"")
        (at.parent / f".{at.name}.crc").unlink(missing_ok=True)
    place.feed.add([5])
    with pytest.raises((CorruptError, StreamingQueryException), match=said):
        place.run(spark)

    for name in emptied:
        (place.checkpoint / name).unlink()
    if emptied == ["metadata"]:
        (place.checkpoint / "metadata").write_text(metadata)
    place.run(spark)

    assert sorted(number for sent in place.lines.sent() for number in sent.ids) == [1, 2, 3, 4, 5]

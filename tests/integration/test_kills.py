"""Drivers that end in every way a process can: what the target holds afterwards is counted."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

from tests.components import require
from tests.integration.streams import SESSION, Place, leading, small_chunks
from tests.processes import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS_PER_BATCH = 40
CHUNK_ROWS = 10
KILLS = 4
EXIT_S = 30.0

DRIVER = """
import sys
from pathlib import Path
import wal_sink.walsink
from wal_sink import Delivery
from tests.integration.streams import Lines, Place, small_chunks

wal_sink.walsink.GRACE_S = 3.0
place = Place(Path(sys.argv[1]))
where, pause_s, slow_s = sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
to = Delivery(Lines(place.root / "out.jsonl", pause_s=pause_s, trouble=place.trouble), where=where)

def slowly(batches):
    import time
    for batch in batches:
        time.sleep(slow_s)
        yield batch

df = place.feed.stream(spark)
if slow_s:
    df = df.mapInArrow(slowly, "id long")
print("ready", flush=True)
try:
    with place.sink(to, settings=small_chunks(10)) as sink:
        sink.run(df.writeStream)
except BaseException as error:
    print("left by", type(error).__name__, error, flush=True)
    raise
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def driver(place: Place, number: int = 0, *, where: str = "auto", pause_s: float = 0.0, slow_s: float = 0.0) -> Child:
    program = SESSION.format(master="local[2]") + DRIVER
    return Child.python(program, place.root, where, str(pause_s), str(slow_s), log=place.root / f"driver-{number}.log")


def fed(place: Place, batches: int) -> list[int]:
    """Fill the feed; every id that must arrive."""
    place.feed.add(*(range(n * ROWS_PER_BATCH, (n + 1) * ROWS_PER_BATCH) for n in range(batches)))
    return list(range(batches * ROWS_PER_BATCH))


def delivered(place: Place) -> int:
    return leading(place.lines.ids())


def assert_all_arrived(place: Place, ids: list[int], *, crashes: int) -> None:
    """Every id at least once, and of each crash at most the chunk in hand twice (the query has one segment a batch)."""
    assert sorted(set(place.lines.ids())) == ids
    assert place.lines.repeats() <= crashes
    assert len(place.lines.ids()) <= len(ids) + crashes * CHUNK_ROWS


def test_a_driver_killed_at_random_moments_loses_nothing_and_repeats_a_chunk_at_most(
    spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    moments = random.Random(seed)
    with capsys.disabled():
        print(f"[kills: seed {seed}]", end=" ")  # noqa: T201 - replays a failure
    ids = fed(place, batches=20)
    for number in range(KILLS):
        with driver(place, number, where=moments.choice(["driver", "executors"]), pause_s=0.05) as child:
            before = delivered(place)
            child.wait_until(lambda before=before: delivered(place) > before, "rows arrived")  # type: ignore[misc]
            time.sleep(moments.uniform(0, 0.8))
            child.kill()
            assert "left by" not in child.output
    place.run(spark)
    assert_all_arrived(place, ids, crashes=KILLS)


def test_a_driver_ended_by_sigterm_is_as_one_killed(spark: SparkSession, place: Place) -> None:
    ids = fed(place, batches=3)
    with driver(place, pause_s=0.1) as child:
        child.wait_until(lambda: delivered(place) > 0, "rows arrived")
        child.send(signal.SIGTERM)
        assert child.wait(EXIT_S) == -signal.SIGTERM
    place.run(spark)
    assert_all_arrived(place, ids, crashes=1)


def test_ctrl_c_in_staging_leaves_soon_and_the_batch_comes_with_the_next_start(
    spark: SparkSession, place: Place
) -> None:
    ids = fed(place, batches=2)
    with driver(place, slow_s=120.0) as child:
        child.wait_until((place.checkpoint / "offsets" / "0").exists, "the batch began")
        time.sleep(1.0)
        assert_leaves_by_ctrl_c(child)
    assert place.lines.sent() == []
    place.run(spark)
    assert_all_arrived(place, ids, crashes=0)


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_ctrl_c_in_delivery_leaves_soon_although_the_sink_hangs(spark: SparkSession, place: Place, where: str) -> None:
    ids = fed(place, batches=2)
    place.trouble.write_text("hang")
    with driver(place, where=where) as child:
        child.wait_until((place.checkpoint / "commits" / "1").exists, "both batches complete")
        time.sleep(0.5)
        assert_leaves_by_ctrl_c(child)
        child.kill()
    place.trouble.unlink()
    place.run(spark)
    assert_all_arrived(place, ids, crashes=1)


def assert_leaves_by_ctrl_c(child: Child) -> None:
    child.interrupt()
    assert child.wait(EXIT_S) != 0
    assert "left by KeyboardInterrupt" in child.output


UNCLOSED = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.integration.streams import Lines, Place, wait_until
place = Place(Path(sys.argv[1]))
with place.sink() as first:
    query = first.start(place.feed.stream(spark).writeStream)
    query.processAllAvailable()
    spark.stop()
print("delivered", len(place.lines.ids()), flush=True)
spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
place.feed.add(range(40, 80))
second = place.sink(Lines(place.root / "out.jsonl", pause_s=0.2))
second.start(place.feed.stream(spark).writeStream)
wait_until(lambda: len(place.lines.ids()) > 40, "the second run delivers")
print("end of the program", flush=True)
"""
)


def test_a_program_that_stops_spark_too_early_or_never_closes_still_ends_and_loses_nothing(
    spark: SparkSession, place: Place
) -> None:
    ids = fed(place, batches=1)
    with Child.python(UNCLOSED, place.root, log=place.root / "log") as child:
        child.wait_for_output("end of the program")
        assert child.wait(EXIT_S) == 0
        assert f"delivered {len(ids)}" in child.output
    place.run(spark)
    assert_all_arrived(place, [*ids, *range(40, 80)], crashes=1)


CLUSTER = (
    SESSION
    + """
import sys
from pathlib import Path
from wal_sink import Delivery
from tests.integration.streams import Lines, Place, kill_executor, small_chunks
place = Place(Path(sys.argv[1]))
place.feed.add(*(range(n * 40, n * 40 + 40) for n in range(4)))

def deadly(batches):
    for batch in batches:
        if 50 in batch.column(0).to_pylist():
            kill_executor(place.root / "killed-in-staging")
        yield batch

class Deadly(Lines):
    def write(self, chunk):
        super().write(chunk)
        if 135 in chunk.table.column(0).to_pylist():
            kill_executor(self.path.with_name("killed-in-delivery"))

df = place.feed.stream(spark).repartition(2).mapInArrow(deadly, "id long")
with place.sink(Delivery(Deadly(place.root / "out.jsonl"), where="executors"), settings=small_chunks(10)) as sink:
    sink.run(df.writeStream.trigger(availableNow=True))
"""
)


def test_executors_killed_while_they_stage_and_deliver_lose_nothing(place: Place) -> None:
    require(Path("/proc/self/stat").exists(), "finding a worker's executor needs /proc")
    home = Path(pyspark.__file__).parent
    program = CLUSTER.format(master="local-cluster[2,1,1024]")
    with Child.python(program, place.root, log=place.root / "log", env={"SPARK_HOME": str(home)}) as child:
        child.succeed()
    assert {path.name for path in place.root.glob("killed-*")} == {"killed-in-staging", "killed-in-delivery"}
    assert_all_arrived(place, list(range(160)), crashes=1)


def test_of_two_live_drivers_the_earlier_ends_with_an_error_and_nothing_is_lost(
    spark: SparkSession, place: Place
) -> None:
    ids = fed(place, batches=6)
    with driver(place, where="driver", pause_s=0.2) as first:
        first.wait_until(lambda: delivered(place) > 0, "rows arrived")
        with suppress(StreamingQueryException):  # Spark lets one of the two write the checkpoint, whichever is first
            place.run(spark, settings=small_chunks(CHUNK_ROWS))
        place.feed.add(range(1000, 1005))
        assert first.wait(EXIT_S) != 0
        assert "left by FencedError" in first.output or "CONCURRENT_STREAM_LOG_UPDATE" in first.output
    place.run(spark)
    assert_all_arrived(place, [*ids, *range(1000, 1005)], crashes=2)


def test_a_driver_that_slept_while_its_successor_finished_sends_no_more_than_the_chunk_in_its_hand(
    spark: SparkSession, place: Place
) -> None:
    require(hasattr(signal, "SIGSTOP"), "this system has no SIGSTOP")
    ids = fed(place, batches=4)
    with driver(place, where="driver", pause_s=0.2) as sleeper:
        sleeper.wait_until(lambda: delivered(place) > 0, "rows arrived")
        sleeper.send(signal.SIGSTOP)
        place.run(spark)
        before = len(place.lines.sent())
        sleeper.send(signal.SIGCONT)
        assert sleeper.wait(EXIT_S) != 0
        assert "left by FencedError" in sleeper.output
    assert len(place.lines.sent()) - before <= 1
    assert_all_arrived(place, ids, crashes=1)

"""Drivers that end by SIGTERM, by Ctrl-C, or too early: what the target holds afterwards is counted.

Those that are killed, sleep, or meet another driver are scenarios of `make chaos`, see `tests/chaos/test_small.py`.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Child
from tests.support.streams import SESSION, Home, Lines, leading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS_PER_BATCH = 40
CHUNK_ROWS = 10
EXIT_S = 90.0
"""Less than what the program would wait for if a signal did not end it."""

DRIVER = """
import sys
from pathlib import Path
import wal_sink.spark.committers
import wal_sink.walsink
from wal_sink import Delivery
from tests.support.streams import Lines, Home, small_chunks

wal_sink.spark.committers.GRACE_S = 3.0
place = Home(Path(sys.argv[1]))
where, pause_s, slow_s = sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
names = {"out": "auto"} if where == "auto" else {"driver": "driver", "executors": "executors"}
to = {name: Delivery(Lines(place.root / f"{name}.jsonl", pause_s=pause_s, trouble=place.trouble), where=one)
      for name, one in names.items()}
to = to.get("out", to)

def slowly(batches):
    import time
    (place.root / "staging").touch()
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
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def driver(place: Home, *, where: str = "auto", pause_s: float = 0.0, slow_s: float = 0.0, setup: str = "") -> Child:
    program = SESSION.format(master="local[2]") + setup + DRIVER
    return Child.python(program, place.root, where, str(pause_s), str(slow_s), log=place.root / "driver.log")


def fed(place: Home, batches: int) -> list[int]:
    """Fill the feed; every id that must arrive."""
    place.feed.add(*(range(n * ROWS_PER_BATCH, (n + 1) * ROWS_PER_BATCH) for n in range(batches)))
    return list(range(batches * ROWS_PER_BATCH))


def delivered(place: Home) -> int:
    return leading(place.lines.ids())


def nothing_is_pending(place: Home) -> bool:
    (sink,) = place.sink(None).status().sinks
    return sink.pending_batches == 0


def assert_all_arrived(place: Home, ids: list[int], *, crashes: int) -> None:
    assert_arrived(place.lines, ids, crashes=crashes)


def assert_arrived(lines: Lines, ids: list[int], *, crashes: int) -> None:
    """Every id at least once, and of each crash at most the chunk in hand twice (the query has one segment a batch)."""
    assert sorted(set(lines.ids())) == ids
    assert lines.repeats() <= crashes
    assert len(lines.ids()) <= len(ids) + crashes * CHUNK_ROWS


def test_a_driver_ended_by_sigterm_is_as_one_killed(spark: SparkSession, place: Home) -> None:
    ids = fed(place, batches=3)
    with driver(place, pause_s=0.1) as child:
        child.wait_until(lambda: delivered(place) > 0, "rows arrived")
        child.send(signal.SIGTERM)
        assert child.wait(EXIT_S) == -signal.SIGTERM
    place.run(spark)
    assert_all_arrived(place, ids, crashes=1)


EXITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
"""
"""A handler that raises, wherever the main thread is."""


@pytest.mark.parametrize("slow_s", [0.0, 120.0], ids=["while the query waits for rows", "amid staging"])
def test_a_handler_of_sigterm_that_raises_ends_a_run_soon(spark: SparkSession, place: Home, slow_s: float) -> None:
    ids = fed(place, batches=2)
    with driver(place, slow_s=slow_s, setup=EXITS) as child:
        if slow_s:
            child.wait_until((place.root / "staging").exists, "staging began")
        else:
            child.wait_until(lambda: delivered(place) == len(ids), "all rows arrived")
            child.wait_until(lambda: nothing_is_pending(place), "and that is recorded, or they would come again")
        time.sleep(1.0)
        child.send(signal.SIGTERM)
        assert child.wait(EXIT_S) == 7
        assert "left by SystemExit 7" in child.output
    place.run(spark)
    assert_all_arrived(place, ids, crashes=0)


def test_ctrl_c_in_staging_leaves_soon_and_the_batch_comes_with_the_next_start(
    spark: SparkSession, place: Home
) -> None:
    ids = fed(place, batches=2)
    with driver(place, slow_s=120.0) as child:
        child.wait_until((place.root / "staging").exists, "staging began")
        time.sleep(1.0)
        assert_leaves_by_ctrl_c(child)
    assert place.lines.sent() == []
    place.run(spark)
    assert_all_arrived(place, ids, crashes=0)


def test_ctrl_c_in_delivery_leaves_soon_although_the_sinks_hang(spark: SparkSession, place: Home) -> None:
    """One that the driver calls, and one that the executors call."""
    ids = fed(place, batches=2)
    sinks = {name: Lines(place.root / f"{name}.jsonl") for name in ("driver", "executors")}
    place.trouble.write_text("hang")
    with driver(place, where="each") as child:
        child.wait_until((place.checkpoint / "commits" / "1").exists, "both batches complete")
        time.sleep(0.5)
        assert_leaves_by_ctrl_c(child)
        child.kill()
    place.trouble.unlink()
    place.run(spark, sinks)
    for lines in sinks.values():
        assert_arrived(lines, ids, crashes=1)


def assert_leaves_by_ctrl_c(child: Child) -> None:
    child.interrupt()
    assert child.wait(EXIT_S) != 0
    assert "left by KeyboardInterrupt" in child.output
    assert re.search(
        r"was ended by KeyboardInterrupt before its query ended: (no batch is|\d+ batch(es)?) pending", child.output
    )


UNCLOSED = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Lines, Home, small_chunks
from tests.support.waiting import wait_until
place = Home(Path(sys.argv[1]))
with place.sink() as first:
    query = first.start(place.feed.stream(spark).writeStream)
    query.processAllAvailable()
    spark.stop()
print("delivered", len(place.lines.ids()), flush=True)
spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
place.feed.add(range(40, 80))
second = place.sink(Lines(place.root / "out.jsonl", pause_s=0.2), settings=small_chunks(10))
second.start(place.feed.stream(spark).writeStream)
wait_until(lambda: len(place.lines.ids()) > 40, "the second run delivers", timeout_s=200)
print("end of the program", flush=True)
"""
)


def test_a_program_that_stops_spark_too_early_or_never_closes_still_ends_and_loses_nothing(
    spark: SparkSession, place: Home
) -> None:
    ids = fed(place, batches=1)
    with Child.python(UNCLOSED, place.root, log=place.root / "log") as child:
        child.wait_for_output("end of the program")
        assert child.wait(EXIT_S) == 0
        assert f"delivered {len(ids)}" in child.output
    place.run(spark)
    assert_all_arrived(place, [*ids, *range(40, 80)], crashes=1)

"""A speculative copy of a delivery task, on a cluster whose executors have different hosts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.lasting import Lasting, Program
from tests.support.processes import POLL_S, executor_of
from tests.support.servers.standalone import Standalone, standalone
from tests.support.streams import Home, Lines
from wal_sink import Chunk, TransactionalSink
from wal_sink.sinks import Position

pytestmark = pytest.mark.spark

ROWS = 40
CHUNK_ROWS = 10
SLOW_S = 1.0
CALL_S = 6 * SLOW_S
"""The limit of a call: less than a share of eight slow chunks, and more than a call on a slow machine."""
HOLDS = "holds"
DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF, stage_partitions_apart
from tests.support.lasting import wait_for_executors
from tests.support.streams import Home
from tests.integration import test_speculation
from tests.integration.test_speculation import CHUNK_ROWS, CONF
from wal_sink import Delivery, Retry, Settings

spark = SparkSession.builder.master(sys.argv[2]).config(map={**SPARK_CONF, **CONF}).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
wait_for_executors(spark, 2)
stage_partitions_apart()
place = Home(Path(sys.argv[1]))
made = getattr(test_speculation, sys.argv[4])(place.root / "out.jsonl", calls=place.root / "calls")
to = Delivery(made, where="executors", retry=Retry(attempt_timeout_s=float(sys.argv[3])))
settings = Settings(chunk_rows=CHUNK_ROWS, max_delivery_tasks=2)
with place.sink(to, settings=settings) as sink:
    sink.run(place.feed.stream(spark).repartition(2).writeStream.trigger(availableNow=True))
"""
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
}


@dataclass(frozen=True)
class Uneven(Lines):
    """Takes the second segment slowly, and notes who takes it. A file named `HOLDS` holds it longer."""

    calls: Path = Path()

    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        if chunk.position.slot.endswith("/1"):
            with self.calls.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(SLOW_S)
            while self.calls.with_name(HOLDS).exists():
                time.sleep(POLL_S)


@dataclass(frozen=True)
class UnevenLedger(Uneven, TransactionalSink):
    """The same, whose lines hold the position beside the rows: one write is both. It tells what it has of a slot."""

    def write(self, chunk: Chunk) -> None:
        at = chunk.position
        if self.last(at.slot) != at:
            with self.path.with_name(f"ledger-{at.slot.replace('/', '-')}").open("a") as file:
                file.write(json.dumps([at.slot, at.batch_id, at.rows, at.segment_id]) + "\n")
            super().write(chunk)

    def last(self, slot: str) -> Position | None:
        ledger = self.path.with_name(f"ledger-{slot.replace('/', '-')}")
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return Position(*json.loads(lines[-1])) if lines else None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), cores=1) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Program]]:
    """Yield a function that starts a query with a kind of sink. The queries of all tests have one driver."""
    with Lasting(tmp_path_factory.mktemp("queries") / "driver", limit_s=300) as lasting:
        yield lambda place, *, timeout_s, sink=Uneven: lasting.start(
            DRIVER, place.root, cluster.url, str(timeout_s), sink.__name__
        )


SINKS = pytest.mark.parametrize("sink", [Uneven, UnevenLedger])


def test_a_speculative_copy_of_a_delivery_task_repeats_nothing_in_a_healthy_run(
    driver: Callable[..., Program], tmp_path: Path
) -> None:
    place = Home(tmp_path)
    place.feed.add(range(ROWS))
    with driver(place, timeout_s=60) as child:
        child.succeed()
    assert place.lines.ids() == list(range(ROWS))
    assert len(set(place.root.joinpath("calls").read_text().split())) == 1


@SINKS
def test_a_copy_waits_as_long_as_the_original_records_chunks(
    driver: Callable[..., Program], tmp_path: Path, sink: type[Uneven]
) -> None:
    """The share takes longer than a call may, and none of its calls does."""
    place = Home(tmp_path)
    place.feed.add(range(4 * ROWS))
    with driver(place, timeout_s=CALL_S, sink=sink) as child:
        child.succeed()
    assert place.lines.ids() == list(range(4 * ROWS))
    assert len(set(place.root.joinpath("calls").read_text().split())) == 1


@SINKS
def test_where_the_executor_of_the_original_is_dead_a_copy_does_not_wait_for_ever(
    driver: Callable[..., Program], tmp_path: Path, sink: type[Uneven]
) -> None:
    place = Home(tmp_path)
    place.feed.add(range(ROWS))
    calls, holds = place.root / "calls", place.root / HOLDS
    holds.touch()  # so that the query does not end before its executor is killed
    with driver(place, timeout_s=CALL_S, sink=sink) as child:
        child.wait_until(lambda: calls.exists() and calls.read_text().endswith("\n"), "the slow segment is under way")
        os.kill(executor_of(int(calls.read_text().split()[0])), signal.SIGKILL)
        holds.unlink()
        child.succeed()
    sent = place.lines.sent()
    assert sorted(set(place.lines.ids())) == list(range(ROWS))
    assert len({(each.key, each.term) for each in sent}) == len(sent)
    assert place.lines.repeats() <= 1

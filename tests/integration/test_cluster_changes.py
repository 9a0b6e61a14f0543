"""A standalone cluster that changes under a query: executors come and go, memory ends, the master restarts."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lasting import Lasting
from tests.support.processes import Child
from tests.support.servers.standalone import Executor, Standalone, standalone
from tests.support.streams import Home, Lines
from tests.support.waiting import wait_until
from wal_sink import Chunk
from wal_sink_backends import SqlSink

pytestmark = pytest.mark.spark

LIMIT_S = 300.0
SEGMENTS, CHUNK_ROWS = 2, 10
RECOVERY = "recovery"
"""The folder, beside the master's log, in which it keeps what it recovers."""
START = """
import sys
from pathlib import Path
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF, stage_partitions_apart
from tests.support.streams import Home
from tests.support.waiting import wait_until
from tests.integration.test_cluster_changes import CHUNK_ROWS, SEGMENTS, HungryLines, HungrySql, hungry
from wal_sink import Delivery, Settings

conf = {**SPARK_CONF, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
conf |= dict(word.split("=") for word in sys.argv[3:])
spark = SparkSession.builder.master(sys.argv[2]).config(map=conf).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
stage_partitions_apart()
place = Home(Path(sys.argv[1]))
sinks = {
    "plain": Delivery(HungryLines(place.root / "out.jsonl", root=place.root), where="executors"),
    "exact": Delivery(HungrySql(place.root), where="executors"),
}
rows = place.feed.stream(spark).repartition(SEGMENTS).mapInArrow(hungry(place.root), "id long")

def opened():
    return place.sink(sinks, settings=Settings(chunk_rows=CHUNK_ROWS))
"""
ONCE = """
with opened() as sink:
    sink.run(rows.writeStream.trigger(availableNow=True))
spark.stop()
"""
UNTIL_STOPPED = """
with opened() as sink:
    query = sink.start(rows.writeStream)
    wait_until((place.root / "stop").exists, "the test stops it", timeout_s=600)
    query.stop()
spark.stop()
"""


# These run in the workers. A file `once-WHAT-WHERE-ID` or `always-WHAT-WHERE-ID` tells what happens at a row.


def obey(root: Path, where: str, ids: Iterable[int | None]) -> None:
    """Take more memory than there is, or die as by the kernel's killer, if a file orders it for one of these rows."""
    for number in ids:
        for what, act in (("much", take_too_much), ("kill", die)):
            if (root / f"always-{what}-{where}-{number}").exists():
                act()
            try:
                (root / f"once-{what}-{where}-{number}").unlink()
            except FileNotFoundError:
                continue
            act()


def take_too_much() -> None:
    bytearray(1 << 40)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hungry(root: Path) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that passes everything on, and obeys."""

    def stage(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            obey(root, "staging", batch.column(0).to_pylist())
            yield batch

    return stage


@dataclass(frozen=True)
class HungryLines(Lines):
    """Obeys after a chunk shows, so that a record of it may be missing."""

    root: Path = Path()

    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        obey(self.root, "plain", chunk.table.column(0).to_pylist())


class HungrySql(SqlSink):
    """Obeys after the transaction, so that nobody learns of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"sqlite:///{root}/out.db", "rows")
        self._root = root

    def write(self, chunk: Chunk) -> Any:
        answer = super().write(chunk)
        obey(self._root, "exact", chunk.table.column(0).to_pylist())
        return answer


@pytest.fixture(scope="module")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose master finds workers and applications again, from files, when it is restarted."""
    folder = tmp_path_factory.mktemp("cluster")
    recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder / RECOVERY}"
    with standalone(folder, cores=1, master_options=recovery) as running:
        yield running


@pytest.fixture
def cluster(lasting_cluster: Standalone) -> Standalone:
    """The same cluster once the executors of the test before have ended."""
    wait_until(lambda: not lasting_cluster.executors(), "no executor is left", timeout_s=LIMIT_S)
    return lasting_cluster


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    """The process of all drivers that are not killed: one after the other, each with a Spark of its configuration."""
    with Lasting(tmp_path_factory.mktemp("drivers") / "process", limit_s=LIMIT_S, one_spark=False) as process:
        yield process


def words(program: str, place: Home, cluster: Standalone, **conf: str) -> list[str | Path]:
    """Return a driver's program and its arguments."""
    told = [f"spark.{name.replace('_', '.')}={value}" for name, value in conf.items()]
    return [START + program, place.root, cluster.url, *told]


def exact_rows(place: Home) -> list[int]:
    file = place.root / "out.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        if not connection.execute("select 1 from sqlite_master where name = 'rows'").fetchone():
            return []
        return sorted(row for (row,) in connection.execute("select id from rows"))


# Dynamic allocation.

BATCHES, BATCH_ROWS = 2, 40
DYNAMIC = {
    "dynamicAllocation_enabled": "true",
    "dynamicAllocation_shuffleTracking_enabled": "true",
    "dynamicAllocation_shuffleTracking_timeout": "1s",
    "dynamicAllocation_executorIdleTimeout": "1s",
    "dynamicAllocation_schedulerBacklogTimeout": "1s",
    "dynamicAllocation_minExecutors": "0",
    "dynamicAllocation_maxExecutors": "2",
}


def test_executors_that_come_and_go_between_batches_lose_and_repeat_nothing(
    cluster: Standalone, drivers: Lasting, tmp_path: Path
) -> None:
    """Between two batches there is no executor at all, and each batch runs on new ones."""
    place = Home(tmp_path)
    place.feed.add([0])  # the query needs a file to find the schema's folder
    seen: list[set[Executor]] = []

    def arrived(rows: int) -> bool:
        seen[-1].update(cluster.executors())
        return len(set(place.lines.ids())) == len(exact_rows(place)) == rows

    with drivers.start(*words(UNTIL_STOPPED, place, cluster, **DYNAMIC)) as child:
        for batch in range(BATCHES):
            seen.append(set())
            first = 1 + batch * BATCH_ROWS
            place.feed.add(range(first, first + BATCH_ROWS))
            child.wait_until(lambda: arrived(first + BATCH_ROWS), "the batch arrived")  # noqa: B023 - called here alone
            child.wait_until(lambda: not cluster.executors(), "its executors are gone")
        (place.root / "stop").touch()
        child.succeed()
    assert all(seen)
    assert len(set.union(*seen)) == sum(map(len, seen))
    whole = list(range(1 + BATCHES * BATCH_ROWS))
    assert place.lines.ids() == whole
    assert exact_rows(place) == whole


# Memory.


def test_workers_that_run_out_of_memory_once_in_staging_and_delivery_lose_nothing(
    cluster: Standalone, drivers: Lasting, tmp_path: Path
) -> None:
    """By Spark's own limit, which makes an allocation fail, and by SIGKILL, as the kernel ends a process."""
    place = Home(tmp_path)
    orders = [f"once-{what}-{where}" for what in ("much", "kill") for where in ("staging", "plain", "exact")]
    for batch, order in enumerate(orders):
        first = batch * BATCH_ROWS
        place.feed.add(range(first, first + BATCH_ROWS))
        (place.root / f"{order}-{first + 5}").touch()
    with drivers.start(*words(ONCE, place, cluster, executor_pyspark_memory="4g")) as child:
        child.succeed()
    whole = list(range(len(orders) * BATCH_ROWS))
    assert not list(place.root.glob("once-*")), "each order was obeyed"
    assert exact_rows(place) == whole
    assert sorted(set(place.lines.ids())) == whole
    assert place.lines.repeats() <= 2 * SEGMENTS, "the plain target was disturbed twice"


# A master that restarts.


def test_a_query_that_its_master_forgot_stands_still_and_loses_nothing_when_it_is_started_again(
    cluster: Standalone, tmp_path: Path
) -> None:
    """Without recovery the workers end the executors, and Spark neither gets others nor ends the query."""
    place = Home(tmp_path)

    def driver(text: str) -> Child:
        program, *arguments = words(text, place, cluster, cores_max="2")
        return Child.python(program, *arguments, log=tmp_path / "driver.log", limit_s=LIMIT_S)

    with driver(UNTIL_STOPPED) as child:
        place.feed.add(range(BATCH_ROWS))
        child.wait_until(lambda: len(exact_rows(place)) == BATCH_ROWS, "a batch arrived")
        cluster.restart_master(forgets=cluster.master.log.parent / RECOVERY)
        child.wait_until(lambda: not cluster.executors(), "its executors are gone")
        place.feed.add(range(BATCH_ROWS, 2 * BATCH_ROWS))
        child.wait_for_output("Lost executor", LIMIT_S)
        assert child.running
        child.kill()
    assert exact_rows(place) == list(range(BATCH_ROWS))
    with driver(ONCE) as child:
        child.succeed()
    whole = list(range(2 * BATCH_ROWS))
    assert exact_rows(place) == whole
    assert sorted(set(place.lines.ids())) == whole
    assert place.lines.repeats() <= SEGMENTS


TWICE = """
try:
    with opened() as sink:
        sink.run(rows.writeStream.trigger(availableNow=True))
except StreamingQueryException as error:
    print("FAILED", *str(error).split())
for order in place.root.glob("always-*"):
    order.unlink()
"""


def test_a_query_that_needs_more_memory_than_there_is_fails_with_its_cause_and_goes_on_with_more(
    cluster: Standalone, drivers: Lasting, tmp_path: Path
) -> None:
    place = Home(tmp_path)
    place.feed.add(range(40), range(40, 80))
    (place.root / "always-much-staging-50").touch()
    with drivers.start(*words(TWICE + ONCE, place, cluster, executor_pyspark_memory="4g")) as child:
        output = child.succeed()
    failed = next(line for line in output.splitlines() if line.startswith("FAILED"))
    assert "MemoryError" in failed
    assert exact_rows(place) == list(range(80))
    assert place.lines.ids() == list(range(80))


def test_a_master_that_restarts_and_finds_its_state_interrupts_nothing(
    cluster: Standalone, drivers: Lasting, tmp_path: Path
) -> None:
    """It starts a new executor for the query, in place of one that is killed after the restart."""
    place = Home(tmp_path)
    with drivers.start(*words(UNTIL_STOPPED, place, cluster, cores_max="2")) as child:
        place.feed.add(range(BATCH_ROWS))
        child.wait_until(lambda: len(exact_rows(place)) == BATCH_ROWS, "a batch arrived")
        before = cluster.executors()
        cluster.restart_master()
        place.feed.add(range(BATCH_ROWS, 2 * BATCH_ROWS))
        child.wait_until(lambda: len(exact_rows(place)) == 2 * BATCH_ROWS, "a batch arrived under the new master")
        assert set(before) <= set(cluster.executors())
        cluster.master.wait_for_output("Recovery complete", LIMIT_S)
        os.kill(before[0].pid, signal.SIGKILL)
        cluster.master.wait_for_output("Launching executor", LIMIT_S)
        place.feed.add(range(2 * BATCH_ROWS, 3 * BATCH_ROWS))
        child.wait_until(lambda: len(exact_rows(place)) == 3 * BATCH_ROWS, "a batch arrived with a new executor")
        (place.root / "stop").touch()
        child.succeed()
    whole = list(range(3 * BATCH_ROWS))
    assert exact_rows(place) == whole
    assert sorted(set(place.lines.ids())) == whole
    assert place.lines.repeats() <= SEGMENTS

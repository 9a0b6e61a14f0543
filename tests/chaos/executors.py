"""Executors that are killed during staging and delivery, by a plan that all their workers read."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.driver import CHUNK_ROWS
from tests.chaos.lives import LIMIT_S, Chain, add_counts, guarded, tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.targets import Plain, row_of, text_of
from tests.house.sinks import BatchCommit, CommitPosition, CommitSink, SinkContext, StagedSegment
from tests.support.processes import executor_of
from tests.support.servers.standalone import SPARK_HOME
from wal_sink import Chunk
from wal_sink_backends import SqlSink

if TYPE_CHECKING:
    from tests.chaos.backend_deaths import Target

KILLS = 50
KILLS_A_LIFE = 10
ROWS = 25
SEGMENTS = 2
MASTER = "local-cluster[2,1,1024]"
STAGING, PLAIN_BEFORE, PLAIN_AFTER, EXACT_BEFORE, EXACT_AFTER = (
    "staging",
    "before a chunk to the plain target",
    "after a chunk to the plain target",
    "before a chunk to the table",
    "after a chunk to the table",
)
MIX = (STAGING, PLAIN_AFTER, STAGING, EXACT_AFTER, STAGING, PLAIN_BEFORE, STAGING, EXACT_BEFORE)
LAKE_MIX = (STAGING, EXACT_AFTER, EXACT_BEFORE)
LONGEST_DELAY_S = 0.15


class Death(msgspec.Struct, frozen=True):
    """The order that the executor dies once, `delay_s` after the row `id` passes `where`."""

    id: int
    where: str
    delay_s: float


Plan = tuple[Death, ...]


def killed_executors(effort: Effort, *, most: int = KILLS, master: str = MASTER, lake: Target | None = None) -> Outcome:
    """Kill executors of a cluster during staging and delivery. Spark starts new ones."""
    kills = effort.times(most, least=2)
    chain = Chain(effort.folder / "cluster", random.Random(effort.seed), partitions=SEGMENTS, lake=lake)
    plan = _planned(kills, chain.chance, LAKE_MIX if lake else MIX)
    (chain.root / "deaths").mkdir()

    def lives() -> None:
        for first in range(0, kills, KILLS_A_LIFE):
            _life(chain, master, plan, range(first, min(first + KILLS_A_LIFE, kills)))

    guarded(effort.seed, chain, lives)
    outcome = Outcome(rounds=len(died(chain.root)))
    rows = add_counts(outcome, chain, allowed=outcome.rounds * SEGMENTS * CHUNK_ROWS)
    met = Counter(plan[number].where for number in died(chain.root))
    outcome.detail = "\n".join([tally("where their deaths were set off", met), tally("rows by target", Counter(rows))])
    return outcome


def _planned(kills: int, chance: random.Random, mix: Sequence[str]) -> Plan:
    """Plan one death for every second batch, at a random row of it."""
    wheres = [mix[number % len(mix)] for number in range(kills)]
    return tuple(
        Death(2 * ROWS * number + chance.randrange(ROWS), where, chance.choice([0, chance.uniform(0, LONGEST_DELAY_S)]))
        for number, where in enumerate(wheres)
    )


def _life(chain: Chain, master: str, plan: Plan, numbers: range) -> None:
    """Run one cluster that stages and delivers one batch per file. Every second batch costs an executor."""
    for batch in range(2 * numbers.start, 2 * numbers.stop):
        chain.job.place.feed.add_text(text_of(map(row_of, range(batch * ROWS, (batch + 1) * ROWS))))
    job = replace(chain.job, ending="once", where="executors", master=master, deadly=msgspec.json.encode(plan).decode())
    environment = {"SPARK_HOME": str(SPARK_HOME)}
    with chain.driver(job, environment) as child:
        child.succeed(LIMIT_S + 20.0 * len(numbers))


def died(root: Path) -> list[int]:
    """Return the numbers of the deaths that happened."""
    return sorted(int(path.name) for path in (root / "deaths").iterdir())


# These run in the workers.


def dying_while_staging(root: Path, deadly: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that passes everything on and follows the plan."""

    def staging(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            die_for(root, deadly, STAGING, batch.column(0).to_pylist())
            yield batch

    return staging


@dataclass(frozen=True)
class DyingPlain(Plain):
    """The plain target, whose executor may die just before or after a chunk."""

    root: Path = Path()
    deadly: str = ""

    def write(self, chunk: Chunk) -> None:
        ids = chunk.table.column(0).to_pylist()
        die_for(self.root, self.deadly, PLAIN_BEFORE, ids)
        super().write(chunk)
        die_for(self.root, self.deadly, PLAIN_AFTER, ids)


class DyingSql(SqlSink):
    """The transactional target, whose executor may die just before or after a chunk."""

    def __init__(self, url: str, table: str, root: Path, deadly: str) -> None:
        super().__init__(url, table)
        self._root, self._deadly = root, deadly

    def write(self, chunk: Chunk) -> None:
        ids = chunk.table.column(0).to_pylist()
        die_for(self._root, self._deadly, EXACT_BEFORE, ids)
        super().write(chunk)
        die_for(self._root, self._deadly, EXACT_AFTER, ids)


class DyingLake(CommitSink):
    """A lake table, whose executor may die just before or after it prepares a segment."""

    def __init__(self, lake: CommitSink, root: Path, deadly: str) -> None:
        self._lake, self._root, self._deadly = lake, root, deadly

    def open(self, context: SinkContext) -> None:
        self._lake.open(context)

    def prepare(self, segment: StagedSegment) -> str:
        ids = pq.read_table(pa.BufferReader(segment.data))["id"].to_pylist()
        die_for(self._root, self._deadly, EXACT_BEFORE, ids)
        handle = self._lake.prepare(segment)
        die_for(self._root, self._deadly, EXACT_AFTER, ids)
        return handle

    def position(self) -> CommitPosition | None:
        return self._lake.position()

    def commit(self, batch: BatchCommit) -> None:
        self._lake.commit(batch)

    def close(self) -> None:
        self._lake.close()


def die_for(root: Path, deadly: str, where: str, ids: Iterable[int | None]) -> None:
    """Kill the executor of this worker if the plan says so and that death has not happened yet."""
    passing = set(ids)
    for number, death in enumerate(msgspec.json.decode(deadly, type=Plan)):
        if death.where == where and death.id in passing and _is_first(root / "deaths" / str(number)):
            if death.delay_s:
                threading.Timer(death.delay_s, _kill_executor).start()
            else:
                _kill_executor()


def _is_first(flag: Path) -> bool:
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill_executor() -> None:
    os.kill(executor_of(os.getpid()), signal.SIGKILL)


SCENARIO = Scenario(
    "executors killed",
    "SIGKILL of an executor during staging or delivery loses no row, repeats none on exactly-once sinks, and repeats "
    "at most one chunk per segment on a plain sink",
    "kill",
    killed_executors,
)

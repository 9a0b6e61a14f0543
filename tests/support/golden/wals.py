"""WALs of the present code with sinks of each kind, each with its checkpoint and targets. See `wal_writer.py`.

Nothing here needs Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.house.kit import resolve, served_sink, stage_tables
from tests.house.log import Log, Manifest, paths
from tests.house.protocol import DeliveryContext, Run, ServedSink, Staged
from tests.house.sinks import BatchSink, ReleasedBatch
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import SYSTEM
from tests.support.golden.targets import (
    ByBatch,
    BySegment,
    Committed,
    Idempotent,
    LookedUp,
    Plain,
    Target,
    Transactional,
    TwoPhase,
)
from wal_sink.protocol.stage import Attempt
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import Crash, FakeQuery, FaultyStore, simulated_runtime
from wal_sink.testing.simulation.process import WriteBatch, released_rows

CHUNK_ROWS = 2
BATCH_ROWS = 10_000
"""The ids of a batch begin at its number times this."""
_SETTINGS = Settings(chunk_rows=CHUNK_ROWS)

Make = Callable[[Target, Callable[[str], None]], object]
"""Makes the argument of `WalSink`: a sink or a `Delivery`."""

SINKS: Mapping[str, Make] = {
    "plain": Plain,
    "once": lambda target, hook: Delivery(Plain(target, hook), guarantee="at_most_once"),
    "keyed": Idempotent,
    "looked-up": LookedUp,
    "ledger": Transactional,
    "vault": TwoPhase,
    "lake": Committed,
    "rolled": lambda target, hook: Delivery(Committed(target, hook), roll_s=60),
    "segments": BySegment,
    "batches": lambda target, _: ByBatch(target),
    "refusing": lambda target, hook: Delivery(Plain(target, hook), on_rejected="dead_letter"),
    "refusing-ledger": lambda target, hook: Delivery(Transactional(target, hook), on_rejected="dead_letter"),
    "unkept": lambda target, hook: TwoPhase(target, hook, keep_segments=False),
    "renamed": Plain,
    "anew": Plain,
    "retired": Plain,
}
"""The sink of each name, equal in every WAL."""


@dataclass
class GoldenWal:
    """A WAL with its checkpoint and targets."""

    kind: str
    version: str
    sinks: list[str]
    """The served sinks, by their first names."""
    targets: dict[str, Target] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)
    """The number of rows of each partition, by batch."""
    partitions: list[int] = field(default_factory=list)
    """The numbers of the partitions, if they are not simply counted."""
    inline_bytes: int = 0
    """The budget of inline rows."""
    processes: int = 0

    def __post_init__(self) -> None:
        self.wal = MemoryStore(StoreSpec(self.url))
        self.checkpoint = MemoryStore(StoreSpec(f"memory://golden/{self.version}/{self.kind}/checkpoint"))
        for name in self.sinks:
            self.targets.setdefault(name, Target())
        self.armed: list[str] = []
        self.is_dead = False

    @property
    def url(self) -> str:
        return f"memory://golden/{self.version}/{self.kind}/wal"

    # Lives.

    def hook(self, what: str, where: str = "") -> None:
        """Pass a point of a process. It dies at the last point of `armed`, after it has met the others in order."""
        if self.is_dead:
            raise Crash("dead")
        if self.armed and f"{what} {where}".startswith(self.armed[0]):
            self.armed.pop(0)
            if not self.armed:
                self.is_dead = True
                raise Crash(what)

    def process(self, *, stages: bool = True, sinks: Sequence[str] | None = None, moved_from: str | None = None) -> Run:
        """Start another process. It serves all sinks, or only some."""
        self.processes += 1
        self.armed, self.is_dead = [], False
        store = FaultyStore(self.wal, self.hook)
        seed = sum(self.kind.encode()) * 1_000 + self.processes
        run = Run(store, FaultyStore(self.checkpoint, self.hook), _SETTINGS, runtime=simulated_runtime(seed=seed))
        served = [name for name in self.sinks if sinks is None or name in sinks]
        run.open([self._served_sink(run, name) for name in served], moved_from=moved_from)
        if stages:
            run.become_stager()
        return run

    def batch(self, run: Run, *rows: int, is_completed: bool = True) -> int:
        """Stage the next batch, with so many rows per partition."""
        batch_id = max(self.rows, default=-1) + 1
        self.rows[batch_id] = list(rows)
        self.stage(run, batch_id)
        if is_completed:
            self.query().complete_batch(batch_id)
        return batch_id

    def stage(self, run: Run, batch_id: int) -> None:
        query = self.query()
        query.start_batch(batch_id, batch_id)
        attempt = run.begin_staging(batch_id, planned_ms=query.planned_ms(batch_id))
        if attempt is not None:
            run.end_staging(attempt, self._stage(run, attempt))

    def query(self) -> FakeQuery:
        return FakeQuery(self.checkpoint, lambda *_: [])

    def deliver_until(self, sink: str, *points: str) -> None:
        """Deliver to one sink in a new process until it dies. It meets the points in order and dies at the last one."""
        run = self.process(stages=False)
        run.gate.search()
        self.armed = list(points)
        try:
            while run.advance(next(one for one in run.committers if one.name == sink)):
                pass
        except Crash:
            return
        raise AssertionError(f"{sink} came to none of {self.armed}")

    def drain(self) -> Run:
        """Deliver the staged batches in a new process that stages nothing."""
        run = self.process(stages=False)
        run.gate.search()
        run.deliver_all()
        return run

    def table_of(self, batch_id: int, partition: int) -> pa.Table:
        rows = self.rows[batch_id]
        first = batch_id * BATCH_ROWS + sum(rows[:partition])
        ids = range(first, first + rows[partition])
        return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"word {number}" for number in ids]})

    def ids(self, *, through: int | None = None) -> list[int]:
        """Return the ids of all rows, or of batches up to one."""
        each = (range(batch * BATCH_ROWS, batch * BATCH_ROWS + sum(rows)) for batch, rows in self.rows.items()
                if through is None or batch <= through)  # fmt: skip
        return [number for ids in each for number in ids]

    def _stage(self, run: Run, attempt: Attempt) -> Staged:
        tables = [self.table_of(attempt.batch_id, index) for index in range(len(self.rows[attempt.batch_id]))]
        return stage_tables(run, attempt, tables, numbers=self.partitions or None, inline_bytes=self.inline_bytes)

    def _served_sink(self, run: Run, name: str) -> ServedSink:
        delivery, sink = resolve(SINKS[name](self.targets[name], self.hook))
        if run.history.wal is not None and not run.log.store.list(f"{paths.SINKS}/{name}"):
            delivery = dataclasses.replace(delivery, start_from="earliest")
        write = _batch_writer(sink, run.log) if isinstance(sink, BatchSink) else None
        return served_sink(name, sink, delivery, run.log, write_batch=write)

    # Its content.

    def log(self) -> Log:
        """Return a log for reading only."""
        return Log(self.wal, SYSTEM, "f" * 32)


def _batch_writer(sink: BatchSink, log: Log) -> WriteBatch:
    def write(given: DeliveryContext, manifest: Manifest) -> None:
        frame: Any = pa.concat_tables(released_rows(log, manifest))
        spark: Any = None
        sink.write_batch(ReleasedBatch(manifest.batch_id, given.term.number, spark, lambda: frame))

    return write

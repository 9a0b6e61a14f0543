"""The life of one process without Spark: a fake query, the real local store, and the three targets.

It takes milliseconds where a driver takes seconds, so that every single point of it can be tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tests.chaos.scenario import Outcome
from tests.chaos.targets import EXACT, IDEMPOTENT, PLAIN, TABLE, Plain, Row, Targets, count, row_of
from tests.house.kit import served_sink
from tests.house.protocol import Run
from tests.house.sinks import Sink
from tests.house.stores import Store, StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.made_up import in_two, live_through
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.testing import FakeQuery
from wal_sink_backends import FilesSink, SqlSink

BATCHES = 3
SEGMENTS = 2
ROWS = 7
CHUNK_ROWS = 2
WINDOW_ROWS = SEGMENTS * CHUNK_ROWS
"""The rows that one death may repeat on the plain target: a chunk of each segment."""
ATTEMPTS = 2
"""Attempts at a batch without any progress."""
RUNTIME = replace(SYSTEM, sleep_s=lambda _: None)
"""A runtime that retries at once. Here a failure lasts until the test repairs its cause."""

Wrap = Callable[[Store], Store]


@dataclass(frozen=True)
class Ground:
    """The places of WAL, checkpoint and targets."""

    wal: Path
    checkpoint: Path
    targets: Targets

    @classmethod
    def below(cls, root: Path) -> Ground:
        return cls(root / "wal", root / "checkpoint", Targets(root))


def live(ground: Ground, batches: int, chance: random.Random, wrap: Wrap = lambda store: store) -> None:
    """Run one process: take over, then stage, complete and deliver until `batches` are done."""
    checkpoint = open_store(StoreSpec(str(ground.checkpoint)))
    run = Run(
        wrap(open_store(StoreSpec(str(ground.wal)))), checkpoint, Settings(chunk_rows=CHUNK_ROWS), runtime=RUNTIME
    )
    sinks: dict[str, Sink] = {
        EXACT: SqlSink(f"sqlite:///{ground.targets.database}", TABLE),
        IDEMPOTENT: FilesSink(str(ground.targets.files)),
        PLAIN: Plain(ground.targets.plain),
    }
    served_sinks = [
        served_sink(name, sink, Delivery(sink, retry=Retry(attempts=ATTEMPTS)), run.log) for name, sink in sinks.items()
    ]
    query = FakeQuery(checkpoint, lambda batch_id, _: [_table(part) for part in in_two(rows_of(batch_id), chance)])
    live_through(run, served_sinks, query, batches)


def counted(outcome: Outcome, ground: Ground, batches: int, what: str, *, allowed: int) -> None:
    """Count the three targets into an outcome. `what` names the round in a violation."""
    source = [row for batch_id in range(batches) for row in rows_of(batch_id)]
    for name in (EXACT, IDEMPOTENT, PLAIN):
        found = count(source, ground.targets.rows(name))
        outcome.lost += found.lost
        permitted = allowed if name == PLAIN else 0
        if found.lost or found.foreign or found.repeated > permitted:
            outcome.violations.append(f"{what}: {name}: {found}, {permitted} repeats permitted")
        outcome.repeated += found.repeated
    outcome.allowed += allowed


def rows_of(batch_id: int) -> list[Row]:
    return [row_of(number) for number in range(batch_id * ROWS, (batch_id + 1) * ROWS)]


def _table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({"id": [number for number, _ in rows], "word": [word for _, word in rows]})

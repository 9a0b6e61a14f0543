"""One process that delivers into the target of a backend, until it is killed or all batches are delivered.

A folder holds the WAL and the checkpoint that earlier processes left. Only the query is a fake. The rest is what a
`WalSink` runs: the core, the local store, real time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa

from tests.house.kit import served_sink
from tests.house.protocol import Run, ServedSink
from tests.house.sinks import Sink, sink_from_url
from tests.house.stores import StoreSpec, open_store
from tests.support.made_up import in_two, live_through
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery

ROWS = 60
CHUNK_ROWS = 15
NAME = "default"


def ids_of(batch_id: int) -> range:
    return range(batch_id * ROWS, (batch_id + 1) * ROWS)


def live(folder: Path, seed: int, batches: int, url: str) -> None:
    """Run one process: take over, then stage, complete and deliver until `batches` are done."""
    chance = random.Random(seed)
    checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
    run = Run(open_store(StoreSpec(str(folder / "wal"))), checkpoint, Settings(chunk_rows=CHUNK_ROWS))
    query = FakeQuery(checkpoint, lambda batch_id, _: [_table(part) for part in in_two(ids_of(batch_id), chance)])
    live_through(run, [_served_sink(run, url)], query, batches)


def _served_sink(run: Run, url: str) -> ServedSink:
    sink = sink_from_url(url)
    made = served_sink(NAME, sink, Delivery(sink), run.log, make_sink=lambda: cast("Sink", sink_from_url(url)))
    assert made.promise.guarantee == "exactly_once", made.promise.sentence
    return made


def _table(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": ids, "word": [f"word {row}" for row in ids]})

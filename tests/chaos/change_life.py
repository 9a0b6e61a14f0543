"""One process that delivers a generated change log, or replays its dead letters, until it is killed or done.

A folder holds the WAL and the checkpoint that earlier processes left, and the change log. Only the query is a fake.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.backend_life import NAME
from tests.house.kit import served_sink
from tests.house.protocol import Run
from tests.house.sinks import Sink, sink_from_url
from tests.house.stores import StoreSpec, open_store
from tests.support.made_up import live_through
from wal_sink.operate.replay import DeadLetters
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery

CHANGES = "changes.parquet"
"""The change log. Each row group is one batch."""
CHUNK_ROWS = 300
SEGMENTS = 3
AS_SENT = {"op": None, "pos": None, "sent_op": "op", "sent_pos": "pos"}
"""The columns of a query. Some of the operations and positions that it sends are wrong: the sink refuses the rows."""
AS_MEANT = {"sent_op": None, "sent_pos": None}
"""The columns of a replay, which has the right ones."""


def live(folder: Path, seed: int, batches: int, url: str) -> None:
    """Run one process: take over, then stage, complete and deliver until `batches` are done, or all."""
    changes, chance = pq.ParquetFile(folder / CHANGES), random.Random(seed)
    checkpoint, sink = open_store(StoreSpec(str(folder / "checkpoint"))), sink_from_url(url)
    settings = Settings(chunk_rows=min(CHUNK_ROWS, getattr(sink, "max_chunk_rows", None) or CHUNK_ROWS))
    run = Run(open_store(StoreSpec(str(folder / "wal"))), checkpoint, settings)
    refuses: dict[str, Any] = {"columns": AS_SENT, "on_rejected": "dead_letter"}
    delivery = Delivery(sink, **(refuses if "sent_op" in changes.schema_arrow.names else {}))
    served = served_sink(NAME, sink, delivery, run.log, make_sink=lambda: cast("Sink", sink_from_url(url)))
    assert served.promise.guarantee == "exactly_once", served.promise.sentence
    query = FakeQuery(checkpoint, lambda batch_id, _: list(_parts(changes.read_row_group(batch_id), chance)))
    live_through(run, [served], query, min(batches, changes.num_row_groups))


def _parts(rows: pa.Table, chance: random.Random) -> Iterator[pa.Table]:
    """Divide a batch into partitions, differently at each evaluation. Their order decides at equal versions."""
    cuts = [0, *sorted(chance.sample(range(1, rows.num_rows), SEGMENTS - 1)), rows.num_rows]
    return (rows.slice(first, end - first) for first, end in pairwise(cuts))


def replay(folder: Path, url: str) -> None:
    """Replay the dead letters of the batches that are delivered, with the right operations and positions."""
    DeadLetters(str(folder / "wal"), name=NAME).replay(url, columns=AS_MEANT)

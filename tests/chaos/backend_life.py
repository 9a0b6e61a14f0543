"""One life of a process that delivers into the target of a backend, until it is killed or all batches are delivered.

`python backend_life.py FOLDER SEED BATCHES URL`: the WAL and the checkpoint of a query that is made up lie below
FOLDER, as any life before left them. All but the query is what a `WalSink` runs: the core, the local store, real time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from wal_sink.backend_urls import sink_from_url
from wal_sink.carriers import LocalCarrier
from wal_sink.guarantees import promise
from wal_sink.preparing import Preparation
from wal_sink.run import Run
from wal_sink.serving import Serving
from wal_sink.settings import Delivery, Settings
from wal_sink.sink import BatchSink, Sink, TwoPhaseSink
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

ROWS = 120
CHUNK_ROWS = 20
NAME = "default"


def ids_of(batch_id: int) -> list[int]:
    return list(range(batch_id * ROWS, (batch_id + 1) * ROWS))


def completed(folder: Path) -> int:
    """How many batches the query has completed."""
    return sum(1 for name in (folder / "checkpoint" / "commits").glob("*") if name.name.isdecimal())


def live(folder: Path, chance: random.Random, batches: int, url: str) -> None:
    """Take over what is there, then stage, complete and deliver until `batches` are done."""
    checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
    run = Run(open_store(StoreSpec(str(folder / "wal"))), checkpoint, Settings(chunk_rows=CHUNK_ROWS))
    run.open([_serving(run, url)])
    print("ready", flush=True)  # noqa: T201 - told to who kills
    run.deliver_all()
    run.become_stager()
    query = FakeQuery(checkpoint, lambda batch_id, _: _partitions(batch_id, chance))
    for _ in query.batches(run, batches):
        run.deliver_all()
    run.deliver_all()


def _serving(run: Run, url: str) -> Serving:
    sink = _sink(url)
    delivery = Delivery(sink)
    carrier = LocalCarrier(lambda: sink, run.log, should_stop=lambda: False)
    kept = promise(sink, delivery, NAME)
    assert kept.guarantee == "exactly_once", kept.sentence
    serving = Serving(NAME, delivery, kept, carrier, identity=sink.describe())
    if not isinstance(sink, TwoPhaseSink):
        return serving
    preparation = Preparation(NAME, lambda: _sink(url), delivery.attempt_timeout_s)
    return replace(serving, make_sink=lambda: sink, preparation=preparation)


def _sink(url: str) -> Sink:
    sink = sink_from_url(url)
    assert not isinstance(sink, BatchSink)
    return sink


def _partitions(batch_id: int, chance: random.Random) -> Sequence[pa.Table]:
    """The batch's rows, shared out anew each time it is evaluated, as Spark does."""
    ids = ids_of(batch_id)
    chance.shuffle(ids)
    cut = chance.randint(1, ROWS - 1)
    return [pa.table({"id": part, "word": [f"word {row}" for row in part]}) for part in (ids[:cut], ids[cut:])]


if __name__ == "__main__":
    live(Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3]), sys.argv[4])

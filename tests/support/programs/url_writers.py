"""Processes that write batches to the sink of a URL, and are killed at random moments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pyarrow as pa

from tests.house.kit import chunks_of, slot
from tests.house.sinks import SinkContext, TransactionalSink, sink_from_url
from tests.support.forked import ForkedChild
from tests.support.processes import Child
from wal_sink.testing.contract.calls import following

BATCH_ROWS = 20
_LIVES = 3


def killed_at_any_moment(
    url: str,
    folder: Path,
    held: Callable[[], tuple[list[int], int]],
    *,
    env: Mapping[str, str] | None = None,
    kill: Callable[[Child], object] = Child.kill,
) -> None:
    """Kill one writer after the other. `held` tells the ids in the target, and how many there are by its ledger."""
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    counts: list[int] = []
    for number in range(_LIVES):
        with ForkedChild(_live, url, log=folder / f"{number}.log", env=env or {}) as writer:
            writer.wait_for_output("ready")
            time.sleep(moments.uniform(0.02, 0.4))
            if number == _LIVES - 1:  # on a busy machine the others may have been killed before they wrote
                writer.wait_until(lambda: held()[1] > 0, "it wrote")
            assert writer.running, writer.output
            kill(writer)
        found, known = held()
        assert found == list(range(known)), f"seed {seed}"
        counts.append(known)
    assert counts == sorted(counts)
    assert counts[-1] > 0


def _live(url: str) -> None:
    sink = sink_from_url(url)
    assert isinstance(sink, TransactionalSink)
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot())
    print("ready", flush=True)  # noqa: T201 - read by the test
    for batch in count(last.batch_id if last else 0):
        table = pa.table({"id": range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)})
        for chunk in following(sink, chunks_of(table, batch_id=batch, chunk_rows=5)):
            sink.write(chunk)

"""A sender that waits for its rate of rows ends with its run, not when the wait is over."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import wal_sink.walsink
from tests.house.protocol import Run
from tests.house.sinks import Chunk
from tests.house.stores import StoreSpec, open_store
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import Delivery, WalSink
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery


def test_a_run_that_ends_does_not_wait_for_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings(chunk_rows=50))
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": range(200)})]).batches(run, 1))
    taken: list[int] = []

    def take(chunk: Chunk) -> None:
        taken.append(chunk.num_rows)

    to = Delivery(take, rows_per_s=0.1, start_from="earliest")
    sink = WalSink(to, wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint"))
    thread = threading.Thread(target=lambda: sink.drain(follow=True))
    thread.start()
    wait_until(lambda: len(taken) == 1)
    sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert taken == [50]

"""A log into which a query staged batches, without Spark. Most tests of commands look at one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.house.log import note_end, paths
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery


def _one_row(_batch_id: int, _end: int) -> list[pa.Table]:
    return [pa.table({"id": [1]})]


def stage(
    folder: Path, batches: int, rows: Callable[..., Any] = _one_row, *, is_over: bool = False, **settings: Any
) -> list[int]:
    """Stage and complete the batches up to a number into `wal` of a folder, beside `checkpoint`. Returns the new ones.

    `is_over`: the process of the query ended in order, so that no committer takes it for a running one.
    """
    checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
    run = Run(open_store(StoreSpec(str(folder / "wal"))), checkpoint, Settings(**settings))
    run.open()
    run.become_stager()
    found = list(FakeQuery(checkpoint, rows).batches(run, batches))
    if is_over:
        run.end()
        for number in run.log.numbers(paths.terms(paths.STAGER_ROLE)):
            note_end(run.log, paths.STAGER_ROLE, number)
    return found

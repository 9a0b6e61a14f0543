"""The code of the racing processes of `test_stores`. A separate module, so that each process imports little."""

from __future__ import annotations

import os
from typing import Any

from wal_sink.stores.base import ObjectExists
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec


def contend_for_names(url: str, start: Any, rounds: int, wins: Any) -> None:
    """Create `rounds` names as soon as `start` is set. Put every name that was won into `wins`."""
    store = open_store(StoreSpec(url))
    start.wait()
    for turn in range(rounds):
        try:
            store.create(f"race-{turn % 3}/{turn:04d}", str(os.getpid()).encode())
        except ObjectExists:
            continue
        wins.put(turn)

"""The code of processes that race for names on a store, or write to it until they are killed.

A separate module, so that each process imports little.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tests.house.stores import ObjectExists, StoreSpec, open_store


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


def create_until_killed(url: str, first: int) -> None:
    """Create the names from `first` on, and print each."""
    store = open_store(StoreSpec(url))
    for number in range(first, 100_000):
        store.create(f"life-{first}/{number:06d}", b"%06d" % number * 1000)
        print(number)  # noqa: T201


def write_until_killed(url: str) -> None:
    """Write a segment, print `written`, and neither commit nor end."""
    stream = open_store(StoreSpec(url)).segment("s/1.parquet")
    for _ in range(5):
        stream.write(bytes(4 << 20))
    print("written")  # noqa: T201
    time.sleep(100)

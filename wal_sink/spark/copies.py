"""Copies of a delivery task. Spark runs one in place of a task that it lost, or beside one that it finds slow.

A copy sends nothing. Spark takes the first answer of the two and kills the other task. A copy that answered at once
would thus end a healthy original in the middle of a send. It waits for as long as the original shows that it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wal_sink import paths
from wal_sink.orders import Assignment, Order
from wal_sink.stores.base import Store

if TYPE_CHECKING:
    from pyspark import SparkContext


def are_run_beside(context: SparkContext) -> bool:
    """Whether Spark may run a copy while the original still runs: with speculation only."""
    return str(context.getConf().get("spark.speculation", "false")).strip().lower() != "false"


def outwait(look: Callable[[], object], window_s: float, sleep_s: Callable[[float], None]) -> None:
    """Return once the original showed nothing new for `window_s` seconds. Spark ends the copy if the original ends.

    `look` tells what the original has recorded so far. None: the records cannot be read, and nothing shows that the
    original lives.
    """
    seen = look()
    while True:
        sleep_s(window_s)
        now = look()
        if now is None or now == seen:
            return
        seen = now


def window_s(given: Assignment) -> float:
    """The longest time in which a healthy original records nothing: one call, and the pause that its rate asks for."""
    pause_s = 0.0 if given.rows_per_s is None else given.chunk_rows / given.rows_per_s
    return given.attempt_timeout_s + pause_s


def recorded(store: Store, given: Assignment, orders: Sequence[Order]) -> frozenset[str]:
    """The progress records of these segments. One listing for each shard they lie in."""
    ordinals = {order.ordinal for order in orders}
    shards = ordinals if given.spread else {None} if ordinals else set()
    folders = {paths.progress_folder(given.sink, given.batch_id, shard_of=shard) for shard in shards}
    listed = [(folder, name) for folder in sorted(folders) for name in store.list(folder)]
    named = [(f"{folder}/{name}", paths.parse_progress(name)) for folder, name in listed]
    return frozenset(path for path, parsed in named if parsed is not None and parsed.ordinal in ordinals)

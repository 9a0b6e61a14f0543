"""Long-lived objects of Spark's workers, taken out of garbage collections. Runs in the workers.

PySpark collects garbage after every task of a worker that it uses again, in all objects that the worker holds. The
modules of wal-sink and of a store's client, and the client itself, are a hundred thousand objects. To search them takes
80 ms, which was a fifth of the processor time of a query on S3, and finds nothing.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal_sink.stores.spec import StoreSpec

MOST_STORES = 4
"""So many stores of a process at most, so that what can stay has a bound whatever a worker opens."""

_settled: set[tuple[int, str]] = set()
"""The stores after whose first task this was done, by process and address. Empty: for a task that opened no store.

Not by options: each task unpickles them, and an object among them (credentials of a library) may equal only itself.
"""


def settle(opened: StoreSpec | None) -> None:
    """Let later collections skip the objects that live now. Call it at the end of a task, which opened this store.

    It happens once for each store that a worker opens, never for each task: a garbage cycle that is made later, of
    objects that live now, is not found any more. Objects without a cycle are freed as before. It happens never in a
    worker that ends with its task: PySpark collects nothing there.
    """
    if not os.environ.get("SPARK_REUSE_WORKER"):
        return
    process = os.getpid()
    key = process, opened.safe_url if opened is not None else ""
    if key in _settled or sum(1 for owner, _ in _settled if owner == process) > MOST_STORES:
        return
    _settled.add(key)
    gc.collect()  # garbage of this moment would stay for ever
    gc.freeze()

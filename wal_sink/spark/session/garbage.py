"""Long-lived objects of Spark's workers, taken out of garbage collections. Runs in the workers.

PySpark collects garbage after every task of a worker, in all objects that the worker holds. The modules of wal-sink and
of a store's client, and the client itself, are a hundred thousand objects. To search them takes 80 ms, which was a
fifth of the processor time of a query on S3, and finds nothing.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal_sink.stores.spec import StoreSpec

_settled: set[tuple[int, StoreSpec | None]] = set()
"""The stores after whose first task this was done, by process. None: for a task that opened no store."""


def settle(opened: StoreSpec | None) -> None:
    """Let later collections skip the objects that live now. Call it at the end of a task, which opened this store.

    It happens once for each store that a worker opens, never for each task: a garbage cycle that is made later, of
    objects that live now, is not found any more. Objects without a cycle are freed as before.
    """
    key = os.getpid(), opened
    if key not in _settled:
        _settled.add(key)
        gc.collect()  # garbage of this moment would stay for ever
        gc.freeze()

"""Test kit for sinks and for this project: a query without Spark, crashes at every point, the contract of a sink.

`SinkContract` needs pytest, so it is imported only when it is first used.
"""

from typing import TYPE_CHECKING, Any

from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing.matrix.crash_matrix import crash_matrix
from wal_sink.testing.matrix.verdict import CrashMatrix, Violation
from wal_sink.testing.simulation.fake_query import FakeQuery, StoppedByQuery
from wal_sink.testing.simulation.faults import Crash, FaultyStore
from wal_sink.testing.simulation.process import simulated_runtime
from wal_sink.testing.simulation.sink_query import SinkQuery, query_into

if TYPE_CHECKING:
    from wal_sink.testing.contract.sink import SinkContract

__all__ = [
    "Crash",
    "CrashMatrix",
    "FakeQuery",
    "FaultyStore",
    "MemoryStore",
    "SinkContract",
    "SinkQuery",
    "StoppedByQuery",
    "StoreSpec",
    "Violation",
    "crash_matrix",
    "query_into",
    "simulated_runtime",
]


def __getattr__(name: str) -> Any:
    if name == "SinkContract":
        from wal_sink.testing.contract.sink import SinkContract  # noqa: PLC0415 - everything else works without pytest

        return SinkContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

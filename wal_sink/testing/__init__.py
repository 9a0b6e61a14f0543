"""For tests of sinks and of this project: a query without Spark, crashes at every point, the contract of a sink.

`SinkContract` needs pytest; it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from wal_sink.testing.crash_matrix import crash_matrix
from wal_sink.testing.fake_query import FakeQuery, StoppedByQuery
from wal_sink.testing.faults import Crash, FaultyStore
from wal_sink.testing.simulated import simulated_runtime
from wal_sink.testing.sink_query import SinkQuery
from wal_sink.testing.verdict import CrashMatrix, Violation

if TYPE_CHECKING:
    from wal_sink.testing.contract import SinkContract

__all__ = [
    "Crash",
    "CrashMatrix",
    "FakeQuery",
    "FaultyStore",
    "SinkContract",
    "SinkQuery",
    "StoppedByQuery",
    "Violation",
    "crash_matrix",
    "simulated_runtime",
]


def __getattr__(name: str) -> Any:
    if name == "SinkContract":
        from wal_sink.testing.contract import SinkContract  # noqa: PLC0415 - everything else works without pytest

        return SinkContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

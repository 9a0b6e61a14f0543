"""For tests of sinks and of this project: a query without Spark, a store that fails on order, a simulated runtime."""

from wal_sink.testing.fake_query import FakeQuery, StoppedByQuery
from wal_sink.testing.faults import Crash, FaultyStore
from wal_sink.testing.simulated import simulated_runtime

__all__ = ["Crash", "FakeQuery", "FaultyStore", "StoppedByQuery", "simulated_runtime"]

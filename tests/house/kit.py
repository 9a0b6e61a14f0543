"""Inner parts of the kit for users' tests."""

from __future__ import annotations

from wal_sink.testing.contract.calls import Held, chunks_of, commit, opened, prepare, slot
from wal_sink.testing.contract.ledger_cases import CASES, REFUSALS, SLOT, STORED
from wal_sink.testing.data.tables import three_batches
from wal_sink.testing.matrix.verdict import LOSSES, What
from wal_sink.testing.simulation.fake_query import stage_tables
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.process import Place, resolve, served_sink, simulated_runtime

__all__ = [
    "CASES",
    "LOSSES",
    "REFUSALS",
    "SLOT",
    "STORED",
    "Crash",
    "Held",
    "Place",
    "What",
    "chunks_of",
    "commit",
    "opened",
    "prepare",
    "resolve",
    "served_sink",
    "simulated_runtime",
    "slot",
    "stage_tables",
    "three_batches",
]

"""Writes batches through `KafkaSink` until it is killed: the processes of tests/integration/test_kafka_failures.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from wal_sink.sinks.base import SinkContext
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink_backends.kafka.sink import KafkaSink

ROWS = 50


def batch(number: int, *, ordinal: int = 0, term: int = 1) -> Chunk:
    """Return a batch of one chunk. No other batch or segment has its rows, and it follows the batch before it."""
    first, at = (number * 10 + ordinal) * ROWS, position(number, ordinal)
    table = pa.table({"id": pa.array(range(first, first + ROWS), pa.int64()), "ordinal": [ordinal] * ROWS})
    before = position(number - 1, ordinal) if number else None
    return Chunk(table, number, f"{at.segment_id}-0-{ROWS}", at.segment_id, range(ROWS), at, term, 0, before)


def position(number: int, ordinal: int = 0) -> Position:
    """Return the position in the ledger after this batch."""
    return Position(f"kafka-writer/default/{ordinal}", number, ROWS, f"{number:016x}{ordinal:016x}")


def sink_of(address: str, topic: str, **options: Any) -> KafkaSink:
    return KafkaSink(address, topic, ledger_topic=f"{topic}-ledger", **options)


def live(address: str, topic: str, ordinal: int, count: int, term: int) -> None:
    """Run one process from the position in the ledger to the end."""
    sink = sink_of(address, topic, transaction_timeout_s=5)
    sink.open(SinkContext("kafka-writer", "default", term, 0, ("id", "ordinal"), on_executor=False))
    last = sink.last(batch(0, ordinal=ordinal).position.slot)
    print(f"ready {term}")  # noqa: T201
    for number in range(last.batch_id + 1 if last else 0, count):
        sink.write(batch(number, ordinal=ordinal, term=term))
        print(f"wrote {number}")  # noqa: T201
    sink.close()

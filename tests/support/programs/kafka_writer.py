"""Writes batches through `KafkaSink` until it is killed: the processes of tests/integration/test_kafka_failures.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from tests.house.sinks import Chunk, ForgottenError, Position, SinkContext
from wal_sink.errors import OutcomeUnknownError
from wal_sink_backends.kafka.client import KafkaAttemptError, KafkaFencedError
from wal_sink_backends.kafka.sink import KafkaSink

ROWS = 50
T = TypeVar("T")


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


def persistently(call: Callable[[], T], *, until: Callable[[], bool] = lambda: False, limit_s: float = 150.0) -> T:
    """Call again after errors that may pass, as the core does, and return the result.

    Once `until` holds, an error is not followed by another call.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return call()
        except ForgottenError:
            raise
        except (KafkaAttemptError, OutcomeUnknownError):
            if until() or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def live(address: str, topic: str, ordinal: int, count: int, term: int, *, has_rivals: bool = False) -> None:
    """Run one process from the position in the ledger to the end.

    A slow machine may exceed its time limits, so that it tries again. If it `has_rivals` with the same term, it ends as
    soon as one of them fences it.
    """
    fenced = list[KafkaFencedError]()

    def write(number: int) -> None:
        try:
            sink.write(batch(number, ordinal=ordinal, term=term))
        except KafkaFencedError as error:
            fenced.append(error)
            raise

    sink = sink_of(address, topic, transaction_timeout_s=5)
    context = SinkContext("kafka-writer", "default", term, 0, ("id", "ordinal"), on_executor=False)
    persistently(lambda: sink.open(context))
    last = persistently(lambda: sink.last(batch(0, ordinal=ordinal).position.slot))
    print(f"ready {term}")  # noqa: T201
    for number in range(last.batch_id + 1 if last else 0, count):
        persistently(partial(write, number), until=lambda: has_rivals and bool(fenced))
        print(f"wrote {number}")  # noqa: T201
    sink.close()

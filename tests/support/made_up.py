"""Helpers for processes without Spark: a fake query, and one thread that takes over, stages and delivers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.house.protocol import Run, ServedSink
from wal_sink.testing import FakeQuery

T = TypeVar("T")


def live_through(run: Run, served_sinks: Sequence[ServedSink], query: FakeQuery, batches: int) -> None:
    """Take over, then stage, complete and deliver until `batches` are done."""
    run.open(served_sinks)
    run.deliver_all()
    run.become_stager()
    for _ in query.batches(run, batches):
        run.deliver_all()
    run.deliver_all()


def in_two(rows: Sequence[T], chance: random.Random) -> tuple[list[T], list[T]]:
    """Divide the rows of a batch into two partitions, differently at each evaluation, as Spark does."""
    shuffled = chance.sample(rows, len(rows))
    cut = chance.randint(1, len(rows) - 1)
    return shuffled[:cut], shuffled[cut:]

"""A run with sinks of a test's own, over a WAL and a checkpoint in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from wal_sink.delivery.local import LocalDispatcher
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.lifecycle.run import Run
from wal_sink.messages import Preparation
from wal_sink.runtime.clock import Runtime
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, TwoPhaseSink, as_sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.guarantees import promise
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery, FaultyStore, simulated_runtime

_numbers = itertools.count()


@dataclass
class Place:
    """A WAL and a checkpoint that outlive runs; `requests` holds what was asked of the WAL."""

    wal: MemoryStore = field(default_factory=lambda: MemoryStore(StoreSpec(f"memory://place-{next(_numbers)}/wal")))
    checkpoint: MemoryStore = field(
        default_factory=lambda: MemoryStore(StoreSpec(f"memory://place-{next(_numbers)}/checkpoint"))
    )
    rows: Callable[[int], list[int]] = lambda _: [1]
    """Rows by partition of a batch."""
    requests: list[str] = field(default_factory=list)

    def query(self) -> FakeQuery:
        return FakeQuery(self.checkpoint, lambda batch_id, _: [numbers(batch_id, n) for n in self.rows(batch_id)])

    def open(
        self,
        sinks: Mapping[str, object],
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        **delivery: Any,
    ) -> Run:
        """A run of some sinks: whatever `as_sink` takes, or a `Delivery`."""
        store = FaultyStore(self.wal, self._note)
        run = Run(
            store,
            self.checkpoint,
            settings or Settings(chunk_rows=2),
            runtime=runtime or simulated_runtime(seed=next(_numbers)),
        )
        run.open([served_sink(run, name, to, **delivery) for name, to in sinks.items()])
        run.become_stager()
        return run

    def stream(self, run: Run, through: int) -> None:
        """Run batches up to one, delivering each."""
        for _ in self.query().batches(run, through + 1):
            run.deliver_all()

    def _note(self, what: str, where: str) -> None:
        if what.startswith("before"):
            self.requests.append(f"{what.removeprefix('before ')} {where}")


def served_sink(run: Run, name: str, to: object, **delivery: Any) -> ServedSink:
    given = to if isinstance(to, Delivery) else Delivery(to, **delivery)
    sink = as_sink(given.to)
    assert not isinstance(sink, BatchSink)
    dispatcher = LocalDispatcher(lambda: sink, run.log, should_stop=lambda: False)
    made = ServedSink(name, given, promise(sink, given, name), dispatcher)
    if not isinstance(sink, TwoPhaseSink):
        return made
    preparation = None if given.where == "driver" else Preparation(name, lambda: sink, given.attempt_timeout_s)
    return replace(made, make_sink=lambda: sink, preparation=preparation)


def numbers(batch_id: int, count: int) -> pa.Table:
    return pa.table({"batch": [batch_id] * count, "row": pa.array(range(count), pa.int64())})


class Recorder:
    """A sink function that remembers; `fail` may raise or answer instead."""

    def __init__(self, fail: Callable[[Chunk], object] | None = None) -> None:
        self.chunks: list[Chunk] = []
        self.tries = 0
        self.fail = fail

    def __call__(self, chunk: Chunk) -> Any:
        self.tries += 1
        if self.fail is not None and (answer := self.fail(chunk)) is not None:
            return answer
        self.chunks.append(chunk)
        return None

    @property
    def batches(self) -> list[int]:
        return [chunk.batch_id for chunk in self.chunks]

    @property
    def keys(self) -> list[str]:
        return [chunk.key for chunk in self.chunks]

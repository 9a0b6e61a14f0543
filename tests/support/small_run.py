"""A run with a test's own sinks, over a WAL and a checkpoint in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import Place as OneSinkPlace
from tests.house.kit import resolve
from tests.house.kit import served_sink as serve
from tests.house.log import paths
from tests.house.protocol import Run, ServedSink
from tests.house.sinks import BatchSink, Chunk
from tests.house.stores import Store
from tests.house.support import Runtime
from wal_sink.metrics.prometheus import Metrics, events_of, meter_of
from wal_sink.settings import Delivery, Settings
from wal_sink.stores.measured import measured
from wal_sink.support.events import OnEvent
from wal_sink.testing import FakeQuery, FaultyStore, simulated_runtime

_numbers = itertools.count()


@contextmanager
def out_of_use(store: Store) -> Iterator[None]:
    """Take the WAL of a place out of use for a while, as somebody does who moved it by hand."""
    record = store.read(paths.WAL)
    store.delete([paths.WAL])
    yield
    store.create(paths.WAL, record)


def before_create(store: Store, where: str, act: Callable[[], object]) -> None:
    """Do something once, just before the object at this path is created."""
    create = store.create

    def first_act(path: str, data: bytes) -> None:
        if path == where:
            store.create = create  # type: ignore[method-assign]
            act()
        create(path, data)

    store.create = first_act  # type: ignore[method-assign]


@dataclass
class Place(OneSinkPlace):
    """A WAL and a checkpoint for runs of several sinks. `requests` holds the requests to the WAL."""

    make_sink: Callable[[], object] = lambda: pytest.fail("give the sinks to `open`")
    rows: Callable[[int], list[int]] = lambda _: [1]
    """Return the number of rows in each partition of a batch."""
    requests: list[str] = field(default_factory=list)

    def query(self) -> FakeQuery:
        return FakeQuery(self.checkpoint, self.evaluate)

    def evaluate(self, batch_id: int, end_offset: int) -> list[pa.Table]:  # noqa: ARG002 - as `FakeQuery` calls it
        return [numbers(batch_id, count) for count in self.rows(batch_id)]

    def open(
        self,
        sinks: Mapping[str, object],
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        on_event: OnEvent | None = None,
        metrics: Metrics | None = None,
        stages: bool = True,
        **delivery: Any,
    ) -> Run:
        """Return a run of some sinks: anything that `as_sink` takes, or a `Delivery`. `stages`: False for a drain."""
        faulty = FaultyStore(self.wal, self._note)
        run = Run(
            measured(faulty, meter_of(faulty.root, metrics)),
            self.checkpoint,
            settings or Settings(chunk_rows=2),
            runtime=runtime or simulated_runtime(seed=next(_numbers)),
            events=events_of(faulty.root, on_event, metrics),
        )
        run.open([served_sink(run, name, to, **delivery) for name, to in sinks.items()])
        run.log.events.tell_queued()  # as a `WalSink` does
        if stages:
            run.become_stager()
        return run

    def stream(self, run: Run, through: int) -> None:
        """Run batches up to this one, and deliver each."""
        for _ in self.query().batches(run, through + 1):
            run.deliver_all()

    def _note(self, what: str, where: str) -> None:
        if what.startswith("before"):
            self.requests.append(f"{what.removeprefix('before ')} {where}")


def served_sink(run: Run, name: str, to: object, **delivery: Any) -> ServedSink:
    given, sink = resolve(to if isinstance(to, Delivery) else Delivery(to, **delivery))
    assert not isinstance(sink, BatchSink)
    return serve(name, sink, given, run.log, stages=given.where != "driver")


def numbers(batch_id: int, count: int) -> pa.Table:
    return pa.table({"batch": [batch_id] * count, "row": pa.array(range(count), pa.int64())})


class Recorder:
    """A sink function that records its calls. `fail` may raise an error or answer in its place."""

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

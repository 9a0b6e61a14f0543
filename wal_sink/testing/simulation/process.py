"""Processes of a query into one sink, one after the other or side by side, over a WAL and a checkpoint in memory.

Nothing here needs Spark: `FakeQuery` keeps Spark's order, the production core does the rest.
"""

from __future__ import annotations

import gc
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from wal_sink.dead_letters.files import read_dead_letter
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.errors import ConfigError
from wal_sink.lifecycle.run import Run
from wal_sink.messages import DeliveryContext
from wal_sink.reporting.texts import name_of
from wal_sink.settings import Settings
from wal_sink.sinks.base import BatchSink, ReleasedBatch
from wal_sink.sinks.guarantees import Promise, promise
from wal_sink.stores.base import Store
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing.data.rows import Row
from wal_sink.testing.data.tables import Partitions
from wal_sink.testing.simulation.fake_query import FakeQuery
from wal_sink.testing.simulation.faults import Crash, FaultyStore
from wal_sink.testing.simulation.runtime import simulated_runtime
from wal_sink.testing.simulation.served import WriteBatch, resolve, served_sink
from wal_sink.testing.simulation.watched import Watched, WatchedBatches, watched
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest
from wal_sink.wal.segment_reader import load_segment, read_chunks

SINK_NAME = "default"

MakeFrame = Callable[[pa.Table], Any]
"""Makes what a writer of whole batches is given in place of a Spark DataFrame: `spark.createDataFrame`, for one."""

_numbers = itertools.count()


def promise_of(to: object) -> Promise:
    """What is promised for a sink."""
    delivery, sink = resolve(to)
    return promise(sink, delivery, SINK_NAME)


def _memory(name: str) -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://wal-sink-testing-{next(_numbers)}/{name}"))


@dataclass
class Place:
    """What outlives processes: the WAL, the checkpoint, the query's input."""

    make_sink: Callable[[], object]
    """Called once per process, which has no other memory of what the sink did."""
    settings: Settings = field(default_factory=lambda: Settings(chunk_rows=2))
    data_frame: MakeFrame | None = None
    seed: int = 0
    """Of all ids: places with different seeds have no key in common."""
    batches: dict[int, Partitions] = field(default_factory=dict)
    wal: MemoryStore = field(default_factory=lambda: _memory("wal"))
    checkpoint: MemoryStore = field(default_factory=lambda: _memory("checkpoint"))
    started: int = 0
    """Processes so far."""

    def evaluate(self, batch_id: int) -> Partitions:
        """The rows that the query makes of a batch's input, one table a partition."""
        return self.batches[batch_id]

    def rejected_rows(self) -> Iterator[Row]:
        """The rows that the sink refused and that were kept as dead letters: they arrived, if elsewhere."""
        for batch_id in self.batches:
            folder = paths.dead_letter_folder(SINK_NAME, batch_id)
            for name in self.wal.list(folder):
                letter = read_dead_letter(self.wal, f"{folder}/{name}")
                if letter.kept == "rejected":
                    yield from letter.chunk.table.to_pylist()

    def marked(self) -> list[int]:
        """The batches that are marked."""
        return [int(name.removesuffix(".json")) for name in self.wal.list(paths.markers(SINK_NAME))]

    def clear(self) -> None:
        """Free the memory."""
        for store in (self.wal, self.checkpoint):
            store.delete(store.list("", recursive=True))


Hook = Callable[["Process", str], None]
"""Told of every point a process comes to; may raise `Crash`, or an error of the sink, or let others live meanwhile."""


class Process:
    """One process of the query, from its start to its end or its death."""

    def __init__(self, place: Place, *, hook: Hook | None = None, lines: bool = False) -> None:
        place.started += 1
        self.place = place
        self.number = place.started
        self.lines = lines
        self.points: list[str] = []
        self.dead = False
        self._hook = hook
        self._sink: Watched | None = None
        self._run: Run | None = None
        self.wal: Store = FaultyStore(place.wal, self.point)
        self.checkpoint: Store = FaultyStore(place.checkpoint, self.point)
        self.query = FakeQuery(self.checkpoint, lambda batch_id, _: place.evaluate(batch_id))

    # Points.

    def point(self, what: str, where: str) -> None:
        """Something is about to happen, or has happened. A dead process does nothing any more."""
        if self.dead:
            raise Crash(f"dead since {self.points[-1]}")
        self.points.append(f"{what} {where}".rstrip())
        if self._hook is None:
            return
        try:
            self._hook(self, self.points[-1])
        except Crash:
            self.dead = True  # from now on: no handler of the core or the sink does anything any more
            raise

    def die(self) -> None:
        """Be gone, with all memory; what is under way stays undone."""
        self.dead = True
        sink, self._sink, self._run = self._sink, None, None
        if sink is not None:
            sink.calls.die()

    # What a driver does.

    def open(self) -> None:
        """Start: open the WAL, deliver what was left, become the stager."""
        run = self.open_run()
        run.deliver_all()
        run.become_stager()

    def open_run(self) -> Run:
        """Open the WAL, and do nothing else yet."""
        runtime = simulated_runtime(seed=(self.place.seed << 8) + self.number)
        run = Run(self.wal, self.checkpoint, self.place.settings, runtime=runtime)
        run.open([self.served_sink(run.log)])
        self._run = run
        return run

    @property
    def run(self) -> Run:
        if self._run is None:
            raise RuntimeError("no process is running: call restart() first")
        return self._run

    def next_batch(self) -> int:
        """The batch Spark would run now: the last one again if it was not completed."""
        committed = (int(name) for name in self.place.checkpoint.list("commits"))
        return max(committed, default=-1) + 1

    def stage(self, batch_id: int) -> bool:
        """Spark plans a batch and calls the sink; False if the WAL knew it already."""
        self.query.start_batch(batch_id, batch_id)
        return self.query.stage(self.run, batch_id)

    def complete(self, batch_id: int) -> None:
        """Spark completes the checkpoint of a batch."""
        self.query.complete_batch(batch_id)

    def deliver(self) -> None:
        """Deliver what is complete. Raises what `WalSink` would raise."""
        self.run.gate.search()
        self.run.deliver_all()

    def live(self) -> None:
        """From the start until every batch of the place is delivered."""
        self.open()
        while (batch_id := self.next_batch()) in self.place.batches:
            self.stage(batch_id)
            self.complete(batch_id)
            self.run.deliver_all()
        self.end()

    def end(self) -> None:
        """The last look at what was marked, as closing a run takes it."""
        for committer in self.run.committers:
            committer.confirm_marked()

    # The sink.

    def served_sink(self, log: Log) -> ServedSink:
        """The sink of this process, watched."""
        delivery, sink = resolve(self.place.make_sink())
        kept = promise(sink, delivery, SINK_NAME)
        seen = self._sink = watched(sink, self)
        write = _batch_writer(seen, log, self.place) if isinstance(seen, WatchedBatches) else None
        return served_sink(SINK_NAME, seen, delivery, log, write_batch=write, kept=kept)


def _batch_writer(sink: BatchSink, log: Log, place: Place) -> WriteBatch:
    if (data_frame := place.data_frame) is None:
        raise ConfigError(f"{name_of(sink)} gets whole batches as DataFrames, which needs data_frame=…")

    def write(delivery_context: DeliveryContext, manifest: Manifest) -> object:
        no_rows = place.batches[manifest.batch_id][0].slice(0, 0)
        frame = data_frame(pa.concat_tables([no_rows, *_released(log, manifest)]))
        batch = ReleasedBatch(
            batch_id=manifest.batch_id,
            term=delivery_context.term.number,
            spark=cast("Any", getattr(frame, "sparkSession", None)),
            read=lambda: frame,
        )
        return sink.write_batch(batch)

    return write


def _released(log: Log, manifest: Manifest) -> Iterator[pa.Table]:
    rows, columns = manifest.chunk_rows, manifest.columns
    for segment in manifest.segments:
        data = load_segment(log.store, segment)
        for _, _, table in read_chunks(data, segment, chunk_rows=rows, columns=columns, where=segment.path):
            yield table


def bury(process: Process, end: BaseException) -> None:
    """Drop what a dead process held, so that its connections end as they do when the system ends a process.

    `end` is what ended it: the frames it came through hold the sink.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        process.die()
        _forget_frames(end)
        gc.collect(1)  # a sink may be part of a circle; it is young


def _forget_frames(end: BaseException | None) -> None:
    """Of this exception and of those it followed: what is raised in a `finally` of a dying process is one more."""
    while end is not None:
        traceback.clear_frames(end.__traceback__)
        end.__traceback__ = None
        before = end.__cause__ or end.__context__
        end.__cause__ = end.__context__ = None
        end = before

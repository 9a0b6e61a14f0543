"""Processes of a query into one sink, one after the other or at the same time, with a WAL and a checkpoint in memory.

They need no Spark: `FakeQuery` writes the checkpoint in Spark's order, and the production core does the rest.
`simulated_runtime` has no real time and no randomness: the same seed gives the same ids, waits and instants.
"""

from __future__ import annotations

import gc
import itertools
import random  # noqa: TID251 - seeded
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.protocol.dispatch import LocalDispatcher, ServedSink, WholeBatchDispatcher, serve
from wal_sink.protocol.letters import read_dead_letter
from wal_sink.protocol.messages import DeliveryContext
from wal_sink.protocol.run import Run
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, MakeSink, ReleasedBatch, Sink, as_sink
from wal_sink.sinks.guarantees import Promise, promise
from wal_sink.sinks.urls import sink_from_url
from wal_sink.stores.base import Store
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.calls import DirectCall, in_turn
from wal_sink.support.clock import Runtime
from wal_sink.support.texts import name_of
from wal_sink.testing.data.rows import Row
from wal_sink.testing.data.tables import Partitions
from wal_sink.testing.simulation.fake_query import FakeQuery
from wal_sink.testing.simulation.faults import Crash, FaultyStore
from wal_sink.testing.simulation.watched import Watched, WatchedBatches, watched


def simulated_runtime(seed: int = 0) -> Runtime:
    """Make a `Runtime` whose clock moves only during sleeps. Sinks are called directly, without a time limit."""
    chance = random.Random(seed)  # noqa: S311 - a simulation's, not cryptography
    elapsed_s = [0.0]

    def sleep_s(seconds: float) -> None:
        elapsed_s[0] += seconds

    return Runtime(
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=elapsed_s[0]),
        monotonic_s=lambda: elapsed_s[0],
        sleep_s=sleep_s,
        new_id=lambda: f"{chance.getrandbits(128):032x}",
        new_random=lambda: chance,
        new_timed_call=DirectCall,
        side_by_side=in_turn,
    )


WriteBatch = Callable[[DeliveryContext, Manifest], object]
"""A function that writes one released batch as a whole."""


def resolve(to: object) -> tuple[Delivery, Sink | BatchSink]:
    """Return delivery and sink for an object that a user passes as a sink. Raises `ConfigError` if it is none."""
    delivery = to if isinstance(to, Delivery) else Delivery(to)
    return delivery, sink_from_url(delivery.to) if isinstance(delivery.to, str) else as_sink(delivery.to)


def served_sink(
    name: str,
    sink: Sink | BatchSink,
    delivery: Delivery,
    log: Log,
    *,
    write_batch: WriteBatch | None = None,
    kept: Promise | None = None,
    make_sink: MakeSink | None = None,
    stages: bool = True,
) -> ServedSink:
    """Serve a sink in this process. `delivery` holds its policies; its `to` is not read.

    `write_batch` stands for a writer of whole batches and is required for one. `kept` is the promise for the sink, for
    callers that know it. `make_sink` makes the two-phase sink that stages and aborts; the default is `sink`. Without
    `stages`, a two-phase sink is prepared when it is delivered.
    """
    if isinstance(sink, BatchSink):
        if write_batch is None:
            raise ConfigError(f"sink {name!r}: {name_of(sink)} writes whole batches: pass write_batch=…")
        whole = WholeBatchDispatcher(write_batch, log, what=name_of(sink), limit_s=delivery.retry.budget_s)
        return serve(name, sink, delivery, whole, log, travels=None, promised=kept)
    here = LocalDispatcher(lambda: sink, log, should_stop=lambda: False)
    make = make_sink or (lambda: sink)
    return serve(name, sink, delivery, here, log, travels=make if stages else None, here=make, promised=kept)


SINK_NAME = "default"

MakeFrame = Callable[[pa.Table], Any]
"""A function that makes the DataFrame for a writer of whole batches, for example `spark.createDataFrame`."""

_numbers = itertools.count()


def promise_of(to: object) -> Promise:
    """Return the promise for a sink."""
    delivery, sink = resolve(to)
    return promise(sink, delivery, SINK_NAME)


def _memory(name: str) -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://wal-sink-testing-{next(_numbers)}/{name}"))


@dataclass
class Place:
    """The things that outlive processes: the WAL, the checkpoint, the query's input."""

    make_sink: Callable[[], object]
    """The function that makes a sink, called once per process."""
    settings: Settings = field(default_factory=lambda: Settings(chunk_rows=2))
    data_frame: MakeFrame | None = None
    seed: int = 0
    """The seed of all ids. Places with different seeds share no key."""
    batches: dict[int, Partitions] = field(default_factory=dict)
    wal: MemoryStore = field(default_factory=lambda: _memory("wal"))
    checkpoint: MemoryStore = field(default_factory=lambda: _memory("checkpoint"))
    started: int = 0
    """The number of processes so far."""

    def evaluate(self, batch_id: int, end_offset: int) -> Partitions:  # noqa: ARG002 - see `FakeQuery`
        """Return the rows that the query makes from a batch's input, one table per partition."""
        return self.batches[batch_id]

    def rejected_rows(self) -> Iterator[Row]:
        """Yield the rows that the sink rejected. They count as delivered, since they are kept as dead letters."""
        for batch_id in self.batches:
            folder = paths.dead_letter_folder(SINK_NAME, batch_id)
            for name in self.wal.list(folder):
                letter = read_dead_letter(self.wal, f"{folder}/{name}")
                if letter.kept == "rejected":
                    yield from letter.chunk.table.to_pylist()

    def marked_batches(self) -> list[int]:
        """Return the batches whose markers are in the WAL."""
        return [int(name.removesuffix(".json")) for name in self.wal.list(paths.markers(SINK_NAME))]

    def clear(self) -> None:
        """Free the memory."""
        for store in (self.wal, self.checkpoint):
            store.delete(store.list("", recursive=True))


Hook = Callable[["Process", str], None]
"""A function that is called at every point of a process. It may raise `Crash` or an error, or run other processes."""


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
        self.query = FakeQuery(self.checkpoint, place.evaluate)

    # Points.

    def point(self, what: str, where: str) -> None:
        """Note a point: an operation is about to happen, or has happened. In a dead process raise `Crash`."""
        if self.dead:
            raise Crash(f"dead since {self.points[-1]}")
        self.points.append(f"{what} {where}".rstrip())
        if self._hook is None:
            return
        try:
            self._hook(self, self.points[-1])
        except Crash:
            self.dead = True  # from now on, handlers of the core and of the sink can do nothing any more
            raise

    def die(self) -> None:
        """End the process and drop its memory. Unfinished work stays undone."""
        self.dead = True
        sink, self._sink, self._run = self._sink, None, None
        if sink is not None:
            sink.calls.die()

    # Steps of a driver.

    def open(self) -> None:
        """Start: open the WAL, deliver what an earlier process left, become the stager."""
        run = self.open_run()
        run.deliver_all()
        run.become_stager()

    def open_run(self) -> Run:
        """Open the WAL and do nothing else. Return the run."""
        runtime = simulated_runtime(seed=(self.place.seed << 8) + self.number)
        run = Run(self.wal, self.checkpoint, self.place.settings, runtime=runtime)
        run.open([self.served_sink(run.log)])
        self._run = run
        return run

    @property
    def run(self) -> Run:
        """The run of this process."""
        if self._run is None:
            raise RuntimeError("no process is running: call restart() first")
        return self._run

    def next_batch(self) -> int:
        """Return the batch that Spark would run now: the last one again if it was not completed."""
        committed = (int(name) for name in self.place.checkpoint.list("commits"))
        return max(committed, default=-1) + 1

    def stage(self, batch_id: int) -> bool:
        """Plan a batch and call the sink, as Spark does. Return False if the batch is a replay."""
        self.query.start_batch(batch_id, batch_id)
        return self.query.stage(self.run, batch_id)

    def complete(self, batch_id: int) -> None:
        """Complete the checkpoint of a batch, as Spark does."""
        self.query.complete_batch(batch_id)

    def deliver(self) -> None:
        """Deliver the complete batches. Raises the errors that `WalSink` would raise."""
        self.run.gate.search()
        self.run.deliver_all()

    def live_to_end(self) -> None:
        """Run from the start until every batch of the place is delivered. A roll (`roll_s`) has two."""
        self.open()
        while (batch_id := self.next_batch()) in self.place.batches:
            self.stage(batch_id)
            self.complete(batch_id)
            closes = batch_id % 2 == 1 or batch_id + 1 not in self.place.batches
            for committer in self.run.committers:
                while self.run.advance(committer, closes=closes):
                    continue
        self.end()

    def end(self) -> None:
        """Confirm the marked batches a last time, as a closing run does."""
        for committer in self.run.committers:
            committer.confirm_marked()

    # The sink.

    def served_sink(self, log: Log) -> ServedSink:
        """Make the sink of this process, with a point around each call."""
        delivery, sink = resolve(self.place.make_sink())
        kept = promise(sink, delivery, SINK_NAME)
        seen = self._sink = watched(sink, self)
        write = _batch_writer(seen, log, self.place) if isinstance(seen, WatchedBatches) else None
        return served_sink(SINK_NAME, seen, delivery, log, write_batch=write, kept=kept)


def _batch_writer(sink: BatchSink, log: Log, place: Place) -> WriteBatch:
    if (data_frame := place.data_frame) is None:
        raise ConfigError(f"{name_of(sink)} writes whole batches as DataFrames: pass data_frame=…")

    def write(delivery_context: DeliveryContext, manifest: Manifest) -> object:
        no_rows = place.batches[manifest.batch_id][0].slice(0, 0)
        rows = pa.concat_tables([no_rows, *released_rows(log, manifest)])
        frame = data_frame(delivery_context.renaming.table(rows))
        batch = ReleasedBatch(
            batch_id=manifest.batch_id,
            term=delivery_context.term.number,
            spark=cast("Any", getattr(frame, "sparkSession", None)),
            read=lambda: frame,
        )
        return sink.write_batch(batch)

    return write


def released_rows(log: Log, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the rows of a released batch, chunk by chunk."""
    rows, columns = manifest.chunk_rows, manifest.columns
    for segment in manifest.segments:
        data = load_segment(log.store, segment)
        for _, _, table in read_chunks(data, segment, chunk_rows=rows, columns=columns, where=segment.path):
            yield table


def bury(process: Process, end: BaseException) -> None:
    """Drop everything that a dead process held. Its connections end as they do when the system ends a process.

    `end` is the exception that ended it. The frames of its traceback hold the sink.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        process.die()
        _forget_frames(end)
        gc.collect(1)  # a sink may be part of a reference cycle; the young generations suffice


def _forget_frames(end: BaseException | None) -> None:
    """Clear the frames of this exception and of those before it. A `finally` of a dying process may raise one more."""
    while end is not None:
        traceback.clear_frames(end.__traceback__)
        end.__traceback__ = None
        before = end.__cause__ or end.__context__
        end.__cause__ = end.__context__ = None
        end = before

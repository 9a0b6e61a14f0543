"""A small world around the production core: a query, a WAL, targets that outlive processes, and an oracle that watches.

Every store operation and every call of a sink is a numbered point at which the process can be made to die. Each staged
attempt gives its rows its own tag, so that rows of two attempts in a target show at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from wal_sink.carriers import LocalCarrier, WholeBatchCarrier
from wal_sink.chunk import Chunk, Position
from wal_sink.delivery import Assignment, chunks_of
from wal_sink.errors import FencedError
from wal_sink.guarantees import promise
from wal_sink.log import Log
from wal_sink.records import Manifest
from wal_sink.run import Run
from wal_sink.segments import load_segment
from wal_sink.serving import Serving
from wal_sink.settings import Delivery, Settings
from wal_sink.sink import BatchSink, ReleasedBatch, SegmentSink, Sink, TransactionalSink
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import Crash, FakeQuery, FaultyStore, simulated_runtime

BATCHES: tuple[tuple[int, ...], ...] = ((5, 3), (2,), (1, 0, 4))
"""Rows by batch and partition: several segments and chunks, one segment of one chunk, an empty partition."""

KINDS = ("plain", "at_most_once", "idempotent", "lookup", "transactional", "segment", "batch")

_numbers = itertools.count()


@dataclass
class Target:
    """What the sink's target holds, and the law it watches over. Survives every crash."""

    world: World
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    """Tag of the attempt, batch and row number, in order of arrival."""
    keys: list[str] = field(default_factory=list)
    ledger: dict[str, tuple[int, Position]] = field(default_factory=dict)

    def accept(self, chunk: Chunk) -> None:
        self.world.watch_send(chunk.batch_id)
        self.keys.append(chunk.key)
        self.rows += rows_of(chunk.table, chunk.batch_id)


def rows_of(table: pa.Table, batch_id: int) -> list[tuple[str, int, int]]:
    return [(tag, batch_id, row) for tag, row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


class PlainSink(Sink):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, chunk: Chunk) -> None:
        self._target.world.point("before sink", chunk.key)
        self._put(chunk)
        self._target.world.point("after sink", chunk.key)

    def _put(self, chunk: Chunk) -> None:
        self._target.accept(chunk)


class IdempotentSink(PlainSink):
    idempotent = True

    def _put(self, chunk: Chunk) -> None:
        if chunk.key not in self._target.keys:
            self._target.accept(chunk)


class LookupSink(PlainSink):
    def was_applied(self, key: str) -> bool:
        self._target.world.point("before lookup", key)
        return key in self._target.keys


class LedgerSink(PlainSink, TransactionalSink):
    def last(self, slot: str) -> Position | None:
        self._target.world.point("before last", slot)
        stored = self._target.ledger.get(slot)
        return stored[1] if stored else None

    def _put(self, chunk: Chunk) -> None:
        position = chunk.position
        term, stored = self._target.ledger.get(position.slot, (0, None))
        if term > chunk.term:
            raise FencedError(f"term {chunk.term} is below {term}")
        if stored and (stored.batch_id, stored.rows) >= (position.batch_id, position.rows):
            return
        self._target.accept(chunk)
        self._target.ledger[position.slot] = (chunk.term, position)


class WholeSegmentSink(SegmentSink):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._target.world.point("before sink", f"{batch_id}/{ordinal}/{chunk.key}")
            self._target.accept(chunk)
            self._target.world.point("after sink", f"{batch_id}/{ordinal}/{chunk.key}")


class WholeBatchSink(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise AssertionError(f"the world's own carrier writes batch {batch.batch_id}")


class World:
    """One WAL, one checkpoint, one target; processes come and go."""

    def __init__(self, kind: str, *, crash_points: Iterable[int] = (), settings: Settings | None = None) -> None:
        self.kind = kind
        self.crash_points = frozenset(crash_points)
        self.points: list[str] = []
        self.lives = 0
        self.wal = MemoryStore(StoreSpec(f"memory://world-{next(_numbers)}/wal"))
        self.checkpoint = MemoryStore(StoreSpec(f"memory://world-{next(_numbers)}/checkpoint"))
        self.settings = settings or Settings(chunk_rows=2)
        self.target = Target(self)
        self.query = FakeQuery(FaultyStore(self.checkpoint, self.point), self.evaluate)
        self._tags = itertools.count()
        self._releases: dict[str, bytes] = {}

    def point(self, what: str, where: str) -> None:
        """A point at which the process may die. Also the moment to look at what must never change."""
        self.points.append(f"{what} {where}")
        if what in {"after create", "before delete"}:
            self.watch_releases()
        if len(self.points) in self.crash_points:
            raise Crash(self.points[-1])

    def evaluate(self, batch_id: int, end_offset: int) -> list[pa.Table]:
        tag = f"attempt-{next(self._tags)}-of-{end_offset}"
        numbers = itertools.count()
        return [
            pa.table({"tag": [tag] * rows, "row": pa.array([next(numbers) for _ in range(rows)], pa.int64())})
            for rows in BATCHES[batch_id]
        ]

    def live(self) -> bool:
        """One process, from its start to its end; False if it died on the way."""
        self.lives += 1
        try:
            run = self.open_run()
            run.deliver_all()
            for _ in self.query.batches(run, len(BATCHES)):
                run.deliver_all()
        except Crash:
            return False
        return True

    def open_run(self) -> Run:
        runtime = simulated_runtime(seed=self.lives)
        wal, checkpoint = FaultyStore(self.wal, self.point), FaultyStore(self.checkpoint, self.point)
        run = Run(wal, checkpoint, self.settings, runtime=runtime)
        run.open([self.serving(run.log)])
        run.become_stager()
        return run

    def serving(self, log: Log) -> Serving:
        sink = self.sink()
        guarantee = "at_most_once" if self.kind == "at_most_once" else None
        delivery = Delivery(sink, guarantee=guarantee)
        carrier: LocalCarrier | WholeBatchCarrier
        if isinstance(sink, BatchSink):
            carrier = WholeBatchCarrier(self._write_batch(log), log, what="batch writer", limit_s=60)
        else:
            carrier = LocalCarrier(lambda: sink, log, should_stop=lambda: False)
        return Serving("default", delivery, promise(sink, delivery, "default"), carrier)

    def sink(self) -> Sink | BatchSink:
        kinds: dict[str, type[PlainSink]] = {
            "idempotent": IdempotentSink,
            "lookup": LookupSink,
            "transactional": LedgerSink,
        }
        if self.kind == "batch":
            return WholeBatchSink()
        if self.kind == "segment":
            return WholeSegmentSink(self.target)
        return kinds.get(self.kind, PlainSink)(self.target)

    def _write_batch(self, log: Log):  # noqa: ANN202 - a test's closure
        def write(assignment: Assignment, manifest: Manifest) -> None:
            for ordinal, segment in enumerate(manifest.segments):
                data = load_segment(log.store, segment)
                for chunk in chunks_of(assignment, ordinal, segment, data, 0, where=segment.path):
                    self.point("before sink", chunk.key)
                    self.target.accept(chunk)
                    self.point("after sink", chunk.key)

        return write

    # The law, while it runs.
    def watch_send(self, batch_id: int) -> None:
        assert str(batch_id) in self.checkpoint.list("commits"), f"I1: batch {batch_id} sent before its checkpoint"
        assert not self.marker_exists(batch_id), f"I3: batch {batch_id} sent although it is marked"
        for earlier in range(batch_id):
            assert self.marker_exists(earlier), f"I3: batch {batch_id} overtook batch {earlier}"

    def marker_exists(self, batch_id: int) -> bool:
        return any(int(name.removesuffix(".json")) == batch_id for name in self.wal.list("sinks/default/markers"))

    def watch_releases(self) -> None:
        for batch in self.wal.list("batches"):
            path = f"batches/{batch}release.json"
            if "release.json" in self.wal.list(f"batches/{batch.rstrip('/')}"):
                data = self.wal.read(path)
                assert self._releases.setdefault(path, data) == data, f"I6: {path} was altered"
        gone = set(self._releases).difference(f"batches/{name}" for name in self.wal.list("batches", recursive=True))
        assert not gone, f"I6: {gone} deleted"

    # The law, at the end.
    def check_end(self, *, crashes: int) -> None:
        for batch_id, partitions in enumerate(BATCHES):
            assert self.marker_exists(batch_id), f"batch {batch_id} was never marked"
            self._check_rows(batch_id, sum(partitions), crashes=crashes)

    def _check_rows(self, batch_id: int, count: int, *, crashes: int) -> None:
        arrived = [row for row in self.target.rows if row[1] == batch_id]
        tags = {tag for tag, _, _ in arrived}
        assert len(tags) <= 1, f"I6: batch {batch_id} mixes rows of attempts {sorted(tags)}"
        times = Counter(row for _, _, row in arrived)
        missing = set(range(count)).difference(times)
        repeated = sum(times.values()) - len(times)
        if self.kind == "at_most_once":
            assert repeated == 0, f"at most once: batch {batch_id} repeats {times}"
            assert len(missing) <= self._window_rows(batch_id) * crashes
            assert missing <= self._dead_rows(batch_id), f"batch {batch_id}: {missing} missing and not kept"
            return
        assert not missing, f"I2: batch {batch_id} lacks rows {sorted(missing)}"
        if self.kind in {"idempotent", "transactional"}:
            assert repeated == 0, f"I4: batch {batch_id} repeats {times}"
        assert repeated <= self._window_rows(batch_id) * crashes, f"I5: batch {batch_id} repeats {repeated} rows"

    def _window_rows(self, batch_id: int) -> int:
        """Rows that one crash may repeat or lose. This carrier has one segment in flight at a time."""
        if self.kind == "batch":
            return sum(BATCHES[batch_id])
        return max(BATCHES[batch_id]) if self.kind == "segment" else self.settings.chunk_rows

    def _dead_rows(self, batch_id: int) -> set[int]:
        folder = f"sinks/default/dead-letters/{batch_id:019d}"
        offsets = list(itertools.accumulate((rows for rows in BATCHES[batch_id] if rows), initial=0))
        rows: set[int] = set()
        for name in self.wal.list(folder):
            ordinal, first, end = (int(part) for part in name.removesuffix(".parquet").split("-"))
            rows |= set(range(offsets[ordinal] + first, offsets[ordinal] + end))
        return rows


def run_to_the_end(world: World, *, most_lives: int = 8) -> None:
    """Start processes until one comes to its end."""
    for _ in range(most_lives):
        if world.live():
            return
    raise AssertionError(f"no process of {most_lives} came to an end; the last points: {world.points[-5:]}")

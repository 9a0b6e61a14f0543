"""A small world around the production core: a query, a WAL, targets that outlive processes, and an oracle.

Every store operation and every call of a sink is a numbered point. At a point a test can let the process die, fail, or
stand still while others go on. Each staged attempt tags its rows, so that rows of two attempts in a target show at
once.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tests.simulation.histories.targets import SINKS, WholeBatchSink, batch_writer
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.errors import FencedError
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.stores.base import ObjectExists
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import Crash
from wal_sink.testing.simulation.process import SINK_NAME, Place, Process
from wal_sink.testing.simulation.served import served_sink
from wal_sink.wal.log import Log

Shape = tuple[tuple[int, ...], ...]
"""Numbers of rows, by batch and partition."""

BATCHES: Shape = ((5, 3), (2,), (1, 0, 4))
"""Batches with several segments and chunks, with one segment of one chunk, and with an empty partition."""

KINDS = ("plain", "at_most_once", "idempotent", "lookup", "transactional", "segment", "batch")

Hook = Callable[["Life", str, str], None]

_numbers = itertools.count()
_MARKER = re.compile(r"sinks/default/markers/(\d+)\.json")
_COMMIT = re.compile(r"commits/(\d+)")
_IN_BATCH = re.compile(r"batches/(\d+)/(.*)")


@dataclass
class Target:
    """The contents of the sink's target. They survive every crash."""

    world: World
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    """The attempt's tag, the batch and the number of each row, in order of arrival."""
    keys: list[str] = field(default_factory=list)
    late: list[Chunk] = field(default_factory=list)
    """Chunks that superseded processes sent."""
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    name: str = "the target"

    def called(self, life: Life, *_: object) -> None:
        self._caller = life

    def take(self, chunk: Chunk, _: object) -> None:
        self.world.watch_send(self._caller, chunk)
        self.keys.append(chunk.key)
        self.rows += rows_of(chunk.table, chunk.batch_id)


def rows_of(table: pa.Table, batch_id: int) -> list[tuple[str, int, int]]:
    return [(tag, batch_id, row) for tag, row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


class World(Place):
    """One WAL, one checkpoint and one target. Processes come and go."""

    def __init__(
        self,
        kind: str = "plain",
        *,
        batches: Shape = BATCHES,
        settings: Settings | None = None,
        delivery: Delivery | None = None,
        zombies: bool = False,
        lagging: bool = False,
        name: str = "",
    ) -> None:
        """`name`: the place of WAL and checkpoint. Worlds with the same name use this place one after the other."""
        place = name or f"world-{next(_numbers)}"
        self.delivery = delivery or Delivery(None, guarantee="at_most_once" if kind == "at_most_once" else None)
        super().__init__(
            lambda: self.delivery,
            settings or Settings(chunk_rows=2),
            wal=MemoryStore(StoreSpec(f"memory://{place}/wal")),
            checkpoint=MemoryStore(StoreSpec(f"memory://{place}/checkpoint")),
        )
        self.clear()
        self.kind = kind
        self.shape = batches
        self.lives: list[Life] = []
        self.zombies = zombies
        """Whether several processes may live at the same time."""
        self.lagging = lagging
        """Whether delivery waits until every batch is complete."""
        self.target = Target(self)
        self.tags = (f"attempt-{number}" for number in itertools.count())
        self.completed: set[int] = set()
        """Batches that Spark completed, even if the checkpoint forgot them."""
        self.evaluated_tag: dict[int, str] = {}
        self.staged_tag: dict[int, str] = {}
        """The tag of each batch's attempt whose manifest came last."""
        self.released_tag: dict[int, str] = {}
        """The tag that was staged last when the batch was released. Its rows must be delivered."""
        self.marked: set[int] = set()
        self.violations: list[str] = []
        self.releases: dict[str, bytes] = {}

    def life(self, hook: Hook | None = None) -> Life:
        """A new process."""
        self.lives.append(Life(self, hook))
        return self.lives[-1]

    def evaluate(self, batch_id: int, end_offset: int) -> list[pa.Table]:
        """The rows of a new attempt, with its tag."""
        assert end_offset == batch_id
        tag = self.evaluated_tag[batch_id] = next(self.tags)
        numbers = itertools.count()
        return [
            pa.table({"tag": [tag] * rows, "row": pa.array([next(numbers) for _ in range(rows)], pa.int64())})
            for rows in self.shape[batch_id]
        ]

    # The laws during a run.
    def watch(self, what: str, where: str) -> None:
        """Check the objects that must never change, and note those that the store will delete."""
        if what == "after create":
            self._watch_created(where)
        elif what == "before delete":
            self._watch_delete(where)

    def _watch_created(self, path: str) -> None:
        if match := _MARKER.fullmatch(path):
            self.marked.add(int(match[1]))
        elif match := _COMMIT.fullmatch(path):
            self.completed.add(int(match[1]))
        elif match := _IN_BATCH.fullmatch(path):
            self.watch_releases()
            self._watch_batch(int(match[1]), match[2])

    def _watch_batch(self, batch_id: int, name: str) -> None:
        if name.startswith("manifest"):
            assert self.zombies or batch_id not in self.released_tag, f"batch {batch_id}: a replay was staged"
            self.staged_tag[batch_id] = self.evaluated_tag[batch_id]
        elif name == "release.json":
            self.released_tag[batch_id] = self.staged_tag[batch_id]

    def _watch_delete(self, path: str) -> None:
        self.watch_releases()
        numbers = [int(part) for part in re.findall(r"/(\d{19})[/.]", path)]
        if numbers and not path.startswith("low-water"):
            assert numbers[0] <= self.low_water(), f"I6: {path} deleted before low water passed it"
            assert numbers[0] in self.marked, f"I6: {path} deleted before the sink marked it"

    def watch_releases(self) -> None:
        present = {f"batches/{name}" for name in self.wal.list("batches", recursive=True)}
        for path in present:
            if path.endswith("release.json") and int(path.split("/")[1]) > self.low_water():
                data = self.wal.read(path)
                assert self.releases.setdefault(path, data) == data, f"I6: {path} was altered"
        gone = [path for path in self.releases if path not in present and int(path.split("/")[1]) > self.low_water()]
        assert not gone, f"I6: {gone} deleted"

    def watch_send(self, life: Life, chunk: Chunk) -> None:
        batch_id = chunk.batch_id
        self._require(batch_id in self.completed, f"I1: batch {batch_id} sent before its checkpoint")
        if self._is_superseded(chunk.term):
            self.target.late.append(chunk)
            return
        # A newer process cannot know a marker that the older process creates after the newer one has looked.
        known = batch_id in (life.marked_at_progress if self.zombies else self.marked)
        self._require(not known, f"I3: batch {batch_id} sent although it is marked")
        first = min(self.completed, default=batch_id)
        for earlier in range(first, batch_id):
            self._require(earlier in self.marked, f"I3: batch {batch_id} overtook batch {earlier}")

    def _require(self, holds: bool, law: str) -> None:
        """Note a violation. A check inside a sink must not raise: its exception would count as the sink's."""
        if not holds:
            self.violations.append(law)

    def _is_superseded(self, term: int) -> bool:
        return any(int(name[:10]) > term for name in self.wal.list("terms/committer-default"))

    def low_water(self) -> int:
        return max((int(name.removesuffix(".json")) for name in self.wal.list("low-water")), default=-1)

    # The laws at the end.
    def check_end(self, *, crashes: int) -> None:
        """Check every batch. `crashes` counts all that may leave a send in doubt: crashes, failures and takeovers."""
        for batch_id in range(len(self.shape)):
            self.check_end_of(batch_id, crashes=crashes)

    def check_end_of(self, batch_id: int, *, crashes: int) -> None:
        assert not self.violations, self.violations
        assert batch_id in self.marked, f"batch {batch_id} was never marked"
        self._check_rows(batch_id, sum(self.shape[batch_id]), crashes=crashes)

    def _check_rows(self, batch_id: int, count: int, *, crashes: int) -> None:
        arrived = [row for row in self.target.rows if row[1] == batch_id]
        tags = {tag for tag, _, _ in arrived}
        assert len(tags) <= 1, f"I6: batch {batch_id} mixes rows of attempts {sorted(tags)}"
        if not self.zombies:
            assert tags <= {self.released_tag.get(batch_id)}, (
                f"batch {batch_id}: not the attempt that was staged last: {tags}"
            )
        times = Counter(row for _, _, row in arrived)
        missing = set(range(count)).difference(times)
        repeated = sum(times.values()) - len(times)
        if self.kind == "at_most_once":
            assert repeated == 0, f"at most once: batch {batch_id} repeats {times}"
            assert len(missing) <= self._window_rows(batch_id) * crashes, f"batch {batch_id}: {missing} missing"
            assert missing <= self._dead_rows(batch_id), f"batch {batch_id}: {missing} missing and not kept"
            return
        assert not missing, f"I2: batch {batch_id} lacks rows {sorted(missing)}"
        if self.kind in {"idempotent", "transactional"}:
            assert repeated == 0, f"I4: batch {batch_id} repeats {times}"
        if self.kind == "lookup":
            late = sum(chunk.num_rows for chunk in self.target.late if chunk.batch_id == batch_id)
            assert repeated <= late, f"I5: batch {batch_id} repeats {repeated} rows although its sink can look up"
        assert repeated <= self._window_rows(batch_id) * crashes, f"I5: batch {batch_id} repeats {repeated} rows"

    def _window_rows(self, batch_id: int) -> int:
        """Number of rows that one crash may repeat or lose. The dispatcher has one segment in flight at a time."""
        if self.kind == "batch":
            return sum(self.shape[batch_id])
        return max(self.shape[batch_id]) if self.kind == "segment" else self.settings.chunk_rows

    def _dead_rows(self, batch_id: int) -> set[int]:
        folder = f"sinks/default/dead-letters/{batch_id:019d}"
        offsets = list(itertools.accumulate((rows for rows in self.shape[batch_id] if rows), initial=0))
        rows: set[int] = set()
        for name in self.wal.list(folder):
            ordinal, first, end = (int(part) for part in name.split(".")[0].split("-")[:3])
            rows |= set(range(offsets[ordinal] + first, offsets[ordinal] + end))
        return rows


class Life(Process):
    """One process, from its start to its end."""

    def __init__(self, world: World, hook: Hook | None) -> None:
        super().__init__(world, hook=None if hook is None else lambda _, point: hook(self, *_parted(point)))
        self.world = world
        self.replayed: list[int] = []
        self.marked_at_progress: set[int] = set()
        """Batches that were marked when this process last read progress, which it does before it reads markers."""
        self.error: Exception | None = None
        """The error that ended it early; a crash is none."""
        self.delivering = False
        """Whether it is the committer's turn, or was when the process ended."""

    def point(self, what: str, where: str) -> None:
        """Pass a point, before or after an effect: the moment to check the laws, to die or to fail."""
        if not self.dead:
            self.world.watch(what, where)
            if what == "before list" and where.startswith("sinks/default/progress"):
                self.marked_at_progress = set(self.world.marked)
        super().point(what, where)

    def live(self) -> bool:
        """Run all batches. Returns False if the process died before the end."""
        try:
            run = self.open_run()
            self.deliver_all(run)
            for _ in self.batches(run):
                if not self.world.lagging:
                    self.deliver_all(run)
            self.deliver_all(run)
        except Crash:
            return False
        return True

    def batches(self, run: Run) -> Iterator[int]:
        while (batch_id := self.newest_commit() + 1) < len(self.world.shape):
            if not self.stage(batch_id):
                self.replayed.append(batch_id)
            if not self.world.lagging:
                self.deliver_all(run)  # it must deliver nothing yet
            self.complete(batch_id)
            yield batch_id

    def live_on(self) -> None:
        """Live among other processes. They may end its query; its committer still goes on to its end."""
        run: Run | None = None
        try:
            run = self.open_run()
            self.deliver_all(run)
            for _ in self.batches(run):
                self.deliver_all(run)
        except ObjectExists as error:  # Spark's CONCURRENT_STREAM_LOG_UPDATE
            self.error = error
        except FencedError as error:
            self.error = error
            return
        try:
            if run is not None:
                run.gate.search()
                self.deliver_all(run)
        except FencedError as error:
            self.error = error

    def deliver_all(self, run: Run) -> None:
        self.delivering = True
        run.deliver_all()
        self.delivering = False

    def newest_commit(self) -> int:
        return max((int(name) for name in self.checkpoint.list("commits")), default=-1)

    def open_run(self) -> Run:
        run = super().open_run()
        run.become_stager()
        return run

    def served_sink(self, log: Log) -> ServedSink:
        target = self.world.target
        sink = WholeBatchSink() if self.world.kind == "batch" else SINKS[self.world.kind](self, target)
        return served_sink(SINK_NAME, sink, self.world.delivery, log, write_batch=batch_writer(self, target, log))

    def met(self, what: str) -> None:
        """Count nothing."""


def _parted(point: str) -> tuple[str, str]:
    """Split the name of a point into its action ("before create") and its place."""
    when, what, *where = point.split(" ", 2)
    return f"{when} {what}", "".join(where)


def crash_at(point: int) -> Hook:
    """A hook that lets a process die at its n-th point, counted from 1."""

    def hook(life: Life, what: str, where: str) -> None:
        if len(life.points) == point:
            raise Crash(f"{what} {where}")

    return hook


def effects(points: Sequence[str]) -> list[int]:
    """The points at which a crash can leave a new world: the first, and those right after an effect.

    Between two effects a process only reads, so it leaves the same world wherever it dies there.
    """
    return [1, *(number for number, point in enumerate(points, 1) if point.startswith("after "))]


def crash_then_finish(world: World, *crash_points: int, between: Callable[[World], None] | None = None) -> int:
    """Let processes die one after the other, each at its point, then one live to the end. Returns how many died."""
    crashes = 0
    for point in crash_points:
        crashes += not world.life(crash_at(point)).live()
        if between is not None:
            between(world)
    assert world.life().live()
    return crashes


def forget_newest_commit(world: World) -> None:
    """Remove the newest commit, as a crash of the machine may from a local disk. Spark then runs the batch again."""
    names = world.checkpoint.list("commits")
    newest = max((int(name) for name in names), default=None)
    if newest is not None:
        world.checkpoint.delete([f"commits/{newest}"])


class Puppet:
    """A process on a separate thread that can be stopped at a point and let go. At most one runs at a time."""

    def __init__(self, world: World, *, stop_at: Callable[[Life, str, str], bool]) -> None:
        self._stop_at = stop_at
        self._paused = threading.Event()
        self._go = threading.Event()
        self._unexpected: BaseException | None = None
        self.stopped = False
        self.let_go_already = False
        self.life = world.life(self._hook)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def run_to_stop(self) -> bool:
        """Run until its point. Returns False if it ended before it reached this point."""
        self._thread.start()
        assert self._paused.wait(60)
        self._raise_unexpected()
        return self.stopped

    def let_go(self) -> None:
        """Let it run to its end."""
        self.let_go_already = True
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._raise_unexpected()

    def _hook(self, life: Life, what: str, where: str) -> None:
        if not self.stopped and self._stop_at(life, what, where):
            self.stopped = True
            self._paused.set()
            assert self._go.wait(60)

    def _work(self) -> None:
        try:
            self.life.live_on()
        except BaseException as error:  # noqa: BLE001 - shown on the test's own thread
            self._unexpected = error
        finally:
            self._paused.set()

    def _raise_unexpected(self) -> None:
        if self._unexpected is not None:
            raise self._unexpected

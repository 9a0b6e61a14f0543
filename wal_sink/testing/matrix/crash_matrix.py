"""`crash_matrix`: a run of three batches, disturbed at every point, compared with what the sink's kind promises."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from wal_sink.errors import ConfigError, HistoryError, WalSinkError
from wal_sink.reporting.texts import name_of, told
from wal_sink.runtime.clock import SYSTEM
from wal_sink.sinks.base import BatchSink
from wal_sink.sinks.guarantees import Ability, Promise
from wal_sink.testing.data.rows import Difference, Row, Rows
from wal_sink.testing.data.tables import Partitions, partitioned, three_batches
from wal_sink.testing.matrix.beside import Beside
from wal_sink.testing.matrix.points import chosen, is_between_calls, points_of
from wal_sink.testing.matrix.takeover import Stage, Takeover
from wal_sink.testing.matrix.verdict import EVERYTHING, CrashMatrix, Point, Violation, What
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.forgetting import Replaced, Restoring
from wal_sink.testing.simulation.process import Hook, MakeFrame, Place, Process, bury, promise_of
from wal_sink.testing.simulation.served import resolve

T = TypeVar("T")

_DEATHS: tuple[What, ...] = ("dies",)
CHUNK_ROWS = 2
_LONG_S = 60.0


def crash_matrix(
    make_sink: Callable[[T], object],
    rows_in: Callable[[T], Iterable[Row]],
    new_target: Callable[[], T],
    *,
    tables: Sequence[pa.Table] | None = None,
    disturb: Sequence[What] = EVERYTHING,
    every: int = 1,
    each_line: bool = True,
    double: bool = False,
    data_frame: MakeFrame | None = None,
    snapshot: Callable[[T], Any] | None = None,
    restore: Callable[[T, Any], object] | None = None,
) -> CrashMatrix:
    """Run three batches again and again, each time with one thing that goes wrong, and judge what the target then has.

    In every run the production core delivers into a new target, without Spark and without real time:

    - a process *dies* after an operation of a store, before or after a call of the sink, or before a line of the sink's
      own code while it writes; the next process starts and goes on;
    - a request *fails* there, that is an exception is raised, and the same process tries again;
    - a process *stands still* before or after it sends, or before a line of the sink's own code; it wakes when its
      successor has delivered everything, or waits for what this one holds, and goes on;
    - the target of a transactional sink *forgets*: between two calls of the sink it loses its newest commit, or two, as
      after a fail-over to a standby that lagged behind, and the same process goes on.

    No row may be missing at the end, nor one be there that was never sent; a row that was kept as a dead letter, since
    the sink refused it, counts as one in the target. How many may be there twice follows from what the sink is: none
    for an idempotent or transactional one, else one chunk (of a segment or batch writer: the segment, the batch). All
    that a target forgot is sent again; where its batch was marked already, delivery has to end with `HistoryError`.

    `make_sink(target)` makes what `WalSink` takes for one sink; it is called once per process. `rows_in(target)` reads
    the target with a client of its own: a mapping from column to value for each row. `new_target()` makes an empty
    target for each run; one that keeps what earlier runs wrote will do where a row under another key is another row.
    `tables`: the batches, by default of a whole number `id` and a text `name`. `every=5` takes one
    point of five, for slow targets, yet each line of the sink's code, each of its calls and each kind of operation of
    the log at least once; these too are left to chance with `each_line=False`. `double`: each process that succeeds a
    crashed one crashes at each of its points too. `data_frame` makes a DataFrame of a table, for writers of whole
    batches. `snapshot(target)` saves what a target holds, rows and ledger, and `restore(target, saved)` brings it back:
    with both, a target that forgets is the same one, and the sink keeps its connection. Without them another target
    takes its place, to which the sink itself wrote all but the newest commits.

    The outcome tells how much was lost and repeated; its `check()` raises `AssertionError` if that is not as promised.
    Raises `ConfigError` for a sink that `WalSink` would refuse and for arguments from which nothing could follow,
    `AssertionError` if `rows_in` gives no such rows.
    """
    _refuse_unknown(disturb, every, tables)
    restoring = _restoring(snapshot, restore)
    trials = _Trials(make_sink, rows_in, new_target, partitioned(tables or three_batches()), data_frame, restoring)
    disturb = trials.possible(disturb)
    with _quiet():
        undisturbed = trials.run((), lines=True)
        if not trials.violations:
            if "stands still" in disturb:
                trials.try_threads()
            for point in chosen(trials.noted(points_of(undisturbed, disturb)), every=every, each_line=each_line):
                recovery = trials.run((point,), lines=double)
                if double and point.what == "dies":
                    seconds = trials.noted(points_of(recovery, _DEATHS))
                    for second in chosen(seconds, every=every, each_line=False, seed=trials.runs):
                        trials.run((point, second))
    return trials.outcome()


def _restoring(snapshot: Callable[[T], Any] | None, restore: Callable[[T, Any], object] | None) -> Restoring[T] | None:
    if snapshot is None and restore is None:
        return None
    if snapshot is None or restore is None:
        raise ConfigError("snapshot and restore belong together: give both, or neither")
    return Restoring(snapshot, restore)


def _refuse_unknown(disturb: Sequence[What], every: int, tables: Sequence[pa.Table] | None) -> None:
    unknown = [disturb] if isinstance(disturb, str) else [what for what in disturb if what not in EVERYTHING]
    if unknown:
        raise ConfigError(f"disturb: unknown value {unknown}. Expected a tuple with one or more of {EVERYTHING}")
    if every < 1:
        raise ConfigError(f"every={every}; expected 1 for all points, 5 for one of five")
    if tables is not None and not any(table.num_rows for table in tables):
        raise ConfigError(
            f"tables: {len(tables)} without a row; without rows nothing can be lost. Leave it out, or fill it"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Nobody wants to read of failures that are made on purpose."""
    logger = logging.getLogger("wal_sink")  # noqa: TID251 - nothing is logged to it here
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Trials(Generic[T]):
    """Runs, and what became of them."""

    make_sink: Callable[[T], object]
    rows_in: Callable[[T], Iterable[Row]]
    new_target: Callable[[], T]
    batches: Sequence[Partitions]
    data_frame: MakeFrame | None
    restoring: Restoring[T] | None
    violations: list[Violation] = field(default_factory=list)
    happened: Counter[What] = field(default_factory=Counter)
    points: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    stage: Stage = field(default_factory=Stage)
    waited: int = 0
    lost: int = 0
    repeated: int = 0
    permitted: int = 0
    runs: int = 0

    def __post_init__(self) -> None:
        self.sent = Rows.sent(table for partitions in self.batches for table in partitions)
        target = self.new_target()
        self.promise = promise_of(self.make_sink(target))
        sink = resolve(self.make_sink(target))[1]
        self.sink = name_of(sink)
        if isinstance(sink, BatchSink) and self.data_frame is None:
            raise ConfigError(
                f"{self.sink} gets whole batches as DataFrames: say how to make one of a pyarrow table, "
                "data_frame=spark.createDataFrame"
            )

    def run(self, plan: tuple[Point, ...], *, lines: bool = False) -> list[str]:
        """One run, of one process for each point of the plan and one that nothing disturbs; the points of that one."""
        if any(point.what == "forgets" for point in plan):
            return self._run_forgetting(plan)
        target = self.new_target()
        before = self.sent.found(self.rows_in(target))
        place = self._place(lambda: self.make_sink(target))
        history = _History(place, self.stage)
        started_s = SYSTEM.monotonic_s()
        for point in plan:
            history.disturbed(point)
        points = history.undisturbed(lines=lines)
        if not plan:
            self.stage = replace(self.stage, patience_s=SYSTEM.monotonic_s() - started_s)
        found = self.sent.found([*self.rows_in(target), *place.rejected_rows()]).added_since(before)
        place.clear()
        self._judge(plan, history, self.sent.difference(found))
        return points

    def _run_forgetting(self, plan: tuple[Point, ...]) -> list[str]:
        """The same, of a target that loses what it acknowledged: the next process either finds it, or says so."""
        replaced = Replaced(self, self.sent, self.restoring)
        place = self._place(replaced.make_sink)
        history = _History(place, self.stage, forget=replaced.forget)
        for point in plan:
            history.disturbed(point)
        difference = self.sent.difference(replaced.delivered(place.rejected_rows()))
        points: list[str] = []
        if history.failed or not difference.lost:  # who comes to its end has looked, and must have been told
            points = history.undisturbed()
            difference = self.sent.difference(replaced.delivered(place.rejected_rows()))
            if history.refused and replaced.owes(place.marked_batches()):
                history.error, difference = "", replace(difference, lost=())
        place.clear()
        self._judge(plan, history, difference)
        return points

    def possible(self, disturb: Sequence[What]) -> Sequence[What]:
        """What can happen to a sink of this kind: only the target of a transactional one can tell what it forgot."""
        if self.promise.ability is Ability.TRANSACTIONAL or "forgets" not in disturb:
            return disturb
        if set(disturb) == {"forgets"}:
            raise ConfigError(f"disturb=('forgets',): {self.sink} is no TransactionalSink, and cannot tell")
        return [what for what in disturb if what != "forgets"]

    def try_threads(self) -> None:
        """Whether this target may be used from a thread of a process's own, which a fake may refuse."""
        target = self.new_target()
        place = self._place(lambda: self.make_sink(target))
        beside = Beside(Process(place).live_to_end, lambda: place.started, _LONG_S)
        self.stage = replace(self.stage, own_thread=beside.goes_through() and beside.error is None)
        place.clear()

    def noted(self, points: list[Point]) -> list[Point]:
        """Points that might be disturbed, for the report."""
        self.known.update(point.moment for point in points)
        return points

    def outcome(self) -> CrashMatrix:
        return CrashMatrix(
            sink=self.sink,
            promise=self.promise,
            points=len(self.points),
            known_points=len(self.known | self.points),
            crashes=self.happened["dies"],
            failures=self.happened["fails"],
            takeovers=self.happened["stands still"],
            waited=self.waited,
            losses=self.happened["forgets"],
            lost=self.lost,
            repeated=self.repeated,
            permitted=self.permitted,
            violations=tuple(self.violations),
        )

    def _place(self, make_sink: Callable[[], object]) -> Place:
        self.runs += 1
        place = Place(make_sink, data_frame=self.data_frame, seed=self.runs)
        place.batches.update(enumerate(self.batches))
        return place

    def _judge(self, plan: tuple[Point, ...], history: _History, difference: Difference) -> None:
        happened = [*history.reached, *history.waited]  # a successor that waits dies besides
        permitted = sum(_permitted_rows(self.promise, point, self.batches) for point in happened)
        self.happened.update(point.what for point in history.reached)
        self.points.update(point.moment for point in history.reached)
        self.waited += len(history.waited)
        self.lost += len(difference.lost)
        self.repeated += len(difference.repeated)
        self.permitted += permitted
        if history.error or _is_too_much(self.promise, difference, permitted):
            self.stage = replace(self.stage, patience_between_calls_s=0.0)  # it is wrong: nobody need wait for more
            self.violations.append(Violation(plan, difference, permitted, history.error))


def _is_too_much(promise: Promise, difference: Difference, permitted: int) -> bool:
    lost, repeated = len(difference.lost), len(difference.repeated)
    may_lose, may_repeat = (permitted, 0) if promise.at_most_once else (0, permitted)
    return bool(difference.foreign) or lost > may_lose or repeated > may_repeat


def _permitted_rows(promise: Promise, point: Point, batches: Sequence[Partitions]) -> int:
    """Rows one such disturbance may repeat. The segments of a batch are delivered one after the other here."""
    if promise.guarantee == "exactly_once":
        return 0
    if promise.ability is Ability.LOOK_UP and not (point.is_inside or point.what == "stands still"):
        return 0
    if promise.ability is Ability.SEGMENT_WRITER:
        return max(table.num_rows for partitions in batches for table in partitions)
    if promise.ability is Ability.BATCH_WRITER:
        return max(sum(table.num_rows for table in partitions) for partitions in batches)
    return CHUNK_ROWS


@dataclass
class _History:
    """The processes of one run."""

    place: Place
    stage: Stage
    reached: list[Point] = field(default_factory=list)
    waited: list[Point] = field(default_factory=list)
    """Those of `reached` at which the successor had to wait for the process that stood still."""
    takeovers: list[Takeover] = field(default_factory=list)
    error: str = ""
    forget: Callable[[int], None] | None = None
    """Lets the target lose its newest commits."""
    failed: bool = False
    """Whether a process to which something happened did not come to its end."""
    refused: bool = False
    """Whether a process refused to go on, since checkpoint, WAL and target tell different stories."""

    def disturbed(self, point: Point) -> None:
        """One process to which something happens. How it ends does not matter: the next one has to cope with it."""
        process = Process(self.place, hook=self._hook(point), lines=True)  # lines: they count as points
        self.failed = True
        try:
            process.live_to_end()
            self.failed = False
        except Crash as crash:
            bury(process, crash)
        except WalSinkError as error:
            self.refused = self.refused or isinstance(error, HistoryError)
            bury(process, error)
        for takeover in self.takeovers:
            self.error = self.error or takeover.end()

    def undisturbed(self, *, lines: bool = False) -> list[str]:
        """One process that has to come to its end."""
        process = Process(self.place, lines=lines)
        try:
            process.live_to_end()
        except WalSinkError as error:
            self.refused = self.refused or isinstance(error, HistoryError)
            self.error = self.error or told(error)
        return process.points

    def _hook(self, point: Point) -> Hook:
        def hook(process: Process, name: str) -> None:
            if len(process.points) != point.number or self.place.started != process.number:
                return
            if self.forget is not None and not is_between_calls(name):
                return  # a sink that does something else in every run: after its last look it could not be told
            self.reached.append(replace(point, name=name))
            if self.forget is not None:
                self.forget(point.newest)
                return
            if point.what == "dies":
                raise Crash(name)
            if point.what == "fails":
                raise ConnectionError("wal_sink.testing lets this request fail")
            self._take_over(self.reached[-1])

        return hook

    def _take_over(self, point: Point) -> None:
        """A process stands still here, and another one lives meanwhile.

        Inside a call it may well hold a lock: a successor that waits for it, or gives up, is neither right nor wrong.
        """
        takeover = Takeover(self.place, self.stage, is_inside=point.is_inside)
        self.takeovers.append(takeover)
        takeover.run()
        if takeover.waited or (takeover.error is not None and point.is_inside):
            self.waited.append(point)
        if point.is_inside:
            return
        if takeover.waited:
            self.error = "its successor waits for what this process holds on to between two calls of the sink"
        elif takeover.error is not None:
            self.error = f"{type(takeover.error).__name__}: {takeover.error}"

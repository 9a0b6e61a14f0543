"""`crash_matrix`: a run of three batches, disturbed at every point and compared with the promise of its sink."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar, get_args

import pyarrow as pa

from wal_sink.errors import ConfigError, HistoryError, WalSinkError
from wal_sink.sinks.base import BatchSink
from wal_sink.sinks.guarantees import Ability, Promise
from wal_sink.support.clock import SYSTEM
from wal_sink.support.texts import name_of, told
from wal_sink.testing.data.rows import Difference, Row, Rows
from wal_sink.testing.data.tables import Partitions, partitioned, replacing, three_batches
from wal_sink.testing.matrix.takeover import Beside, Stage, Takeover
from wal_sink.testing.matrix.verdict import (
    EVERYTHING,
    LOSSES,
    CrashMatrix,
    Point,
    Verdict,
    Violation,
    What,
    chosen,
    is_between_calls,
    points_of,
)
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.forgetting import GoBack, Replaced, Restoring
from wal_sink.testing.simulation.process import Hook, MakeFrame, Place, Process, bury, promise_of, resolve

T = TypeVar("T")

_DEATHS: tuple[What, ...] = ("dies",)
CHUNK_ROWS = 2
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_LONG_S = 60.0


def crash_matrix(
    make_sink: Callable[[T], object],
    rows_in: Callable[[T], Iterable[Row]],
    new_target: Callable[[], T],
    *,
    tables: Sequence[pa.Table] | None = None,
    key: Sequence[str] = (),
    disturb: Sequence[What] = EVERYTHING,
    every: int = 1,
    each_line: bool = True,
    double: bool = False,
    data_frame: MakeFrame | None = None,
    snapshot: Callable[[T], Any] | None = None,
    restore: Callable[[T, Any], object] | None = None,
    roll_back: Callable[[T, Any], object] | None = None,
) -> CrashMatrix:
    """Run three batches many times, each time with one disturbance, and compare the target with the sink's promise.

    In every run the production core delivers into a new target, without Spark and without real time. The disturbances:

    - A process *dies* after an operation of a store, before or after a call of the sink, or before a line of the sink's
      own code while it writes. The next process starts and continues.
    - A request *fails* there: an exception is raised, and the same process tries again.
    - A process *stands still* before or after it sends, or before a line of the sink's own code. A newer process takes
      over. The older one continues once the newer one has delivered everything, or waits for something that the older
      one holds: its call arrives late.
    - The target *forgets*: between two calls of the sink it loses its newest commit, or its newest two, as after a
      fail-over to a standby that lagged behind. The same process continues.
    - The target *loses rows*: the same, but the positions stay, as after a table was restored or truncated alone. The
      target of a `CommitSink` is rolled back.

    At the end every sent row must be in the target, and no other row. A row that the sink rejected counts as delivered,
    since it is kept as a dead letter. The kind of the sink decides how many rows a disturbance may repeat: none for an
    idempotent, transactional, two-phase or commit sink, the batch or the segment for a writer of whole batches or
    segments, one chunk for other sinks. A sink that delivers at most once may lose as many instead. Rows that the
    target of a transactional sink forgot, or that of a commit sink lost, are sent again. If their batch was marked
    before, delivery must end with `HistoryError`. No sink can notice other losses. They are left out, unless `disturb`
    asks for nothing else: then no other row may be missing or repeated, and `verdict` tells what became of the rows.

    - `make_sink(target)` makes the object that you pass to `WalSink` for this target. It is called once per process.
    - `rows_in(target)` reads the target with a separate client: a mapping from column to value for each row.
    - `new_target()` makes an empty target for each run. If a row under another key is another row, it may also return
      the same target each time.
    - `tables`: the batches. By default a row has a whole number `id` and a text `name`.
    - `key`: the columns by which a row replaces an earlier one in the target. Later batches then come with keys of the
      first one, and in the end the newest row of each key must be there. The target must be a new one for each run.
    - `disturb`: the disturbances to try, by default all.
    - `every=5` tries one point of five, for slow targets. Each line of the sink's code, each of its calls and each kind
      of operation of the log is still tried at least once; with `each_line=False` these are drawn at random too.
    - `double`: each process that follows a crash crashes too, at each of its points.
    - `data_frame` makes a DataFrame from a table, for writers of whole batches.
    - `snapshot(target)` returns the contents of a target, rows and ledger, and `restore(target, saved)` brings them
      back. With both, a target that forgets stays the same target, and the sink keeps its connection. Without them,
      another target takes its place, to which the sink wrote everything except the newest commits.
    - `roll_back(target, saved)` brings the rows of a snapshot back and leaves the positions, as RESTORE does. The
      target of a `CommitSink` loses rows only if it is given, and forgets only if `restore` is given.

    The result tells how many rows were lost and repeated. Its `check()` raises `AssertionError` if a promise is broken.
    Raises `ConfigError` for a sink that `WalSink` would refuse, and for arguments that would test nothing. Raises
    `AssertionError` if `rows_in` returns no such mappings.
    """
    _refuse_unknown(disturb, every, tables)
    restoring = _restoring(snapshot, restore, roll_back)
    batches = partitioned(_keyed(tables or three_batches(), key))
    trials = _Trials(make_sink, rows_in, new_target, batches, key, data_frame, restoring)
    disturb = trials.possible(disturb)
    with _quiet():
        undisturbed = trials.run((), lines=True)
        if not trials.violations:
            if "stands still" in disturb:
                trials.try_threads()
            trials.try_aborts(undisturbed, disturb)
            for point in chosen(trials.noted(points_of(undisturbed, disturb)), every=every, each_line=each_line):
                recovery = trials.run((point,), lines=double)
                if double and point.what == "dies":
                    seconds = trials.noted(points_of(recovery, _DEATHS))
                    for second in chosen(seconds, every=every, each_line=False, seed=trials.runs):
                        trials.run((point, second))
    return trials.outcome()


def _restoring(
    snapshot: Callable[[T], Any] | None, restore: GoBack[T] | None, roll_back: GoBack[T] | None
) -> Restoring[T] | None:
    if snapshot is None and restore is None and roll_back is None:
        return None
    if snapshot is None or (restore is None and roll_back is None):
        raise ConfigError("snapshot and restore (or roll_back) belong together: give both, or neither")
    return Restoring(snapshot, restore, roll_back)


def _keyed(tables: Sequence[pa.Table], key: Sequence[str]) -> Sequence[pa.Table]:
    if not key:
        return tables
    names = tables[0].column_names
    if isinstance(key, str) or not set(key) < set(names) or len(tables) < 2:
        raise ConfigError(
            f"key={key!r}: expected some of the columns {names}, but not all, and two tables or more: rows of a later "
            "one replace rows of the first one"
        )
    return replacing(tables, key)


def _refuse_unknown(disturb: Sequence[What], every: int, tables: Sequence[pa.Table] | None) -> None:
    unknown = [disturb] if isinstance(disturb, str) else [what for what in disturb if what not in EVERYTHING]
    if unknown:
        raise ConfigError(f"disturb: unknown value {unknown}. Expected a tuple with one or more of {EVERYTHING}")
    if every < 1:
        raise ConfigError(f"every={every}; expected 1 for all points, or 5 for one point of five")
    if tables is not None and not any(table.num_rows for table in tables):
        raise ConfigError(
            f"tables: {len(tables)} without a row, so no run can lose a row. Leave `tables` out, or add rows"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing for a while: the failures are made on purpose."""
    logger = logging.getLogger("wal_sink")  # noqa: TID251 - nothing is logged to it here
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Trials(Generic[T]):
    """All runs of a matrix, and their results."""

    make_sink: Callable[[T], object]
    rows_in: Callable[[T], Iterable[Row]]
    new_target: Callable[[], T]
    batches: Sequence[Partitions]
    key: Sequence[str]
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
    verdicts: set[Verdict] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sent = Rows.sent((table for partitions in self.batches for table in partitions), self.key)
        target = self.new_target()
        self.promise = promise_of(self.make_sink(target))
        sink = resolve(self.make_sink(target))[1]
        self.sink = name_of(sink)
        if isinstance(sink, BatchSink) and self.data_frame is None:
            raise ConfigError(
                f"{self.sink} writes whole batches as DataFrames. Pass a function that makes one from a pyarrow table: "
                "data_frame=spark.createDataFrame"
            )

    def run(self, plan: tuple[Point, ...], *, lines: bool = False) -> list[str]:
        """Run one process for each point of the plan, then an undisturbed one. Return the points of the last one."""
        if any(point.what in LOSSES for point in plan):
            return self._run_losing(plan)
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

    def _run_losing(self, plan: tuple[Point, ...]) -> list[str]:
        """Do the same with a target that loses acknowledged commits, or their rows.

        The next process of a transactional sink must repair forgotten commits, or refuse to continue. That of a commit
        sink must do so after a rollback, too.
        """
        keeps_positions = plan[0].what == "loses rows"
        must_notice = plan[0].what in self._noticed()
        restoring = self.restoring if must_notice else None
        replaced = Replaced(self.make_sink, self.new_target, self.rows_in, self.sent, restoring)
        place = self._place(replaced.make_sink)
        history = _History(place, self.stage, lose=partial(replaced.lose, keeps_positions=keeps_positions))
        for point in plan:
            history.disturbed(point)
        difference = self.sent.difference(replaced.delivered(place.rejected_rows()))
        points: list[str] = []
        # A process that came to its end has read the target: if rows are missing then, no later process may repair it.
        if history.failed or not (must_notice and difference.lost):
            points = history.undisturbed()
            difference = self.sent.difference(replaced.delivered(place.rejected_rows()))
        is_told = bool(history.error) or history.refused
        excused = difference.lost if is_told else replaced.lost()
        if must_notice and not (history.refused and replaced.owes(place.marked_batches())):
            excused = ()
        place.clear()
        self._judge(plan, history, difference, excused=excused)
        return points

    def possible(self, disturb: Sequence[What]) -> Sequence[What]:
        """Leave out losses that this kind of sink cannot notice, unless `disturb` has nothing else."""
        others: list[What] = [what for what in disturb if what not in LOSSES or what in self._noticed()]
        if others:
            return others
        if disturb and self.promise.ability in {Ability.COMMIT, Ability.SEGMENT_WRITER, Ability.BATCH_WRITER}:
            raise ConfigError(
                f"disturb={tuple(disturb)}: {self.sink} gets whole batches or segments. Only targets of sinks that get "
                "chunks can lose rows here. That of a CommitSink goes back by functions of yours: snapshot, and "
                "restore (forgets) or roll_back (loses rows)"
            )
        return disturb

    def _noticed(self) -> Sequence[What]:
        """Losses that happen here to a sink of this kind, and that it has to notice."""
        if self.promise.ability is Ability.TRANSACTIONAL:
            return ("forgets",)
        if self.promise.ability is not Ability.COMMIT or self.restoring is None:
            return ()
        ways = zip(LOSSES, (self.restoring.restore, self.restoring.roll_back), strict=True)
        return [what for what, way in ways if way is not None]

    def try_aborts(self, undisturbed: list[str], disturb: Sequence[What]) -> None:
        """Disturb the calls of `abort` in the third process: the first died with a transaction that nobody will commit,
        and the second came to its end, then died.
        """
        others: list[What] = [what for what in disturb if what not in LOSSES]
        if self.promise.ability is not Ability.TWO_PHASE or not others:
            return
        number = next(number for number, name in enumerate(undisturbed, 1) if name.startswith("after prepare"))
        first = Point("dies", number, undisturbed[number - 1])
        second = self.run((first,), lines=True)
        dead = (first, Point("dies", len(second), second[-1]))
        third = self.run(dead, lines=True)
        aborting = [name for name in third if name.startswith(("before abort", "after abort"))]
        for point in self.noted([point for point in points_of(third, others) if point.name in aborting]):
            self.run((*dead, point))

    def try_threads(self) -> None:
        """Find out whether each process may use this target on a separate thread. Some fakes refuse that."""
        target = self.new_target()
        place = self._place(lambda: self.make_sink(target))
        beside = Beside(Process(place).live_to_end, lambda: place.started, _LONG_S)
        self.stage = replace(self.stage, own_thread=beside.goes_through() and beside.error is None)
        place.clear()

    def noted(self, points: list[Point]) -> list[Point]:
        """Note points that can be disturbed, for the report. Return them."""
        self.known.update(point.moment for point in points)
        return points

    def outcome(self) -> CrashMatrix:
        """Sum up all runs."""
        found: set[Verdict] = self.verdicts or {"holds"}
        return CrashMatrix(
            sink=self.sink,
            promise=self.promise,
            points=len(self.points),
            known_points=len(self.known | self.points),
            crashes=self.happened["dies"],
            failures=self.happened["fails"],
            takeovers=self.happened["stands still"],
            waited=self.waited,
            losses=sum(self.happened[what] for what in LOSSES),
            verdict=max(found, key=_VERDICTS.index),
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

    def _judge(
        self, plan: tuple[Point, ...], history: _History, difference: Difference, *, excused: Sequence[str] = ()
    ) -> None:
        """Note what a run did. `excused`: rows that may be missing. An error that tells so breaks no promise either."""
        happened = [*history.reached, *history.waited]  # a newer process that waits dies too, which may repeat rows
        permitted = sum(_permitted_rows(self.promise, point, self.batches) for point in happened)
        self.happened.update(point.what for point in history.reached)
        self.points.update(point.moment for point in history.reached)
        self.waited += len(history.waited)
        self.repeated += len(difference.repeated)
        self.permitted += permitted
        self.verdicts.add(_verdict(difference, is_told=bool(history.error or (excused and history.refused))))
        if excused and difference.lost:
            missing = Counter(difference.lost) - Counter(excused)
            history.error, difference = "", replace(difference, lost=tuple(missing.elements()))
        self.lost += len(difference.lost)
        if history.error or _is_too_much(self.promise, difference, permitted):
            self.stage = replace(self.stage, patience_between_calls_s=0.0)  # the sink is wrong: no need to wait longer
            self.violations.append(Violation(plan, difference, permitted, history.error))


def _is_too_much(promise: Promise, difference: Difference, permitted: int) -> bool:
    lost, repeated = len(difference.lost), len(difference.repeated)
    may_lose, may_repeat = (permitted, 0) if promise.at_most_once else (0, permitted)
    return bool(difference.foreign or difference.replaced) or lost > may_lose or repeated > may_repeat


def _verdict(difference: Difference, *, is_told: bool) -> Verdict:
    if difference.lost or difference.foreign or difference.replaced:
        return "detected" if is_told else "cannot be seen"
    return "repeats" if difference.repeated else "holds"


def _permitted_rows(promise: Promise, point: Point, batches: Sequence[Partitions]) -> int:
    """Count the rows that one disturbance may repeat. Segments of a batch are delivered one after the other here."""
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
    """The points of `reached` at which the newer process had to wait for the one that stood still."""
    takeovers: list[Takeover] = field(default_factory=list)
    error: str = ""
    lose: Callable[[int], None] | None = None
    """Makes the target lose its newest commits, or their rows."""
    failed: bool = False
    """Whether the last disturbed process did not come to its end."""
    refused: bool = False
    """Whether a process refused to continue, since checkpoint, WAL and target contradict each other."""

    def disturbed(self, point: Point) -> None:
        """Run one process with a disturbance. It may end in any way: the next process has to deal with that."""
        process = Process(self.place, hook=self._hook(point), lines=self.lose is None)  # its lines count as points
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
        """Run one process that has to come to its end. Return its points."""
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
            if self.lose is not None and not is_between_calls(name):
                return  # this sink acts differently in each run; after its last read it could not notice the loss
            self.reached.append(replace(point, name=name))
            if self.lose is not None:
                self.lose(point.newest)
                return
            if point.what == "dies":
                raise Crash(name)
            if point.what == "fails":
                raise ConnectionError("wal_sink.testing makes this request fail")
            self._take_over(self.reached[-1])

        return hook

    def _take_over(self, point: Point) -> None:
        """Let this process stand still, and run a newer one meanwhile.

        Inside a call the older process may hold a lock. So the newer one may wait for it there, or give up.
        """
        takeover = Takeover(self.place, self.stage, is_inside=point.is_inside)
        self.takeovers.append(takeover)
        takeover.run()
        if takeover.waited or (takeover.error is not None and point.is_inside):
            self.waited.append(point)
        if point.is_inside:
            return
        if takeover.waited:
            self.error = (
                "the newer process waits for something, such as a lock, that this process holds between two calls of "
                "the sink"
            )
        elif takeover.error is not None:
            self.error = f"{type(takeover.error).__name__}: {takeover.error}"

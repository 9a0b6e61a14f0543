"""One process of a history: the production core, driven to its end as a query and its committers drive it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from tests.house.kit import served_sink, stage_tables
from tests.house.log import read_parquet
from tests.house.protocol import LocalDispatcher, Run, ServedSink
from tests.house.sinks import Sink, promise
from tests.simulation.histories.coroutines import Coroutine, running
from tests.simulation.histories.plans import COMMITTING, FORGETTING, ROLLED, ROLLING, Deed, Fault, LifePlan
from tests.simulation.histories.segments import COLUMN, numbered_tables, read_numbered, stage_numbered
from tests.simulation.histories.spark import Query, QueryFailedError, newest
from tests.simulation.histories.stores import SimulatedStore, failure_of
from tests.simulation.histories.targets import SINKS, LedgerSink, batch_writer
from tests.simulation.histories.unreliable import JobLost, UnreliableDispatcher
from tests.simulation.histories.world import HistoryWorld
from wal_sink.errors import CorruptError, FencedError, HistoryError, StoreError, WalSinkError
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.sinks.guarantees import Promise
from wal_sink.testing import Crash

IN_JOBS = frozenset({Deed.LOSE, Deed.LEAVE})
"""Deeds that wait for a delivery job: they happen at their point, or later, as soon as a job runs."""
ROLL_S = 100.0
"""Seconds for which a roll waits for later batches. A process that stands still twice finds it due."""
SLEEP_S = 60.0
"""The least time that passes while a process stands still."""


Hook = Callable[["HistoryProcess", str, str], object]
"""A function that is called at every point of a process, with the action and the place. Its answer is ignored."""


class HistoryProcess:
    """One process of a history."""

    def __init__(self, world: HistoryWorld, plan: LifePlan, hook: Hook | None = None) -> None:
        world.lives += 1
        self.world = world
        self.plan = plan
        self.number = world.lives
        self.losses_before = world.losses
        self.passed = 0
        """Number of points that it passed."""
        self.full_for = 0
        self.errors: list[WalSinkError] = []
        """Errors that ended the process or its query early."""
        self.was_disturbed = any(fault.deed not in FORGETTING for fault in plan.faults)
        self.reconnections = 0
        self.died = False
        self.in_job = False
        self.left: list[Coroutine] = []
        self._hook = hook
        self._at_number = [fault for fault in plan.faults if fault.at.any_point]
        self._at_step = [_Step(fault) for fault in plan.faults if not fault.at.any_point]
        self._is_plain = hook is None and not self._at_step
        """Whether only numbered points matter."""
        self._next = 0
        self._look_ahead()
        self._wal = world.wal_of(self)
        self._checkpoint = SimulatedStore(world.checkpoint, self)

    # Points.
    def point(self, what: str, where: str) -> None:
        """Pass a point: something is about to happen, or has happened."""
        self.passed += 1
        if self.passed < self._next and self._is_plain:
            return
        if self.died:
            raise Crash("dead already")
        if self.passed >= self._next:
            self._meet(what, where)
        if self._hook is not None:
            self._hook(self, what, where)
        for step in self._at_step:
            if step.what in what and step.where in where and step.is_due():
                self._at_step.remove(step)
                self._is_plain = self._hook is None and not self._at_step
                self._suffer(step.fault, what, where)
                break

    def take_time(self) -> None:
        """Let the time of one call of a target pass."""
        self.world.pass_s(self.world.plan.call_s)

    def met(self, what: str) -> None:
        """Count something that a target saw."""
        self.world.hits[what] += 1

    def refuse_create(self, path: str) -> None:
        self.full_for -= 1
        self._count(Deed.FULL)
        raise StoreError(f"{path}: no space left")

    def will(self, deed: Deed) -> bool:
        """Whether this deed is still to happen to the process."""
        return any(fault.deed is deed for fault in self._at_number)

    def _meet(self, what: str, where: str) -> None:
        self.world.note(f"{self.number}: {self.passed:4} {what} {where}")
        for fault in self._at_number:
            if fault.at.number <= self.passed and (self.in_job or fault.deed not in IN_JOBS):
                self._at_number.remove(fault)
                self._look_ahead()
                self._suffer(fault, what, where)
                return

    def _look_ahead(self) -> None:
        """Find the next point that matters. Every point matters while a trace is kept."""
        if self.world.trace is not None:
            self._next = 0
        elif self._at_number:
            self._next = min([fault.at.number for fault in self._at_number])
        else:
            self._next = sys.maxsize

    def _suffer(self, fault: Fault, what: str, where: str) -> None:
        self.world.note(f"{self.number}:      ** {fault.deed}")
        match fault.deed:
            case Deed.CRASH:
                self._die()
                self.world.died(what)
                raise Crash(f"{what} {where}")
            case Deed.FAIL:
                self._count(_failure_name(what))
                raise failure_of(what, where)
            case Deed.FULL:
                self.full_for = fault.size
            case Deed.DELAY:
                self.world.hits[Deed.DELAY] += 1
                self.world.pass_s(fault.size)
            case Deed.PAUSE:
                self._stand_still()
            case Deed.LOSE:
                self._count(Deed.LOSE)
                raise JobLost
            case Deed.LEAVE:
                self._count(Deed.LEAVE)
                self._stand_still()
            case Deed.WAKE:
                self.wake_tasks()
            case Deed.FORGET | Deed.FORGET_SLOT | Deed.REPLACE | Deed.RESTORE:
                self.world.forget(fault.deed, fault.size)
                self.reconnections += fault.deed is Deed.REPLACE

    def _die(self) -> None:
        self.died = True
        self._is_plain = False

    def _stand_still(self) -> None:
        coroutine = running()
        if coroutine is not None:
            self.world.hits["stood still"] += 1
            coroutine.pause()
            self.world.pass_s(SLEEP_S)
            self.world.hits["woke up"] += 1

    def wake_tasks(self) -> None:
        """Let every task that outlived its job run to its end."""
        while self.left:
            self.world.hits[Deed.WAKE] += 1
            self.left.pop().resume()

    def _count(self, name: str) -> None:
        self.world.hits[name] += 1
        self.world.judge.disturbances += 1

    def close(self) -> None:
        """Drop all references to it. The search for garbage in cycles took a fifth of all time."""
        self.errors.clear()
        self._die()  # tasks that never woke up end with the process, and touch nothing any more
        while self.left:
            self.left.pop().kill()
        del self._wal, self._checkpoint

    # Living.
    def live(self) -> bool:
        """Live to the end, or until it dies. Returns False if it died."""
        self.world.running += 1
        try:
            self._live()
        except Crash:
            self._die()
        except WalSinkError as error:
            self._ended_by(error)
        finally:
            self.world.running -= 1
        return not self.died

    def _open(self) -> Run:
        run = Run(
            self._wal,
            self._checkpoint,
            lower_retention(
                self.plan.retention,
                chunk_rows=self.plan.chunk_rows,
            ),
            runtime=self.world.runtime,
            segment_reader=read_parquet if self.world.plan.parquet else read_numbered,
        )
        run.open([self._served_sink(run, name) for name in list(self.world.kinds)[: self.plan.sinks]])
        return run

    def _live(self) -> None:
        run = self._open()
        self._told(run, lambda: self.deliver_all(run, closes=self.plan.closes_every == 1))
        for start in range((1 + self.plan.restarts) * self.plan.stages):
            if start and self.plan.restart is not None:
                self.world.tamper(self.plan.restart)
            self.world.hits["query restarted"] += start
            self._stream(run)
        run.history.load_owner()
        run.gate.search()
        self.deliver_all(run)
        self._told(run, lambda: self._confirm(run))
        if not self.errors and self.world.judge.alone:
            self._judge_end(run)

    def _judge_end(self, run: Run) -> None:
        """An end in order leaves nothing that Spark completed."""
        complete = newest(self.world.checkpoint, "commits")
        for committer in run.committers:
            due = committer._due_batch()
            if due is not None and due <= complete:
                self.world.judge.blame(f"process {self.number} ended, and left batch {due} to deliver")

    def _confirm(self, run: Run) -> None:
        """Confirm the markers a last time, as closing a run does."""
        for committer in run.committers:
            committer.confirm_marked()

    def _told(self, run: Run, look: Callable[[], None]) -> None:
        """Take a look at the marked batches. If it raises nothing, no marked row may have been lost before it."""
        judge = self.world.judge
        since, marked = judge.now, [(committer.name, committer.marked_through) for committer in run.committers]
        look()
        for name, through in marked:
            judge.looked(name, since=since, through=through)

    def _stream(self, run: Run) -> None:
        """Start the query and run it to its end."""
        try:
            run.become_stager()
            for _ in self.batches(run):
                continue
        except QueryFailedError as error:
            self.world.hits["query failed"] += 1
            self.world.note(f"{self.number}:      !! {error}")
        except WalSinkError as error:
            # The query fails. Its committers go on with the batches that are complete.
            self._ended_by(error)

    def batches(self, run: Run) -> Iterator[int]:
        """Start the query and run its batches. Yield each after its commit and, unless it lags, its delivery."""
        query = Query(self._checkpoint, self.world.checkpoint, self.world)
        while (batch_id := query.batch_id) < len(self.world.plan.batches):
            self._run_batch(run, query)
            yield batch_id

    def _run_batch(self, run: Run, query: Query) -> None:
        query.plan()
        batch_id = query.batch_id
        attempt = self.world.judge.evaluated(self.number, batch_id, query.end)
        partitions = self.world.plan.batches[batch_id]
        folder = run.begin_staging(batch_id, planned_ms=query.planned_ms)
        if folder is None:
            self.world.hits["replayed batch"] += 1
        elif self.world.plan.parquet:
            tables = numbered_tables(attempt.first, partitions)
            inline_bytes = 1 << 20 if self.world.plan.inline else 0
            run.end_staging(folder, stage_tables(run, folder, tables, inline_bytes=inline_bytes))
        else:
            context = run.staging_context(folder, columns=(COLUMN,), spark_schema="")
            staged = stage_numbered(
                run.log,
                context,
                attempt.first,
                partitions,
                uneven=self.world.plan.uneven,
                inline=self.world.plan.inline,
            )
            run.end_staging(folder, staged)
        closes = (batch_id + 1) % self.plan.closes_every == 0
        if not self.plan.lagging:
            self.deliver_all(run, closes=closes)  # this batch must not be delivered yet
        query.complete()
        if not self.plan.lagging:
            self.deliver_all(run, closes=closes)

    def deliver_all(self, run: Run, *, closes: bool = True) -> None:
        if self.world.plan.forgets:
            for target in self.world.targets.values():
                target.held.clear()
        for committer in run.committers:
            while run.advance(committer, closes=closes):
                continue

    def _ended_by(self, error: WalSinkError) -> None:
        self.errors.append(error)
        self.world.judge.errors.append((self.number, type(error).__name__))
        self.world.note(f"{self.number}:      !! {type(error).__name__}: {error}")
        if isinstance(error, FencedError):
            self.world.hits["fenced"] += 1
        if isinstance(error, HistoryError):
            self.world.hits["refused history"] += 1
        if isinstance(error, CorruptError) and "existed" in str(error):  # an object that is gone, not a damaged one
            self.world.hits["told"] += 1

    def _served_sink(self, run: Run, name: str) -> ServedSink:
        kind, plan = self.world.kinds[name], self.world.plan
        target: Any = self.world.targets[name]
        keeps = kind == "transactional" and plan.refusing > 0
        delivery = delivery_of(
            kind,
            plan.attempts,
            keeps=keeps,
            starts_next=plan.starts_next,
            in_order=plan.in_order,
            roll_bytes=self.plan.roll_bytes,
        )
        if kind == "transactional":  # each attempt has its own connection
            dispatcher = LocalDispatcher(lambda: LedgerSink(self, target), run.log, should_stop=lambda: False)
            return self._unreliable(ServedSink(name, delivery, promise_of(kind), dispatcher))
        served = served_sink(
            name,
            SINKS[kind](self, target),
            delivery,
            run.log,
            write_batch=batch_writer(self, target, run.log),
            kept=promise_of(kind),
            make_sink=lambda: cast("Sink", SINKS[kind](self, target)),
        )
        return self._unreliable(served)

    def _unreliable(self, served: ServedSink) -> ServedSink:
        if not any(fault.deed in IN_JOBS for fault in self.plan.faults):
            return served
        dispatcher = UnreliableDispatcher(served.dispatcher, self, answers=self.world.plan.answers)
        return replace(served, dispatcher=dispatcher)


class _Step:
    """A fault that waits for the n-th point of a kind."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.what = fault.at.what
        self.where = fault.at.where
        self._left = fault.at.number

    def is_due(self) -> bool:
        self._left -= 1
        return self._left <= 0


def _failure_name(what: str) -> str:
    if what.endswith("sink"):
        return f"sink failed {what.split(maxsplit=1)[0]} its effect"
    return "lost answer" if what.startswith("after") else "error before effect"


@cache
def lower_retention(batches: int, *, chunk_rows: int = 2, **settings: Any) -> Settings:
    """Settings that keep fewer batches than a real WAL may."""
    lowered = Settings(chunk_rows=chunk_rows, **settings)
    object.__setattr__(lowered, "retention_batches", batches)
    return lowered


@cache
def delivery_of(
    kind: str,
    attempts: int = 1,
    *,
    keeps: bool = False,
    starts_next: bool = False,
    in_order: bool = False,
    roll_bytes: int = 1,
) -> Delivery:
    return Delivery(
        None,
        guarantee="at_most_once" if kind == "at_most_once" else None,
        retry=Retry(attempts=attempts),
        start_from="next" if starts_next else "earliest",
        on_rejected="dead_letter" if keeps else "halt",
        max_concurrency=1 if in_order and kind not in {"batch", COMMITTING, ROLLED + COMMITTING} else None,
        roll_s=ROLL_S if kind in ROLLING else None,
        roll_bytes=roll_bytes,
    )


@cache
def promise_of(kind: str) -> Promise:
    nobody: Any = SimpleNamespace(reconnections=0)  # a sink calls neither process nor target before it is opened
    return promise(SINKS[kind](nobody, nobody), delivery_of(kind), "sink")

"""The world that outlives the processes of one history: WAL, checkpoint, targets, clock, and the judge."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Self

from tests.house.stores import Store
from tests.house.support import DirectCall, Runtime
from tests.simulation.histories.losing import lose
from tests.simulation.histories.losses import LossJudge
from tests.simulation.histories.plans import COMMITTING, NAMES, ROLLED, Deed, Loss, Plan, Tamper, Tampering
from tests.simulation.histories.process import Process
from tests.simulation.histories.spark import end_in, next_batch, tamper
from tests.simulation.histories.stores import SimulatedStore, Space
from tests.simulation.histories.targets import CommitTarget, LedgerTarget, LosingTarget, Target, forget
from wal_sink.support.calls import in_turn

_START = datetime(2026, 1, 1, tzinfo=UTC)
_START_TEXT = _START.isoformat(timespec="milliseconds")


class HistoryWorld:
    """The world of one history."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self.plan = plan
        self.kinds = dict(zip(NAMES, plan.kinds, strict=False))
        self.judge = LossJudge(plan.segments, self.kinds)
        self.wal = Space("memory://wal", self.judge, disorder=plan.disorder, two_looks=plan.two_looks)
        self.checkpoint = Space(
            "memory://checkpoint", CommitWatcher(self), disorder=plan.disorder, two_looks=plan.two_looks
        )
        self.targets = {name: self._target(name) for name in self.kinds}
        self.hits: defaultdict[str, int] = defaultdict(int)
        """How often each thing happened, by name."""
        self.trace: list[str] | None = [] if traced else None
        self.restored = 0
        self.lives = 0
        self.running = 0
        """Number of processes that live."""
        self.losses = 0
        """Number of times at which targets lost what they acknowledged."""
        self._contradicted = False
        self._restored_through = sys.maxsize
        self.runtime = self._runtime()
        self._elapsed_s = 0.0
        self._ids = 0
        self._plans = 0
        self._histories = [0] * len(plan.batches)

    def branch(self, plan: Plan) -> Self:
        """A copy of this world that goes on with another plan."""
        other = type(self).__new__(type(self))  # far cheaper than `copy.copy`
        other.__dict__.update(self.__dict__)
        other.plan = plan
        other.judge = self.judge.copy()
        other.wal = self.wal.copy(other.judge)
        other.checkpoint = self.checkpoint.copy(CommitWatcher(other))
        other.targets = {name: target.current().copy(other.judge) for name, target in self.targets.items()}
        other.hits = self.hits.copy()
        other.running = 0
        other._histories = self._histories.copy()
        other.runtime = other._runtime()
        return other

    @property
    def may_refuse(self) -> bool:
        """Whether checkpoint and WAL contradict each other, so that a process may have to refuse."""
        return self._contradicted or self._restored_through < self.judge.low_water

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(line)

    def died(self, what: str) -> None:
        """Count the death of a process."""
        self.hits[Deed.CRASH] += 1
        self.judge.disturbances += 1
        if what == "after delete":
            self.hits["partial deletion"] += 1

    def pass_s(self, seconds: float) -> None:
        self._elapsed_s += seconds

    def wal_of(self, process: Process) -> Store:
        """The WAL as a process sees it."""
        return SimulatedStore(self.wal, process)

    def close(self) -> None:
        """Drop all references to it: see `HistoryProcess.close`."""
        del self.runtime, self.checkpoint

    # The input of the query.
    def end_of(self, batch_id: int) -> int:
        """The end of a batch's offsets. Another history of the batch has other offsets."""
        return batch_id + 1000 * self._histories[batch_id]

    def next_plan(self) -> int:
        self._plans += 1
        return self._plans

    def tamper(self, given: Tamper) -> None:
        """Change the checkpoint."""
        self.hits[given.what] += 1
        self.note(f"-- checkpoint: {given.what}, through batch {given.through}")
        tamper(self.checkpoint, given)
        self.judge.tampered = True
        self._restored_through = min(self._restored_through, next_batch(self.checkpoint) - 1)
        if given.what is Tampering.FORGET:
            return
        self.restored += 1
        if self.running or given.what is Tampering.OTHER:
            self._contradicted = True
        if given.what is Tampering.OTHER:
            for batch_id in range(given.through + 1, len(self._histories)):
                self._histories[batch_id] += 1

    def forget(self, deed: Deed, size: int) -> None:
        """Let every target that stores positions lose its newest commits."""
        self.losses += 1
        for name, target in self.targets.items():
            if isinstance(target := target.current(), LosingTarget):
                lost = forget(target, deed, size, self.plan.seed + self.losses)
                self.hits[deed] += lost > 0
                self.note(f"-- sink {name!r}: {deed}, {lost} commits")

    def lose(self, given: Loss) -> None:
        """Remove objects from the WAL that it must not lose."""
        if taken := lose(self.wal, given):
            self.hits[given.how] += 1
            self.judge.lost(taken)
        self.note(f"-- WAL: {given} took {taken}")

    def ends(self) -> list[int | None]:
        """The ends of the offsets in the checkpoint, by batch; None where it has none."""
        entries = (self.checkpoint.objects.get(f"offsets/{number}") for number in range(len(self.plan.batches)))
        return [None if entry is None else end_in(entry) for entry in entries]

    def _target(self, name: str) -> Target:
        if self.kinds[name] == "transactional":
            return LedgerTarget(name, self.judge, told_at_a_time=self.plan.refusing)
        is_committed = self.kinds[name].removeprefix(ROLLED) == COMMITTING
        return (CommitTarget if is_committed else Target)(name, self.judge)

    def _runtime(self) -> Runtime:
        return SimulatedRuntime(
            now=self._now,
            monotonic_s=self._monotonic_s,
            sleep_s=self.pass_s,
            new_id=self._new_id,
            new_random=self._new_random,
            new_timed_call=DirectCall,
            side_by_side=in_turn,
        )

    def _now(self) -> datetime:
        return _START + timedelta(seconds=self._elapsed_s) if self._elapsed_s else _START

    def _monotonic_s(self) -> float:
        return self._elapsed_s

    def _new_random(self) -> random.Random:
        return random.Random(self.plan.seed)

    def _new_id(self) -> str:
        self._ids += 1
        return str(self._ids).zfill(32)  # every digit is hexadecimal


class SimulatedRuntime(Runtime):
    """A runtime with a constant timestamp as text. Formatting the time for every record would cost too much."""

    def timestamp(self) -> str:
        return _START_TEXT


class CommitWatcher:
    """A watcher that notes which batches Spark completes, and which offsets they read."""

    def __init__(self, world: HistoryWorld) -> None:
        self._world = world

    def created(self, process: int, path: str, data: bytes) -> None:  # noqa: ARG002
        folder, _, number = path.partition("/")
        if folder == "commits":
            entry = self._world.checkpoint.objects[f"offsets/{number}"]
            self._world.judge.completed.add((int(number), end_in(entry)))

    def deleting(self, path: str) -> None:
        """Do nothing: only `HistoryWorld.tamper` deletes here."""

    def listed(self, process: int, prefix: str) -> None:
        """Do nothing: no law depends on it."""

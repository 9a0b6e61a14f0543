"""The simulated world of one sink, for tests that start, stop and disturb its processes themselves.

Processes, stores, targets and the judge are those of the histories. Segments are Parquet files here, and each process
keeps the names of the points that it passed: before and after every operation of a store and every call of the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.house.protocol import Run
from tests.simulation.histories.branching import Branching
from tests.simulation.histories.coroutines import Coroutine
from tests.simulation.histories.facts import SinkFacts
from tests.simulation.histories.lives import HistoryProcess, Hook
from tests.simulation.histories.plans import (
    NAMES,
    SENDING,
    THREE_BATCHES,
    At,
    Deed,
    Fault,
    LifePlan,
    Plan,
    Shape,
    Tamper,
    Tampering,
)
from tests.simulation.histories.segments import ROWS
from tests.simulation.histories.targets import Target
from tests.simulation.histories.world import HistoryWorld
from wal_sink.errors import FencedError, WalSinkError
from wal_sink.settings import Retry

CHUNK_ROWS = 2
KINDS = SENDING


class World(HistoryWorld):
    """One WAL, one checkpoint and one target. Processes come and go."""

    def __init__(
        self,
        kind: str = "plain",
        *,
        batches: Shape = THREE_BATCHES,
        retention: int = 200,
        zombies: bool = False,
        lagging: bool = False,
        inline: bool = False,
    ) -> None:
        """`zombies`: several processes may live at the same time. `lagging`: they deliver when all is complete.
        `inline`: the rows of all partitions of a batch travel inline.
        """
        each = LifePlan(
            chunk_rows=CHUNK_ROWS,
            retention=retention,
            lagging=lagging,
        )
        attempts = Retry().attempts
        super().__init__(Plan((kind,), batches, acts=(), last=each, attempts=attempts, parquet=True, inline=inline))
        self.judge.alone = not zombies

    @property
    def facts(self) -> SinkFacts:
        """The judge's knowledge of the sink."""
        return self.judge.sinks[NAMES[0]]

    @property
    def target(self) -> Target:
        return self.targets[NAMES[0]]

    def life(self, *faults: Fault, hook: Hook | None = None) -> Life:
        """A new process to which these faults happen."""
        return Life(self, replace(self.plan.last, faults=faults), hook)

    def standing_still(self, what: str, where: str = "", *, number: int = 1) -> Coroutine:
        """A process that stands still at its n-th such point, or has ended before. It goes on when it is resumed."""
        life = self.life(Fault(Deed.PAUSE, At(number, what, where)))
        coroutine = Coroutine(life.live)
        coroutine.resume()
        if coroutine.error is not None:
            raise coroutine.error
        return coroutine

    def add_batch(self, partitions: tuple[int, ...]) -> None:
        """Let the input have one batch more."""
        self.plan = replace(self.plan, batches=(*self.plan.batches, partitions))
        self.judge.batches = self.plan.batches
        self._histories.append(0)

    def forget_newest_commit(self) -> None:
        """Remove the newest commit, as a crash of the machine may from a local disk. Spark runs the batch again."""
        self.tamper(Tamper(Tampering.FORGET))

    def roll_back(self, through: int) -> None:
        """Restore the checkpoint to just after batch `through`."""
        self.tamper(Tamper(Tampering.SAME, through))

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        """The attempt, the batch and the number of each row in the target, in order of arrival."""
        attempts = self.judge.attempts
        return [
            (number // ROWS, attempts[number // ROWS].batch_id, number % ROWS)
            for number, times in self.facts.seen.items()
            for _ in range(times)
        ]

    def staged_attempt(self, batch_id: int) -> int:
        """The number of the batch's attempt whose manifest came last."""
        return [staged.first // ROWS for (batch, *_), staged in self.judge.staged.items() if batch == batch_id][-1]

    def check_end(self, *, crashes: int) -> None:
        """Check the laws for every batch. `crashes` counts all that may leave a send in doubt: failures, takeovers."""
        self.judge.disturbances = crashes
        self.judge.judge_end(finished=True, ends=self.ends())
        assert not self.judge.violations, self.judge.violations


class Life(HistoryProcess):
    """One process, from its start to its end. Its errors are raised."""

    def __init__(self, world: World, plan: LifePlan, hook: Hook | None) -> None:
        self.points: list[str] = []
        self.delivering = False
        """Whether it is the committer's turn, or was when the process ended."""
        super().__init__(world, plan, hook)

    def point(self, what: str, where: str) -> None:
        self.points.append(f"{what} {where}".rstrip())
        super().point(what, where)

    def deliver_all(self, run: Run, *, closes: bool = True) -> None:
        self.delivering = True
        super().deliver_all(run, closes=closes)
        self.delivering = False

    def open_run(self) -> Run:
        """Open the WAL and become the stager. The test does the rest."""
        run = self._open()
        run.become_stager()
        return run

    def _ended_by(self, error: WalSinkError) -> None:
        raise error


def finish(standing: Coroutine) -> FencedError | None:
    """Let a process that stands still go on to its end. Returns the error that fenced it, and raises any other."""
    standing.resume()
    assert standing.done
    if standing.error is None or isinstance(standing.error, FencedError):
        return standing.error
    raise standing.error


def dies(what: str, where: str = "", *, number: int = 1) -> Fault:
    """The death of a process at its n-th such point."""
    return Fault(Deed.CRASH, At(number, what, where))


def dies_at(point: int) -> Fault:
    """The death of a process at its n-th point, counted from 1."""
    return Fault(Deed.CRASH, At(point))


def fails_at(*points: int) -> tuple[Fault, ...]:
    """Errors of the store, or of the target, at these points, counted from 1."""
    return tuple(Fault(Deed.FAIL, At(point)) for point in points)


def points_of(kind: str = "plain", batches: Shape = THREE_BATCHES, *, inline: bool = False) -> list[str]:
    """The points of an undisturbed process."""
    life = World(kind, batches=batches, inline=inline).life()
    assert life.live()
    return life.points


def effects(points: Sequence[str]) -> list[int]:
    """The points at which a crash can leave a new world: the first, and those right after an effect.

    Between two effects a process only reads, so it leaves the same world wherever it dies there.
    """
    return [1, *(number for number, point in enumerate(points, 1) if point.startswith("after "))]


def deaths(world: World) -> Iterator[World]:
    """Live once in a world, and yield a copy of it for each effect: the world that a death right after it leaves.

    The first copy is that of a process which dies at its first point. See `effects`.
    """
    born = world.branch(world.plan)
    branching = Branching(world, dict.fromkeys(range(1, 1000), world.plan))
    assert world.life(hook=branching).live()
    yield born
    for left in branching.worlds.values():
        assert isinstance(left, World)
        yield left

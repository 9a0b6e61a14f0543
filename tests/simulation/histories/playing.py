"""Playing a plan: its lives, one after the other or in turns, then one undisturbed life, then the judgement."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import wal_sink.log.terms
import wal_sink.protocol.collect
from tests.house.support import ProcessIdentity, process_identity
from tests.simulation.histories.branching import Branching
from tests.simulation.histories.coroutines import Coroutine
from tests.simulation.histories.lives import HistoryProcess
from tests.simulation.histories.plans import MOST_ATTEMPTS, LifePlan, Plan
from tests.simulation.histories.world import HistoryWorld
from wal_sink.errors import CorruptError, DeliveryError, FencedError, HistoryError, OutcomeUnknownError, StoreError
from wal_sink.protocol.history import MissingBatchError

_UNEXPECTED = "unexpected"


@dataclass(slots=True)
class Played:
    """The result of one history."""

    violations: list[str]
    hits: dict[str, int]
    points: int
    world: HistoryWorld
    """The world as the history left it."""
    trace: list[str] = field(default_factory=list)

    @property
    def unexpected(self) -> list[str]:
        """The violations that are errors which the core never raises, such as a `TypeError`."""
        return [violation for violation in self.violations if violation.startswith(_UNEXPECTED)]


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of one life."""

    points: int
    came_to_its_end: bool
    """Whether no error ended it early."""


@contextmanager
def small_world() -> Iterator[None]:
    """Collect after every batch, and log no failures, since they are intended."""
    level = logging.getLogger("wal_sink").level
    logging.getLogger("wal_sink").setLevel(logging.CRITICAL + 1)
    try:
        with mock.patch.object(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1), one_identity():
            yield
    finally:
        logging.getLogger("wal_sink").setLevel(level)


@contextmanager
def one_identity() -> Iterator[None]:
    """Ask the system once who this process is. Each claim of a term asks, which took a sixth of all time."""
    here = process_identity()

    def known() -> ProcessIdentity:
        return here

    with mock.patch.object(wal_sink.log.terms, "process_identity", known):
        yield


def play(plan: Plan, *, traced: bool = False) -> Played:
    """Play one history to its end. Call it within `small_world`."""
    playing = Playing(HistoryWorld(plan, traced=traced))
    for act in plan.acts:
        playing.act(act)
    return playing.end()


def play_family(plans: Sequence[Plan]) -> list[Played]:
    """Play histories that differ only in the effect after which their last act dies. Results are those of `play`.

    Where the process ends before its effect, the histories are one and the same, which is played once: the seed decides
    nothing but the pauses between attempts, and the last life is undisturbed.
    """
    by_effect = {crash_effect(plan): plan for plan in plans}
    longest = by_effect[max(by_effect)]
    playing = Playing(HistoryWorld(longest))
    for act in longest.acts[:-1]:
        playing.act(act)
    branching = Branching(playing.world, {effect: plan for effect, plan in by_effect.items() if plan is not longest})
    playing.alone(longest.acts[-1][0], branching)
    died = {effect: Playing(world).end() for effect, world in branching.worlds.items()}
    lived = playing.end()
    return [died.get(crash_effect(plan), lived) for plan in plans]


def crash_effect(plan: Plan) -> int:
    """The number of the effect after which the process of the last act dies."""
    return plan.acts[-1][0].faults[0].at.number


class Playing:
    """A history under way, in a new world or in a branch of another world."""

    def __init__(self, world: HistoryWorld) -> None:
        self.world = world
        self._points = 0

    def act(self, act: tuple[LifePlan, ...]) -> None:
        """Play one life, or several in turns."""
        if len(act) == 1:
            self.alone(act[0])
        else:
            self._by_turns(act)

    def end(self) -> Played:
        """Play the last, undisturbed life, and judge."""
        world = self.world
        finished = self.alone(world.plan.last).came_to_its_end
        world.judge.judge_end(finished=finished, ends=world.ends())
        played = Played(world.judge.violations, self._hits(), self._points, world, world.trace or [])
        world.close()
        return played

    def alone(self, plan: LifePlan, branching: Branching | None = None) -> Ended:
        """Play one life to its end."""
        self.world.judge.alone = True
        life = self._born(plan, branching)
        try:
            life.live()
            life.wake_tasks()
        except Exception as error:  # noqa: BLE001 - any other exception is a finding
            self._unexpected(error)
        ended = Ended(life.passed, came_to_its_end=not life.errors)
        self._judge_ending(life)
        return ended

    def _by_turns(self, act: tuple[LifePlan, ...]) -> None:
        """Play lives in turns. Each begins when the one before stands still or has ended; then all run to their end."""
        self.world.judge.alone = False
        self.world.judge.disturbances += len(act) - 1
        living: list[tuple[HistoryProcess, Coroutine]] = []
        for plan in act:
            life = self._born(plan)
            living.append((life, Coroutine(life.live)))
            living[-1][1].resume()
        while any(not coroutine.done for _, coroutine in living):
            for _, coroutine in living:
                if not coroutine.done:
                    coroutine.resume()
        for life, coroutine in living:
            if coroutine.error is not None:
                self._unexpected(coroutine.error)
            self._judge_ending(life)

    def _born(self, plan: LifePlan, branching: Branching | None = None) -> HistoryProcess:
        if plan.before is not None:
            self.world.tamper(plan.before)
        if plan.forgotten:
            self.world.forget(plan.forgotten_by, plan.forgotten)
        if plan.loses is not None:
            self.world.lose(plan.loses)
        return HistoryProcess(self.world, plan, branching)

    def _judge_ending(self, life: HistoryProcess) -> None:
        """Blame a life for an error that nothing in its history explains."""
        self._points += life.passed
        for error in life.errors:
            if not self._may_raise(life, error):
                self.world.judge.blame(f"process {life.number} ended by {type(error).__name__}: {error}")
        life.close()

    def _may_raise(self, life: HistoryProcess, error: Exception) -> bool:
        if self.world.judge.lost_objects and isinstance(error, (CorruptError, HistoryError, FencedError)):
            return True
        if isinstance(error, (CorruptError, MissingBatchError)) and self.world.judge.began_amid_a_collection:
            return True
        if isinstance(error, HistoryError):
            return self.world.may_refuse or self.world.judge.owes_rows
        if isinstance(error, FencedError):
            return self.world.may_refuse or not self.world.judge.alone
        losses = self.world.losses - life.losses_before
        was_disturbed = life.was_disturbed or losses >= MOST_ATTEMPTS
        return was_disturbed and isinstance(error, (StoreError, OutcomeUnknownError, DeliveryError))

    def _unexpected(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error, limit=-3))
        self.world.judge.blame(f"{_UNEXPECTED} {type(error).__name__}: {error}\n{text}")

    def _hits(self) -> dict[str, int]:
        world = self.world
        world.hits["collected"] += world.judge.deletions > 0
        world.hits["shuffled listing"] += world.wal.shuffles + world.checkpoint.shuffles
        world.hits["listing in two looks"] += world.wal.pages + world.checkpoint.pages
        world.hits["written again"] += world.judge.written_again
        world.hits["late send"] += sum(len(facts.late) for facts in world.judge.sinks.values())
        rolls = [roll for facts in world.judge.sinks.values() for roll in facts.rolls.items()]
        world.hits["roll of several batches"] += sum(last > first for first, last in rolls)
        world.hits["repeated chunk"] += sum(facts.repeated_chunks for facts in world.judge.sinks.values())
        return world.hits

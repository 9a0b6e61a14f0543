"""Processes that deliver into one target and are killed at random moments, mostly in the middle of their work."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.backend_life import NAME, ids_of, live
from tests.chaos.lives import tally
from tests.chaos.moments import Seen, query_met
from tests.chaos.scenario import Effort, Outcome
from tests.house.log import paths
from tests.support.forked import ForkedChild
from tests.support.processes import Child
from tests.support.streams import Home

KILLS = 30
LEAST_HITS = 1 / 3
"""The least share of kills that must meet a batch in progress, in a process that had delivered a batch before."""
SPARE = 2
"""The number of extra kills if too few met such a batch. With few kills, all may fall between two batches."""
EARLY_S = 0.6
"""The longest time between the takeover of a life that dies early and its death."""
LIMIT_S = 120.0
NEVER = 10**6
"""More batches than any life has time for."""
IN_PROGRESS = frozenset(
    {"staging", "staging, a segment whole", "between stage and commit", "complete but not released", "delivering"}
)
FIRST = "its first batch: "
"""Marks a life that has not delivered a batch yet. It may still be connecting, so the target may not know of it."""


@dataclass(frozen=True)
class Target:
    """The place where rows arrive. The target's own client counts them there."""

    url: str
    ids: Callable[[], Sequence[int]]
    environment: Mapping[str, str] = field(default_factory=dict)
    rows: Callable[[], Sequence[Any]] = list
    """Whole rows, of a lake table or a change stream."""


def killed_before(target_in: Callable[[Path], AbstractContextManager[Target]], effort: Effort) -> Outcome:
    """Kill lives at random moments, one after the other over the same WAL. Then let one more life finish."""
    kills = effort.times(KILLS, least=2)
    with target_in(effort.folder) as target:
        lives = Lives(effort, target)
        for death in [*deaths(kills, lives.chance), *[at_work] * SPARE]:
            if lives.outcome.rounds >= kills and lives.hits >= LEAST_HITS * kills:
                break
            if not lives.end_by(death):
                return lives.outcome
        batches = lives.finish()
        count(lives.outcome, batches, target.ids())
    tell(lives, kills, batches)
    return lives.outcome


class Span(NamedTuple):
    """The time that a batch took."""

    batch_s: float
    """The time from its plan to its marker."""
    delivery_s: float
    """The time from its release to its marker."""


Death = Callable[["Lives", Child, Seen], float]
"""Waits until a life is far enough to be killed. Returns the longest time to wait after that, in seconds."""


def at_work(lives: Lives, child: Child, before: Seen) -> float:
    """Die during the batch that follows the first one that this life completed and delivered."""
    marker = lives.place.wal / paths.marker(NAME, before.completed + 1)
    child.wait_until(marker.exists, "it delivered a batch that it completed")
    return lives.typical(before).batch_s


def delivering(lives: Lives, child: Child, before: Seen) -> float:
    """Die while delivering the first batch that this life completed. A two-phase sink commits in a moment."""
    release = lives.place.wal / paths.release(before.completed + 1)
    child.wait_until(release.exists, "it began to deliver a batch that it completed")
    return lives.typical(before).delivery_s


def early(lives: Lives, child: Child, before: Seen) -> float:
    """Die soon after the takeover: while connecting, delivering an older process's batch, or in the first batch."""
    child.wait_until(lambda: lives.seen().committer_term > before.committer_term, "it took over")
    return EARLY_S


DEATHS: Sequence[Death] = (at_work, at_work, early, at_work, delivering, early)


def deaths(kills: int, chance: random.Random) -> list[Death]:
    """Draw the deaths. The first shows how long a whole batch takes, the others come in random order."""
    mixed = [DEATHS[number % len(DEATHS)] for number in range(1, kills)]
    chance.shuffle(mixed)
    return [at_work, *mixed]


class Lives:
    """The processes over one WAL, one after the other, and the state in which each was killed."""

    def __init__(self, effort: Effort, target: Target, run: Callable[[Path, int, int, str], None] = live) -> None:
        self.place = Home(effort.folder)
        self.chance = random.Random(effort.seed)
        self.outcome = Outcome()
        self.met: Counter[str] = Counter()
        self.completed: list[int] = []
        """Completed batches of each life."""
        self._effort = effort
        self._target = target
        self._run = run
        self._spans: list[Span] = []

    @property
    def hits(self) -> int:
        """The number of kills that met a batch in progress, except the first batch of a process."""
        return sum(self.met[what] for what in IN_PROGRESS)

    def seen(self) -> Seen:
        return Seen.of(self.place, NAME)

    def end_by(self, death: Death) -> bool:
        """Run one life and kill it. Return False if it ended by itself."""
        before = self.seen()
        with self._life(NEVER) as child:
            time.sleep(self.chance.uniform(0, death(self, child, before)))
            child.kill()
            if child.wait() != -signal.SIGKILL:
                what = f"seed {self._effort.seed}, life {self.outcome.rounds}"
                self.outcome.violations.append(f"{what} ended by itself: {child.output}")
                return False
        seen = self.seen()  # none of its processes runs any more
        self.met[met(self.place, before, seen)] += 1
        self.completed.append(seen.completed - before.completed)
        self._spans += self._whole(before, seen)
        self.outcome.rounds += 1
        return True

    def finish(self, batches: int = 0) -> int:
        """Run a last life that nobody kills. Return the number of batches at its end, by default two more."""
        batches = batches or self.seen().completed + 2
        with self._life(batches) as child:
            child.succeed()
        return batches

    def typical(self, before: Seen) -> Span:
        """Return the median time of batches that one life took from plan to marker. The present life counts too."""
        spans = [*self._spans, *self._whole(before, self.seen())]
        return Span(*(statistics.median(every) for every in zip(*spans, strict=True)))

    def _whole(self, before: Seen, seen: Seen) -> Iterable[Span]:
        """Yield the times of each batch that this life took from its plan to its marker."""
        for batch_id in range(before.planned + 1, seen.marked + 1):
            planned = self.place.checkpoint / "offsets" / str(batch_id)
            released = self.place.wal / paths.release(batch_id)
            marked_s = (self.place.wal / paths.marker(NAME, batch_id)).stat().st_mtime
            yield Span(marked_s - planned.stat().st_mtime, marked_s - released.stat().st_mtime)

    def _life(self, batches: int) -> Child:
        number, folder = self.outcome.rounds, self._effort.folder
        told = (folder, self._effort.seed * 1_000 + number, batches, self._target.url)
        log = folder / f"life-{number}.log"
        return ForkedChild(self._run, *told, log=log, env=self._target.environment, limit_s=LIMIT_S)


def met(place: Home, before: Seen, seen: Seen) -> str:
    """Tell from the objects on the store at which stage a life was killed."""
    if seen.marked < before.completed:
        return "taking over"
    if seen.marked == seen.completed:
        what = query_met(place, seen, before)
    else:
        released = (place.wal / paths.release(seen.marked + 1)).exists()
        what = "delivering" if released else "complete but not released"
    return FIRST + what if what in IN_PROGRESS and seen.marked == before.marked else what


def count(outcome: Outcome, batches: int, found: Sequence[int]) -> None:
    """Compare the rows in the target with the rows of the batches."""
    expected = {row for batch_id in range(batches) for row in ids_of(batch_id)}
    times = Counter(found)
    outcome.lost = len(expected - times.keys())
    outcome.repeated = len(found) - len(times)
    if foreign := times.keys() - expected:
        outcome.violations.append(f"rows that nobody sent: {sorted(foreign)[:5]}")


def tell(lives: Lives, kills: int, batches: int) -> None:
    """Describe the moments of the kills. Add a violation if too few of them met a batch in progress."""
    outcome = lives.outcome
    if lives.hits < LEAST_HITS * kills:
        outcome.violations.append(f"only {lives.hits} of {outcome.rounds} kills met a batch in progress")
    done = lives.completed
    by_life = f"{statistics.median(done):g} (median), {min(done)} to {max(done)}"
    outcome.detail = "\n".join(
        [
            tally("met by the kills", lives.met),
            f"- in progress, in a process that had delivered a batch: {lives.hits} of {outcome.rounds} kills",
            f"- batches: {batches}, {sum(done)} of them by processes that were killed; by life: {by_life}",
        ]
    )

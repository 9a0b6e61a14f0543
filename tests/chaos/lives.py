"""Drivers, one after the other, over one source, one WAL and three targets; and the counts of the targets."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from tests.chaos import driver
from tests.chaos.driver import CHUNK_ROWS, STOP, TURN, Job
from tests.chaos.moments import Moment, Seen, moment, too_early
from tests.chaos.scenario import Outcome
from tests.chaos.targets import EXACT, IDEMPOTENT, PLAIN, Targets, count, row_of, source_rows, text_of
from tests.support.processes import Child, ChildError
from tests.support.programs.quick_java import QUICK

if TYPE_CHECKING:
    from tests.chaos.backend_deaths import Target

AHEAD = 6
"""The number of files that wait in the folder before the query takes them."""
LIMIT_S = 240.0
LONGEST_BATCH = 35
LONGEST_DELAY_S = 1.2
LONGEST_START_S = 3.0
MOST_LINKS = 160
"""Half-steps of naming objects during the opening and the first few batches of a driver."""
SINKS = (EXACT, IDEMPOTENT, PLAIN)


class Ending(StrEnum):
    """The way in which a driver ends."""

    KILL = "SIGKILL of every process"
    LINK = "SIGKILL at the naming of an object"
    TERM = "SIGTERM"
    STOP = "query.stop()"


@dataclass(slots=True)
class Chain:
    """One query through all its lives."""

    root: Path
    chance: random.Random
    partitions: int = 1
    longest_batch: int = LONGEST_BATCH
    lake: Target | None = None
    """A table that gets the rows in place of the SQLite table."""
    lives: int = 0
    moments: list[tuple[Ending, Moment]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    _files: int = 0
    _next_id: int = 0

    def __post_init__(self) -> None:
        (self.root / "tmp").mkdir(parents=True)
        (self.root / "in").mkdir()

    @property
    def job(self) -> Job:
        """The job of a driver of this chain, before details are added."""
        lake = self.lake.url if self.lake else ""
        return Job(root=str(self.root), partitions=self.partitions, lake=lake)

    @property
    def targets(self) -> Targets:
        return Targets(self.root)

    def seen(self) -> Seen:
        return Seen.of(self.job.place)

    @property
    def files(self) -> int:
        """The number of files that the source got so far."""
        return self._files

    def feed(self, files: int) -> None:
        """Add files to the source. Each becomes one batch."""
        for _ in range(files):
            rows = self.chance.choice([0, CHUNK_ROWS, *(self.chance.randint(1, self.longest_batch) for _ in range(18))])
            self.job.place.feed.add_text(text_of(map(row_of, range(self._next_id, self._next_id + rows))))
            self._next_id += rows
            self._files += 1

    def feed_ahead(self, seen: Seen) -> None:
        """Keep some files waiting in the source."""
        self.feed(max(0, seen.files + 1 + AHEAD - self._files))

    def driver(self, job: Job, environment: Mapping[str, str] = MappingProxyType({})) -> Child:
        """Start a driver."""
        self.lives += 1
        log = self.root / f"driver-{self.lives}.log"
        env = {"TMPDIR": str(self.root / "tmp"), "SPARK_LAUNCHER_OPTS": QUICK, **environment}
        env |= self.lake.environment if self.lake else {}
        return Child.python(Path(driver.__file__), job.argument(), log=log, env=env, limit_s=LIMIT_S)

    def live(self, ending: Ending) -> None:
        """Run one driver from start to end, and note where it was at the end."""
        before = self.seen()
        job = self._drawn_job()
        if ending is Ending.LINK:
            job = replace(job, die_at_link=self.chance.randint(1, MOST_LINKS))
        with self.driver(job) as child:
            if ending is Ending.LINK:
                self._wait(child, lambda _: not child.running, "its death at a link")
            else:
                is_due, longest_s = self._aim(before)
                self._wait(child, is_due, "the moment to end it")
                time.sleep(self.chance.uniform(0, longest_s))
            self._end(child, ending)
        self._look(ending, before)

    def finish(self) -> None:
        """Run a last driver that nobody ends: every row arrives, and every row must be delivered."""
        self.feed(2)
        with self.driver(replace(self.job, ending="once")) as child:
            child.succeed()

    def _drawn_job(self) -> Job:
        return replace(
            self.job,
            where=self.chance.choice(["driver", "driver", "executors"]),
            answer_s=self.chance.choice([0.0, 0.02, 0.05]),
            staging_s=self.chance.choice([0.0, 0.1]),
        )

    def _aim(self, before: Seen) -> tuple[Callable[[Seen], bool], float]:
        """Draw the earliest moment at which a driver may be ended, and the longest time after it."""
        drawn = self.chance.random()
        if drawn < 0.15:  # during the takeover
            return lambda seen: seen.committer_term > before.committer_term, LONGEST_DELAY_S
        if drawn < 0.4:  # at the start of the query, which repeats an incomplete batch
            return lambda seen: seen.stager_term > before.stager_term, LONGEST_START_S
        if self.lake and drawn < 0.8:  # while a batch is delivered
            return lambda seen: seen.completed > before.completed, LONGEST_DELAY_S
        return lambda seen: seen.planned > max(before.planned, 0), LONGEST_DELAY_S

    def _wait(self, child: Child, condition: Callable[[Seen], bool], what: str) -> None:
        def look() -> bool:
            seen = self.seen()
            self.feed_ahead(seen)
            return condition(seen)

        child.wait_until(look, what)

    def _end(self, child: Child, ending: Ending) -> None:
        if ending is Ending.KILL:
            if child.running:
                child.kill()
            else:
                self.violations.append(f"life {self.lives}: it ended by itself, with {child.wait()}")
            return
        expected = {Ending.LINK: -signal.SIGKILL, Ending.TERM: -signal.SIGTERM, Ending.STOP: 0}[ending]
        if ending is Ending.TERM:
            child.send(signal.SIGTERM)
        if ending is Ending.STOP:
            (self.root / STOP).touch()
        code = child.wait()
        (self.root / STOP).unlink(missing_ok=True)
        if code != expected:
            self.violations.append(f"life {self.lives}, {ending}: it ended with {code}, expected {expected}")

    def _look(self, ending: Ending, before: Seen) -> None:
        found = moment(self.job.place, before)
        self.moments.append((ending, found))
        if ending is Ending.STOP and found.window_rows:
            self.violations.append(
                f"life {self.lives}: query.stop() and close() left a batch unfinished: {found.delivery}"
            )
        if early := too_early(self.job.place):
            self.violations.append(f"life {self.lives}: delivered before Spark completed them: batches {early}")


class Turns:
    """One driver process that runs the query over the present files at each turn."""

    def __init__(self, chain: Chain, **told: object) -> None:
        job = replace(chain.job, ending="turns", **told)  # type: ignore[arg-type]
        self._root = chain.root
        self._child = chain.driver(job)
        self._number = 0

    def run(self) -> str:
        """Run once. Return "done", or the class and message of the error."""
        head = f"turn {self._number}: "
        (self._root / f"{TURN}{self._number}").touch()
        self._child.wait_until(lambda: f"\n{head}" in self._child.output, f"the end of turn {self._number}")
        self._child.wait_until(lambda: self._child.output.endswith("\n"), "the whole line")
        self._number += 1
        return next(line for line in self._child.output.splitlines() if line.startswith(head)).removeprefix(head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()


def guarded(seed: int, chain: Chain, lives: Callable[[], None]) -> None:
    """Run the lives. A failed expectation becomes a violation, and the last lines of the driver go to the terminal."""
    try:
        lives()
    except (ChildError, AssertionError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - paths and stacks are for the terminal, not for the report
        first = str(error).splitlines()[0].replace(str(chain.root), "…")
        chain.violations.append(f"seed {seed}, {chain.root.name}, life {chain.lives}: {first}")


def add_counts(outcome: Outcome, chain: Chain, *, allowed: int) -> dict[str, int]:
    """Add the counts of a chain's targets to an outcome. Return the rows of each target."""
    source = source_rows(chain.job.place.feed.folder)
    rows = {}
    for name in SINKS:
        counted = count(source, chain.lake.rows() if chain.lake and name == EXACT else chain.targets.rows(name))
        rows[name] = counted.rows
        outcome.lost += counted.lost
        if counted.foreign:
            outcome.violations.append(f"{name}: {counted.foreign} rows that the source never had")
        if name == PLAIN:
            outcome.repeated += counted.repeated
        elif counted.repeated:
            outcome.violations.append(f"{name}: {counted.repeated} rows twice, expected none")
    outcome.allowed += allowed
    outcome.violations += chain.violations
    return rows


def tally(title: str, found: Counter[str]) -> str:
    """Write a line of the details: how often each thing happened."""
    return f"- {title}: " + ", ".join(f"{what} {times}" for what, times in found.most_common())

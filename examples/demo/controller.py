"""The demo itself: lets files arrive, starts the driver, kills it, starts it again, and counts at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo import proof
from examples.demo.job import PLAIN
from examples.demo.plan import HELD_BACK, Kill, planned_kills
from examples.demo.process import DemoError, Driver
from examples.demo.report import Reporter
from examples.demo.source import Stream, write_stream
from examples.demo.stage import CHUNK_ROWS, Stage, make_folder, prepared
from examples.demo.watch import Seen

JOB_MODULE = "examples.demo.job"
LEAD = 4
"""Files that wait in the folder before the query takes them."""
_REST, _LONGEST_REST_S = 4, 0.5
"""A pause after a look at the store is so many times as long as the look: looking must not slow the driver."""
_LIMIT_S = 120.0
"""Longest wait in which nothing happens at all."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of one run."""

    out: Path
    s3: bool
    kills: int
    seed: int
    batches: int
    rows: int | None = None
    """Only the first so many flights."""


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill, as it went."""

    after_s: float
    """Since the start of the demo."""
    moment: str
    """The driver's work at that moment, as the store shows it."""
    batch_to_replay: int | None
    """The batch that Spark had begun and must run again."""
    window_rows: int
    """So many rows the plain sink may repeat for it: one chunk of each segment then in delivery."""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything the demo found."""

    proof: proof.Proof
    kills: tuple[Killed, ...]
    files: int
    batches: int
    replayed: tuple[int, ...]
    """Batches that Spark had begun when it was killed, and ran again."""
    restaged: tuple[int, ...]
    """Batches that were staged whole more than once; one of the stagings was delivered."""
    chunk_rows: int
    seed: int
    seconds: float
    wal: str
    """Where the log can be looked at now."""
    database: str
    checkpoint: str

    @property
    def holds(self) -> bool:
        return self.proof.holds


def run_demo(wishes: Wishes, reporter: Reporter) -> Result:
    """Run the whole demo. Raises `DemoError` or another `WalSinkError` if it could not be carried through."""
    plan = planned_kills(wishes.kills, wishes.batches, wishes.seed)
    out = make_folder(wishes.out)
    stream = write_stream(out, files=wishes.batches, rows=wishes.rows)
    reporter.say(
        f"{stream.rows:,} flights will arrive in {wishes.batches} files, one a micro-batch; seed {wishes.seed}"
    )
    with prepared(out, s3=wishes.s3, say=reporter.say) as stage:
        show = _Show(stage, stream, reporter)
        killed = tuple(show.run_and_kill(kill) for kill in plan)
        show.run_to_the_end(len(plan) + 1)
        return _counted(wishes, stage, stream, killed, reporter)


@dataclass(slots=True)
class _Show:
    """Drivers, one after the other, over one stream."""

    stage: Stage
    stream: Stream
    reporter: Reporter
    _arrived: int = 0
    _kills_left: bool = True
    _environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._environment = self.stage.driver_environment(
            stream=self.stream.folder,
            ended=self.stream.ended,
            airlines=self.stream.airlines,
            file_bytes=max(path.stat().st_size for path in self.stream.waiting),
        )

    def run_and_kill(self, kill: Kill) -> Killed:
        """One run that is not to survive."""
        before, what = self.stage.watch().look(), f"kill {kill.number}"
        last = len(self.stream.waiting) - HELD_BACK
        with self._driver(kill.number) as driver:
            self._until(driver, lambda seen: kill.is_due(seen, before) or (seen.files >= last and seen.is_idle), what)
            due = time.monotonic() + kill.delay_s
            self._until(driver, lambda _: time.monotonic() >= due, what, pause_until=due)
            driver.kill()
        watch = self.stage.watch()
        seen = watch.look()
        killed = Killed(
            after_s=round(self.reporter.elapsed_s(), 1),
            moment=watch.moment(seen),
            batch_to_replay=seen.started if seen.started > seen.completed else None,
            window_rows=watch.segments_in_delivery(seen, PLAIN) * CHUNK_ROWS,
        )
        self.reporter.killed(kill.number, killed.moment, seen)
        return killed

    def run_to_the_end(self, number: int) -> None:
        """The last run: everything arrives, and everything must be delivered."""
        self._kills_left = False
        with self._driver(number) as driver:
            self._until(driver, lambda _: not driver.running, "the end of the stream")
            driver.check()
        self.reporter.progress(self.stage.watch().look())

    def _driver(self, number: int) -> Driver:
        log = self.stage.out / "logs" / f"driver-{number}.log"
        self.reporter.say(f"driver {number} starts")
        return Driver(JOB_MODULE, log=log, env=self._environment)

    def _until(
        self, driver: Driver, condition: Callable[[Seen], bool], what: str, *, pause_until: float | None = None
    ) -> None:
        """Let files arrive and look at the store until `condition` holds."""
        watch, last, limit = self.stage.watch(), None, time.monotonic() + _LIMIT_S
        pause_s = self.stage.poll_s
        while True:
            with suppress(OSError):  # a folder that is being made or emptied; the next look tells
                began = time.monotonic()
                seen = watch.look()
                pause_s = max(self.stage.poll_s, min(_REST * (time.monotonic() - began), _LONGEST_REST_S))
                self._let_arrive(seen)
                self.reporter.progress(seen)
                if condition(seen):
                    return
                if seen != last:
                    last, limit = seen, time.monotonic() + _LIMIT_S
            driver.check()
            if time.monotonic() > limit:
                raise DemoError(
                    f"nothing happened for {_LIMIT_S:g} s before {what}; {driver.log} ends with:\n{driver.tail()}"
                )
            left_s = pause_s if pause_until is None else pause_until - time.monotonic()
            time.sleep(max(0.0, min(pause_s, left_s)))

    def _let_arrive(self, seen: Seen) -> None:
        files = len(self.stream.waiting)
        through = min(seen.files + LEAD, files - HELD_BACK if self._kills_left else files)
        while self._arrived < through:
            self.stream.arrive(self._arrived)
            self._arrived += 1


def _counted(wishes: Wishes, stage: Stage, stream: Stream, killed: tuple[Killed, ...], reporter: Reporter) -> Result:
    reporter.say("counting what arrived, row by row")
    attempts = stage.watch().attempts()
    expected = proof.source_rows(stream.arrived, stream.airlines)
    found = proof.Proof(
        source_rows=expected.total(),
        exact=proof.compare(expected, proof.table_rows(stage.database)),
        plain=proof.compare(expected, proof.plain_rows(stage.plain)),
        window_rows=sum(kill.window_rows for kill in killed),
    )
    shutil.rmtree(stage.out / "spark", ignore_errors=True)
    wal = stage.wal
    if stage.on_s3:
        wal = str(stage.out / "wal")
        stage.log.copy_to(Path(wal))  # its objects are immutable, and their paths relative
        reporter.say(f"the S3 server ends now; its log was copied to {wishes.out / 'wal'}")
    return Result(
        proof=found,
        kills=killed,
        files=len(stream.waiting),
        batches=len(attempts),
        replayed=tuple(sorted({kill.batch_to_replay for kill in killed if kill.batch_to_replay is not None})),
        restaged=tuple(batch_id for batch_id, times in attempts.items() if times > 1),
        chunk_rows=CHUNK_ROWS,
        seed=wishes.seed,
        seconds=round(reporter.elapsed_s(), 1),
        wal=shortest(wal),
        database=shortest(str(stage.database)),
        checkpoint=stage.checkpoint,
    )


def shortest(path: str) -> str:
    """As the user would type it."""
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path

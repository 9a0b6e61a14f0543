"""Targets that lose acknowledged commits during a delivery: each row arrives once, or an error says so.

An error is right only where rows of a marked batch are lost. Rows of the batch in progress have to come again.

A moment is one WAL with some batches of many small chunks, in one or more segments each. After a random chunk the
target is held back: it will lose everything that it acknowledges from then on. Some chunks later it fails over or
restarts with the rest. If the life ends with an error, one more follows over the same WAL, as a user would start it.
The verdict is about the rows in the surviving target at the end.

A loss after the last look, which `close` takes, is not played, because no ledger can show it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tests.chaos.lives import tally
from tests.chaos.scenario import Effort, Outcome
from tests.house.kit import served_sink
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Rejected, TransactionalSink, sink_from_url
from tests.house.stores import StoreSpec, open_store
from tests.support.made_up import live_through
from wal_sink.errors import WalSinkError
from wal_sink.operate.replay import DeadLetters
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery

MOMENTS = 30
LEAST_HITS = 1 / 5
"""The least share of moments that must lose acknowledged rows of a batch without a marker."""
BATCHES = 4
ROWS = 60
CHUNK_ROWS = 5
CHUNKS = ROWS // CHUNK_ROWS
"""The chunks of a batch, for every number of segments."""
SEGMENTS = (1, 1, 2, 3, 4)
"""Possible numbers of segments per batch. Each divides `CHUNKS`."""
MOST_LAG = 8
"""The most chunks of the batch in progress that are acknowledged and lost."""
BEFORE_MARKER = 1 / 6
"""The approximate share of moments right after the last chunk of a batch, when only its marker is missing."""
REFUSING = 1 / 3
"""The approximate share of moments in which the target refuses some rows, which become dead letters."""
BEYOND_BATCH = 1 / 5
"""The approximate share of moments that also lose rows of the batch before, which is marked."""
LONGEST_DELAY_S = 0.01
DEATH_S = 60.0
NAME = "default"
ONCE = "every row once"
SILENT = "an end without an error, with rows missing"

_logger = logging.getLogger(__name__)


class ForgetfulTarget(ABC):
    """A target that can lose its newest commits."""

    @abstractmethod
    def begin(self, name: str) -> str:
        """Make a new, empty place for rows with `id`, `word` and `place`. Return the URL of a sink for it.

        Everything survives until `hold_back`. The place refuses a row whose `place` is NULL. Any other row has `name`
        there.
        """

    @abstractmethod
    def hold_back(self) -> None:
        """Keep everything that was acknowledged until now. Lose at `fail_over` everything acknowledged from now on."""

    @abstractmethod
    def fail_over(self) -> None:
        """Die, and come back under the same address with the rows that were kept."""

    @abstractmethod
    def ids(self, name: str) -> Sequence[int]:
        """Return the rows in a place, read by the target's own client."""


@dataclass(frozen=True)
class Moment:
    """The times of the events, drawn from a seed. Chunks are counted from 1 as the target acknowledges them."""

    seed: int
    segments: int
    held_after: int
    dies_after: int
    delay_s: float | None
    """The time from that chunk to the death. None: the target dies before the core gets the chunk's result."""
    refuses: bool
    """True if the target refuses some rows, which become dead letters."""

    @classmethod
    def drawn(cls, seed: int) -> Moment:
        chance = random.Random(seed)
        delay_s = chance.choice((None, None, chance.uniform(0, LONGEST_DELAY_S)))
        dies_after = chance.randint(CHUNKS + 1, CHUNKS * BATCHES)
        if chance.random() < BEFORE_MARKER:
            dies_after = -(-dies_after // CHUNKS) * CHUNKS
        of_its_batch = (dies_after - 1) % CHUNKS + 1
        if chance.random() < BEYOND_BATCH:
            lag = of_its_batch + chance.randint(1, MOST_LAG)
        else:
            lag = chance.randint(1, min(MOST_LAG, of_its_batch))
        refuses = chance.random() < REFUSING
        return cls(seed, chance.choice(SEGMENTS), dies_after - lag, dies_after, delay_s, refuses)

    def is_refused(self, row: int) -> bool:
        return self.refuses and row % 17 == 3

    def __str__(self) -> str:
        how = "at once" if self.delay_s is None else f"{1000 * self.delay_s:.1f} ms later"
        return (
            f"moment of seed {self.seed} ({self.segments} segments a batch{', some rows refused' * self.refuses}; held "
            f"back after chunk {self.held_after}, dead after chunk {self.dies_after}, {how})"
        )


class Watch:
    """Counts the chunks that the target acknowledges, and kills it at the chosen moment."""

    def __init__(self, target: ForgetfulTarget, moment: Moment, name: str) -> None:
        self._target, self._moment, self._name = target, moment, name
        self._chunks = self._rows = self._kept = 0
        self._death = threading.Thread(target=self._die, daemon=True)
        self._failure: BaseException | None = None
        self.died = False
        self.forgotten = 0
        """The least number of rows that were acknowledged and lost."""
        self.within_batch = False
        """True if all of them belong to the batch in progress, which has no marker yet."""

    def over(self, sink: TransactionalSink) -> TransactionalSink:
        """Return the sink itself, with its `write` counted."""
        write = sink.write

        def counted(chunk: Chunk) -> Rejected | None:
            returned = write(chunk)
            if returned is None:
                self._note(chunk.num_rows)
            return returned

        vars(sink)["write"] = counted
        return sink

    def end(self) -> None:
        """Wait until the target is back. Raise the error that happened while it died, if any."""
        if self._death.ident is not None:
            self._death.join(DEATH_S)
        if self._failure is not None:
            raise self._failure
        assert self.died, f"{self._moment}: the target did not die; {self._chunks} chunks were acknowledged"

    def _note(self, rows: int) -> None:
        self._chunks += 1
        self._rows += rows
        if self._chunks == self._moment.held_after:
            self._target.hold_back()
            self._kept = self._rows
        if self._chunks == self._moment.dies_after:
            self._death.start()
            if self._moment.delay_s is None:
                self._death.join(DEATH_S)

    def _die(self) -> None:
        try:
            time.sleep(self._moment.delay_s or 0)
            self.forgotten = self._rows - self._kept
            self._target.fail_over()
            at_once = self._moment.delay_s is None
            if at_once:  # later, the core may have written to it again
                left = len(self._target.ids(self._name))
                assert left == self._kept, f"{self._moment}: the target has {left} rows, expected to keep {self._kept}"
            under_way = (self._chunks - at_once) // CHUNKS
            self.within_batch = self._moment.held_after // CHUNKS == under_way
            self.died = True
        except BaseException as error:  # noqa: BLE001 - `end` raises it, in the thread that waits
            self._failure = error


@dataclass(frozen=True)
class Verdict:
    """The result of a moment."""

    how: str
    """The ends of the lives: every row once, the errors, or rows missing without an error."""
    missing: Sequence[int] = ()
    """Rows that are neither in the target nor among the dead letters, though the last life ended without an error."""
    repeated: Sequence[int] = ()
    """Rows that exist twice in the target or among the dead letters, or in the wrong one of the two."""
    forgotten: int = 0
    within_batch: bool = False


def forgetting(target_in: Callable[[Path], AbstractContextManager[ForgetfulTarget]], effort: Effort) -> Outcome:
    """Play moments one after the other, each with its own WAL and its own place in the same target."""
    outcome, hows, moments = Outcome(), Counter[str](), effort.times(MOMENTS, least=3)
    within = lost_some = 0
    with target_in(effort.folder) as target:
        for number in range(moments):
            moment = Moment.drawn(effort.seed * 1_000 + number)
            verdict = play(moment, target, effort.folder / f"moment_{number}")
            of = "the batch in progress" if verdict.within_batch else "a possibly marked batch"
            hows[f"rows of {of} lost: {verdict.how}"] += 1
            within += verdict.within_batch
            lost_some += verdict.forgotten > 0
            count(outcome, moment, verdict)
    if within < LEAST_HITS * moments:
        outcome.violations.append(f"only {within} of {moments} moments lost acknowledged rows of a batch in progress")
    lost = f"- acknowledged rows were lost at {lost_some} of {moments} moments; at {within}, all of a batch in progress"
    outcome.detail = "\n".join([tally("what was lost, and how it ended", hows), lost])
    return outcome


def play(moment: Moment, target: ForgetfulTarget, folder: Path) -> Verdict:
    """Play one moment: a life in which the target dies, and one more if that life ended with an error."""
    folder.mkdir()
    name = folder.name
    url = target.begin(name)
    watch = Watch(target, moment, name)
    errors = [_live(folder, moment, url, watch)]
    watch.end()
    if errors[0]:  # the user starts it again
        errors.append(_live(folder, moment, url, None))
    times = Counter(target.ids(name))
    letters = dead_letters(folder)
    refused = Counter({row: 1 for row in range(BATCHES * ROWS) if moment.is_refused(row)})
    every = Counter(range(BATCHES * ROWS))
    missing = [] if errors[-1] else sorted((every - times - letters).elements())
    wrong = (times - (every - refused)) + (letters - refused)
    return Verdict(
        how=", then ".join(error or (SILENT if missing else ONCE) for error in dict.fromkeys(errors)),
        missing=missing,
        repeated=sorted(wrong),
        forgotten=watch.forgotten,
        within_batch=watch.within_batch,
    )


def count(outcome: Outcome, moment: Moment, verdict: Verdict) -> None:
    """Count a moment. Rows lost without an error, rows that exist twice, and needless errors are violations."""
    outcome.rounds += 1
    outcome.lost += len(verdict.missing)
    outcome.repeated += len(verdict.repeated)
    rows = BATCHES * ROWS
    if verdict.missing:
        there = f"{rows - len(verdict.missing)} of {rows} rows, ids {spans(verdict.missing)} missing"
        outcome.violations.append(f"{moment}: {there}; {verdict.how}")
    elif verdict.within_batch and verdict.how != ONCE:
        outcome.violations.append(f"{moment}: the target has every marked row, yet it ended with {verdict.how}")
    if verdict.repeated:
        outcome.violations.append(f"{moment}: ids {spans(verdict.repeated)} twice, or misplaced; {verdict.how}")


def spans(numbers: Sequence[int]) -> str:
    """Write a sorted list as `60-89, 100`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in found)


def _live(folder: Path, moment: Moment, url: str, watch: Watch | None) -> str:
    """Run one process over the WAL. Return the name of the error that ended it; empty if it ended well."""
    checkpoint = open_store(StoreSpec(str(folder / "checkpoint")))
    run = Run(open_store(StoreSpec(str(folder / "wal"))), checkpoint, Settings(chunk_rows=CHUNK_ROWS))
    sink = sink_from_url(url)
    assert isinstance(sink, TransactionalSink)
    delivery = Delivery(sink, on_rejected="dead_letter" if moment.refuses else "halt")
    served = served_sink(NAME, watch.over(sink) if watch else sink, delivery, run.log)
    query = FakeQuery(checkpoint, lambda batch_id, _: tables(batch_id, moment, folder.name))
    try:
        live_through(run, [served], query, BATCHES)
        if watch:
            watch.end()
        for committer in run.committers:
            committer.confirm_marked()  # as `close` does
    except WalSinkError as error:
        _logger.warning("%s ended with %s: %s", moment, type(error).__name__, error)
        return type(error).__name__
    return ""


def dead_letters(folder: Path) -> Counter[int]:
    """Count how often each row is among the dead letters."""
    letters = DeadLetters(str(folder / "wal"), name=NAME).all()
    return Counter(row for kept in letters for row in kept.letter.chunk.table["id"].to_numpy().tolist())


def tables(batch_id: int, moment: Moment, place: str) -> list[pa.Table]:
    """Return the rows of a batch, one table per segment, always the same. Without a place, a row is refused."""
    size = ROWS // moment.segments
    first = batch_id * ROWS
    return [table(range(start, start + size), moment, place) for start in range(first, first + ROWS, size)]


def table(ids: range, moment: Moment, place: str) -> pa.Table:
    places = [None if moment.is_refused(row) else place for row in ids]
    return pa.table({"id": ids, "word": [f"word {row}" for row in ids], "place": pa.array(places, pa.string())})

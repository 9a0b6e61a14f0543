"""Disks that become full or read-only, or whose process dies between two system calls."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.chaos import deaths
from tests.chaos.bad_disks import Disk, Trouble, disk_of
from tests.chaos.driver import CHUNK_ROWS
from tests.chaos.lives import Chain, Turns, add_counts, guarded, tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.small_lives import ATTEMPTS as ATTEMPTS_SMALL
from tests.chaos.small_lives import BATCHES, WINDOW_ROWS, Ground, counted, live
from tests.chaos.targets import Targets
from tests.house.stores import Store
from wal_sink.errors import WalSinkError
from wal_sink.testing import FaultyStore

ROUNDS, SPARK_ROUNDS = 300, 16
SPARK_MIB = 64
"""Room for every batch of all rounds, at 80 KiB each. A disk that stays full would be no passing trouble."""
OPERATIONS = 150
"""The approximate number of store operations in an undisturbed life."""
MOST_FREE_PAGES = 30
ATTEMPTS = 3
"""The attempts on a chunk whose record cannot be written. After a takeover it is sent once more."""
SEGMENTS = 2
DONE = "done"
FINE_ENDS = frozenset({DONE, "StoreError", "OutcomeUnknownError", "DeliveryError"})
"""The accepted ends: no raw error of the operating system, and no report of damage."""


def many_lives(trouble: Trouble, effort: Effort) -> Outcome:
    """Run short lives without Spark. Each meets the trouble at another operation of the store."""
    outcome, ends = Outcome(), Counter[str]()
    with disk_of(effort.folder / "disk") as disk:
        if not disk.can(trouble):
            outcome.violations.append(f"this user cannot make a disk {trouble}: run as another user")
            return outcome
        for number in range(effort.times(ROUNDS, least=5)):
            ends[_round(disk, trouble, effort, number, outcome)] += 1
    outcome.detail = "\n".join([f"- the disk: {disk.kind}", tally("the disturbed lives ended by", ends)])
    return outcome


def _round(disk: Disk, trouble: Trouble, effort: Effort, number: int, outcome: Outcome) -> str:
    chance = random.Random(effort.seed * ROUNDS + number)
    what = f"seed {effort.seed}, round {number}"
    targets = effort.folder / f"targets-{number}"
    targets.mkdir()
    on_disk = disk.folder / f"round-{number}"
    ground = Ground(on_disk / "wal", on_disk / "checkpoint", Targets(targets))
    end = _life_in(disk, trouble, ground, chance)
    if end not in FINE_ENDS:
        outcome.violations.append(f"{what}: the disturbed life ended by {end}")
    live(ground, BATCHES + 1, chance)
    counted(outcome, ground, BATCHES + 1, what, allowed=ATTEMPTS_SMALL * WINDOW_ROWS)
    outcome.rounds += 1
    shutil.rmtree(on_disk)
    return end


def _life_in(disk: Disk, trouble: Trouble, ground: Ground, chance: random.Random) -> str:
    hit = _Hit(disk, trouble, chance.randint(1, OPERATIONS), chance.randint(0, MOST_FREE_PAGES))
    try:
        live(ground, BATCHES, chance, hit.wrap)
    except WalSinkError as error:
        return type(error).__name__
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"
    finally:
        disk.end()
    return DONE


@dataclass(slots=True)
class _Hit:
    """Makes the trouble at the n-th operation of the store, or soon after it if a file is open then."""

    disk: Disk
    trouble: Trouble
    left: int
    free_pages: int
    there: bool = False

    def wrap(self, store: Store) -> Store:
        return FaultyStore(store, self._operation)

    def _operation(self, what: str, path: str) -> None:  # noqa: ARG002 - a hook's signature
        self.left -= 1
        if self.left <= 0 and not self.there:
            self.there = self.disk.begin(self.trouble, self.free_pages)


def with_spark(trouble: Trouble, effort: Effort) -> Outcome:
    """Run a Spark query whose WAL and checkpoint lie on a disk that is in trouble for a while, several times."""
    outcome, ends = Outcome(), Counter[str]()
    chain = Chain(effort.folder / "chain", random.Random(effort.seed), partitions=SEGMENTS)
    with disk_of(effort.folder / "disk", SPARK_MIB) as disk:
        if not disk.can(trouble, for_others=True):
            outcome.violations.append(f"this user cannot make a disk {trouble} for Spark's processes: run as root")
            return outcome
        for name in ("wal", "checkpoint"):
            (disk.folder / name).mkdir()
            (chain.root / name).symlink_to(disk.folder / name)
        guarded(effort.seed, chain, partial(_turns, chain, disk, trouble, effort.times(SPARK_ROUNDS), ends))
        outcome.rounds = ends.total()
        rows = add_counts(outcome, chain, allowed=outcome.rounds * ATTEMPTS * SEGMENTS * CHUNK_ROWS)
    lines = [f"- the disk: {disk.kind}", tally("disturbed runs ended by", ends), tally("rows", Counter(rows))]
    outcome.detail = "\n".join(lines)
    return outcome


def _turns(chain: Chain, disk: Disk, trouble: Trouble, rounds: int, ends: Counter[str]) -> None:
    with Turns(chain, answer_s=0.02, max_attempts=ATTEMPTS) as turns:
        for number in range(rounds):
            chain.feed(chain.chance.randint(2, 5))
            with _passing(disk, trouble, chain.chance):
                found = turns.run()
            ends[found.partition(":")[0]] += 1
            chain.feed(1)
            after = turns.run()
            if after != DONE:
                chain.violations.append(f"round {number}: {found[:150]}; once repaired: {after[:300]}")


@contextmanager
def _passing(disk: Disk, trouble: Trouble, chance: random.Random) -> Iterator[None]:
    """Make trouble that begins some time after the block, lasts for some time, and has passed at the block's end."""
    over = threading.Event()
    before_s, lasting_s, free_pages = chance.uniform(0, 2.0), chance.uniform(0.3, 6.0), chance.randint(0, 10)

    def pass_by() -> None:
        over.wait(before_s)
        while not over.is_set() and not disk.begin(trouble, free_pages):
            time.sleep(0.005)  # a file is open for writing at the moment
        over.wait(lasting_s)
        disk.end()

    thread = threading.Thread(target=pass_by)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "full disk",
        "if the disk is full at any operation, the life finishes or ends with an error of wal-sink; once there is "
        "room, no row is lost, and repeats stay within the permitted number",
        "full disk",
        partial(many_lives, "full"),
    ),
    Scenario(
        "read-only disk",
        "if the disk turns read-only at any operation, the life finishes or ends with an error of wal-sink; once it is "
        "writable, no row is lost, and repeats stay within the permitted number",
        "remount",
        partial(many_lives, "read-only"),
    ),
    Scenario(
        "full disk under Spark",
        "WAL and checkpoint lie on a disk that is full for a while; no row is lost, and repeats stay within the "
        "permitted number",
        "full disk",
        partial(with_spark, "full"),
    ),
    Scenario(
        "read-only disk under Spark",
        "WAL and checkpoint lie on a disk that is read-only for a while; no row is lost, and repeats stay within the "
        "permitted number",
        "remount",
        partial(with_spark, "read-only"),
    ),
    deaths.SCENARIO,
)

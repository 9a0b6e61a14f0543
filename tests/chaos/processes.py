"""Drivers of live Spark queries that are killed, stopped, put to sleep, or run at the same time as another driver."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import executors
from tests.chaos.driver import CHUNK_ROWS, Job
from tests.chaos.lives import Chain, Ending, add_counts, guarded, tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.chaos.backend_deaths import Target

KILLS = 200
CHAINS = 4
SIDE_BY_SIDE = 2
"""Chains at the same time. The start of one JVM alone does not keep two cores busy."""
PAIRS = 12
SLEEPERS = 12
SEGMENTS = 2
LEFT_BY = "left by "

Event = Callable[[Chain], str]
"""One round over a chain. Returns how it ended."""
LakeIn = Callable[[Path], "AbstractContextManager[Target | None]"]
"""Makes a lake table, or none, for the files of a chain."""


def killed_drivers(effort: Effort, *, most: int = KILLS, lake: LakeIn = lambda _: nullcontext()) -> Outcome:
    """Kill the drivers of several chains at random moments. Some are stopped or terminated instead."""
    kills = effort.times(most, least=2)
    with ExitStack() as lakes, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        chains = [
            Chain(
                effort.folder / f"chain-{number}",
                random.Random(effort.seed * CHAINS + number),
                1 + number % 2,
                lake=lakes.enter_context(lake(effort.folder / f"lake-{number}")),
            )
            for number in range(min(CHAINS, max(1, kills // 4)))
        ]
        shares = [kills // len(chains) + (number < kills % len(chains)) for number in range(len(chains))]
        list(pool.map(partial(_live_and_die, effort.seed), chains, shares))
        return _kills_counted(chains)


def _live_and_die(seed: int, chain: Chain, kills: int) -> None:
    def lives() -> None:
        for ending in endings(kills, chain.chance):
            chain.live(ending)
        chain.finish()

    guarded(seed, chain, lives)


def endings(kills: int, chance: random.Random) -> list[Ending]:
    """Draw the ends: so many kills, a third of them at the naming of an object; for every ten kills, a gentle end."""
    drawn = [Ending.LINK if number % 3 == 1 else Ending.KILL for number in range(kills)]
    gentle = [Ending.STOP if number % 2 else Ending.TERM for number in range(kills // 10)]
    mixed = [*drawn, *gentle]
    chance.shuffle(mixed)
    return mixed


def _kills_counted(chains: Sequence[Chain]) -> Outcome:
    outcome = Outcome()
    rows: Counter[str] = Counter()
    for chain in chains:
        outcome.violations += beyond_windows(chain)
        rows.update(add_counts(outcome, chain, allowed=sum(found.window_rows for _, found in chain.moments)))
    met = [pair for chain in chains for pair in chain.moments]
    killed = [found for ending, found in met if ending in {Ending.KILL, Ending.LINK}]
    outcome.rounds = len(killed)
    in_hand = sum(found.open_rows for _, found in met)
    outcome.detail = "\n".join(
        [
            tally("endings", Counter(str(ending) for ending, _ in met)),
            tally("the query, when killed", Counter(found.query for found in killed)),
            tally("delivery to the plain target, when killed", Counter(found.delivery for found in killed)),
            tally("delivery to the target with a position, when killed", Counter(found.exact for found in killed)),
            tally("batches", Counter({"completed": sum(chain.seen().completed + 1 for chain in chains)})),
            tally("rows by target", rows),
            f"- rows that the plain target had without a record of it when its driver ended: {in_hand}",
        ]
    )
    return outcome


def beyond_windows(chain: Chain) -> list[str]:
    """List the batches of which the plain target got more repeated rows than were in flight when drivers ended."""
    windows: Counter[int] = Counter()
    for _, found in chain.moments:
        windows[found.batch] += found.window_rows
    return [
        f"{chain.root.name}: {rows} rows of batch {batch} were sent again, expected at most {windows[batch]}"
        for batch, rows in chain.targets.sent_again().items()
        if rows > windows[batch]
    ]


def two_drivers(effort: Effort) -> Outcome:
    """Run two live drivers on one checkpoint and WAL. One must end with an error, the other is killed at random."""
    return _events(effort, effort.times(PAIRS), "pair", _two_drivers)


def sleeping_drivers(effort: Effort) -> Outcome:
    """Stop a driver by SIGSTOP, and wake it after a newer driver has delivered everything."""
    return _events(effort, effort.times(SLEEPERS), "sleeper", _sleeper)


def _events(effort: Effort, rounds: int, name: str, event: Event) -> Outcome:
    chain = Chain(effort.folder / name, random.Random(effort.seed), partitions=SEGMENTS)
    ends: Counter[str] = Counter()

    def lives() -> None:
        for _ in range(rounds):
            ends[event(chain)] += 1
        chain.finish()

    guarded(effort.seed, chain, lives)
    # The takeover and the end of the remaining driver may each repeat one chunk per segment.
    outcome = Outcome(rounds=ends.total())
    rows = add_counts(outcome, chain, allowed=2 * ends.total() * SEGMENTS * CHUNK_ROWS)
    outcome.detail = "\n".join([tally("how it ended", ends), tally("rows by target", Counter(rows))])
    return outcome


def _two_drivers(chain: Chain) -> str:
    before = chain.seen()
    with chain.driver(_plainly_slow(chain)) as first:
        _progress(chain, first, before.marked)
        with chain.driver(_plainly_slow(chain)) as second:
            second.wait_until(lambda: _fed(chain) and not (first.running and second.running), "one of the two ended")
            loser, winner = (second, first) if first.running else (first, second)
            which = "the later one" if loser is second else "the earlier one"
            if loser.wait() == 0:
                chain.violations.append(f"life {chain.lives}: of two drivers, {which} ended without an error")
            if not _goes_on(chain, winner):
                return f"both, {which} first: {_cause(loser)}, then {_cause(winner)}"
            time.sleep(chain.chance.uniform(0, 0.5))
            winner.kill()
            return f"{which}: {_cause(loser)}"


def _sleeper(chain: Chain) -> str:
    before = chain.seen()
    with chain.driver(_plainly_slow(chain)) as sleeper:
        _progress(chain, sleeper, before.marked)
        whole = chain.chance.random() < 0.5
        send = sleeper.send_to_all if whole else sleeper.send
        time.sleep(chain.chance.uniform(0, 0.5))
        send(signal.SIGSTOP)
        while chain.targets.is_locked():  # by a transaction of the sleeper, which would block all other writers
            send(signal.SIGCONT)
            time.sleep(0.02)
            send(signal.SIGSTOP)
        with chain.driver(replace(chain.job, ending="once")) as newer:
            newer.succeed()
        sent = len(chain.targets.sent())
        send(signal.SIGCONT)
        chain.feed(2)
        code = sleeper.wait()
    late = len(chain.targets.sent()) - sent
    if late > SEGMENTS or code == 0:
        chain.violations.append(f"life {chain.lives}: a woken driver sent {late} chunks and ended with {code}")
    return f"{'all processes' if whole else 'Python alone'} asleep, {_cause(sleeper)} after {late} chunks"


def _plainly_slow(chain: Chain) -> Job:
    return replace(chain.job, where=chain.chance.choice(["driver", "executors"]), answer_s=0.1)


def _progress(chain: Chain, child: Child, marked: int) -> None:
    """Wait until the plain target has one more batch."""
    child.wait_until(lambda: _fed(chain) and chain.seen().marked > marked, "a batch was delivered")


def _goes_on(chain: Chain, child: Child) -> bool:
    """Wait until the plain target has one more batch. Return False if the driver ended instead, which loses nothing."""
    marked = chain.seen().marked
    child.wait_until(lambda: _fed(chain) and (chain.seen().marked > marked or not child.running), "it went on")
    return child.running


def _fed(chain: Chain) -> bool:
    chain.feed_ahead(chain.seen())
    return True


def _cause(child: Child) -> str:
    """Return the error with which a driver ended. A driver without an error is reported by its exit code."""
    lines = [line for line in child.output.splitlines() if line.startswith(LEFT_BY)]
    if not lines:
        return f"exit code {child.wait()} and no message"
    if "CONCURRENT_STREAM_LOG_UPDATE" in child.output:
        return "Spark's CONCURRENT_STREAM_LOG_UPDATE"
    return lines[-1].removeprefix(LEFT_BY).partition(":")[0]


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "drivers killed",
        "SIGKILL of a driver and all its processes at any moment loses no row, repeats none on exactly-once sinks, "
        "and repeats at most one chunk per in-flight segment on a plain sink",
        "kill",
        killed_drivers,
    ),
    executors.SCENARIO,
    Scenario(
        "two drivers, one WAL",
        "of two live drivers one ends with an error; no row is lost, and repeats stay within the permitted number",
        "pair",
        two_drivers,
    ),
    Scenario(
        "a driver that slept",
        "a driver that is stopped and woken after a newer driver finished sends at most one chunk per segment",
        "sleeper",
        sleeping_drivers,
    ),
)

"""Eight racers create the same object, ten thousand times per store: one wins, and all read the winner's bytes.

If several processes may write to a store, the racers are processes. If the store is the memory of one process, they are
threads. The generic store creates atomically between processes only on cloud protocols that have no server here (gs,
abfs). Elsewhere it promises one winner among the threads of a process, and this is what the race tests.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos.racing import WON, race, race_in_process
from tests.chaos.s3_world import empty_s3_server
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.house.stores import GenericStore, Store, StoreSpec, open_store

RACERS = 8
ROUNDS = 10_000
_STARTS_WITHIN_S = 60.0
_ROUND_WITHIN_S = 5.0


def judge(seen: Sequence[bytes], rounds: int) -> Outcome:
    """Judge the findings of the racers, two bytes a round of each. A racer that did not finish has fewer."""
    outcome = Outcome(rounds=rounds)
    for number, found in enumerate(seen):
        if len(found) != 2 * rounds:
            outcome.violations.append(f"racer {number} saw {len(found) // 2} of {rounds} rounds")
    wins: Counter[int] = Counter()
    for turn in range(min(rounds, *(len(found) // 2 for found in seen))):
        winners = [number for number, found in enumerate(seen) if found[2 * turn] == WON]
        owners = {found[2 * turn + 1] for found in seen}
        wins.update(winners)
        outcome.lost += not winners
        outcome.repeated += max(0, len(winners) - 1)
        if len(winners) != 1 or owners != set(winners):
            outcome.violations.append(f"round {turn}: won by {winners}, read the objects of {sorted(owners)}")
    outcome.detail = f"wins by racer {[wins[number] for number in range(len(seen))]}"
    return outcome


def race_processes(spec: StoreSpec, rounds: int, folder: Path, *, count: int = RACERS) -> Outcome:
    """Race in separate processes. Each is ended in any case."""
    context = multiprocessing.get_context("spawn")
    meeting = context.Barrier(count)
    results = [folder / f"racer-{number}.bin" for number in range(count)]
    racers = [
        context.Process(target=race_in_process, args=(spec, number, rounds, meeting, result), daemon=True)
        for number, result in enumerate(results)
    ]
    try:
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(_STARTS_WITHIN_S + rounds * _ROUND_WITHIN_S)
    finally:
        _end(racers)
    return judge([result.read_bytes() if result.exists() else b"" for result in results], rounds)


def race_threads(store: Store, rounds: int) -> Outcome:
    meeting = threading.Barrier(RACERS)
    with ThreadPoolExecutor(RACERS) as pool:
        seen = list(pool.map(lambda number: race(store, number, rounds, meeting), range(RACERS)))
    return judge(seen, rounds)


def _end(racers: Sequence[BaseProcess]) -> None:
    for racer in racers:
        if racer.pid is not None:
            racer.kill()
            racer.join(10)
            racer.close()


def _local(effort: Effort) -> Outcome:
    store, results = effort.folder / "store", effort.folder / "results"
    results.mkdir(parents=True)
    return race_processes(StoreSpec(str(store)), effort.times(ROUNDS), results)


def _s3(effort: Effort) -> Outcome:
    return race_on_s3(effort.times(ROUNDS), effort.folder)


def race_on_s3(rounds: int, folder: Path, *, count: int = RACERS) -> Outcome:
    """Race on a separate S3 server."""
    with empty_s3_server() as server:
        spec = StoreSpec(f"s3://{server.bucket}/race", server.storage_options)
        outcome = race_processes(spec, rounds, folder, count=count)
        if (there := len(server.objects())) != rounds:
            outcome.violations.append(f"{there} objects after {rounds} rounds")
        return outcome


def _memory(effort: Effort) -> Outcome:
    return race_threads(open_store(StoreSpec(f"memory://race-{effort.seed}-{id(effort)}")), effort.times(ROUNDS))


def _generic(effort: Effort) -> Outcome:
    spec = StoreSpec(f"memory://generic-race-{effort.seed}-{id(effort)}/wal", single_writer=True)
    return race_threads(GenericStore(spec), effort.times(ROUNDS))


SCENARIOS: Sequence[Scenario] = (
    Scenario("race for one object: local files", "one of 8 processes wins, and all read its bytes", "race", _local),
    Scenario("race for one object: S3", "one of 8 processes wins, and all read its bytes", "race", _s3),
    Scenario("race for one object: memory", "one of 8 threads wins, and all read its bytes", "race", _memory),
    Scenario("race for one object: generic store", "one of 8 threads wins, and all read its bytes", "race", _generic),
)

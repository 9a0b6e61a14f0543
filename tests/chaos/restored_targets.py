"""Targets that are restored to a backup, and a catch-up that is killed: at each of its requests, or at random moments.

Each round begins with the same WAL and the same restored target. The command is killed. Then it is run again, two more
batches are drained, `verify` looks, and the target's own client counts the rows.

A request is one to the store of the WAL, or one to the target: a look at its ledger, or a chunk. A process dies before
each of them, and after each that had an effect.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.chaos.dying import Steps
from tests.chaos.forgetting import spans
from tests.chaos.lives import tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.house.cli import main
from tests.house.log import paths
from tests.house.sinks import Chunk, Position, Rejected
from tests.house.stores import open_store
from tests.support.forked import ForkedChild
from tests.support.processes import Child, python_environment
from tests.support.restored import ROWS, WHY, InFile, OnServer, Restorable, Site
from tests.support.servers.databases import PostgresqlServer, servers_folder
from wal_sink.cli import opened
from wal_sink.testing import FaultyStore
from wal_sink_backends import SqlSink

KEPT = 3
"""The batches that the backup has."""
LOST = 3
"""The batches that the restored target lacks, for kills at every request."""
MANY = 20
"""The same for kills at random moments, so that most of the time goes into sending."""
MORE = 2
"""The batches that follow."""
KILLS = 30
LEAST_HITS = 1 / 3
"""The least share of random kills after which the target had some of the lost rows."""
EARLY = 1 / 6
"""The approximate share of random kills before the command has written anything."""
WHOLE_FROM = 0.2
"""The least share of the whole that tries every request. A smaller share tries every n-th."""
LIMIT_S = 120.0
NAME = "default"
SAME = "by the same command"
TAKING_OVER = "by the same command with --take-over"
SOME = "the target had some of the lost rows"
LATE = "it had ended before"
_POINT = "point: "


class Ground:
    """A site whose target was restored. Each round begins in the same state."""

    def __init__(self, folder: Path, target: Restorable, lost: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.site = Site(folder / "site", target)
        self.log = folder / "command.log"
        self.batches = KEPT + lost
        self._restore = self.site.restored(KEPT, self.batches)
        self._copy = folder / "copy"
        shutil.copytree(self.site.folder, self._copy)
        self.reset()

    @property
    def expected(self) -> range:
        """The rows at the end of a round."""
        return range((self.batches + MORE) * ROWS)

    @property
    def order(self) -> Path:
        """The place of the records of what a person ordered."""
        return self.site.wal / paths.changes(NAME)

    def reset(self) -> None:
        """Restore the target to its backup, and WAL and checkpoint to their state at that moment.

        Folders stay, since a store of this process remembers which ones it made.
        """
        self._restore()
        for path in self.site.folder.rglob("*"):
            if path.is_file() and not (self._copy / path.relative_to(self.site.folder)).exists():
                path.unlink()
        shutil.copytree(self._copy, self.site.folder, dirs_exist_ok=True)

    def die(self, deadly: int = 0) -> tuple[int, list[str]]:
        """Run the command in a process that dies at one point. Return its exit code, and the points that it passed."""
        arguments, environment = self.site.command("catch-up", *WHY), dict(self.site.target.environment)
        with ForkedChild(_catch_up, arguments, deadly, log=self.log, env=environment, limit_s=LIMIT_S) as child:
            code = child.wait()
            lines = child.output.splitlines()
        return code, [line.removeprefix(_POINT) for line in lines if line.startswith(_POINT)]

    def kill(self, after_s: float, *, early: bool) -> bool:
        """Run the command and kill it: `early` so long after its start, else after it wrote its order down.

        Return False if it had ended.
        """
        with self.program() as child:
            if not early:
                child.wait_until(lambda: any(self.order.glob("*.json")), "it wrote its order down")
            time.sleep(after_s)
            child.kill()
            code = child.wait()
        assert code in {0, -signal.SIGKILL}, f"it ended with {code}: {child.output}"
        return code != 0

    def program(self) -> Child:
        command = [sys.executable, "-m", "wal_sink.cli", *self.site.command("catch-up", *WHY)]
        return Child(command, log=self.log, env=python_environment(self.site.target.environment), limit_s=LIMIT_S)

    def spans(self) -> tuple[float, float]:
        """Run the command undisturbed. Return the seconds until it wrote its order down, and from then to its end."""
        began_s = time.time()
        with self.program() as child:
            child.succeed()
        (order,) = self.order.glob("*.json")
        (ended,) = self.site.wal.glob(paths.retired("catch-up-*"))
        return order.stat().st_mtime - began_s, ended.stat().st_mtime - order.stat().st_mtime

    def go_on(self) -> tuple[str, int]:
        """Run the same command again, then deliver more batches. Return how it went on, and the rows that it sent."""
        how, result = SAME, self.site.attempt("catch-up", *WHY, "--json")
        if result.exit_code and "--take-over" in result.stderr:
            how, result = TAKING_OVER, self.site.attempt("catch-up", *WHY, "--json", "--take-over")
        assert result.exit_code == 0, f"the same command ended with {result.exit_code}: {result.stderr}"
        self.site.stage(self.batches + MORE)
        self.site.drain()
        assert self.site.verify() == set()
        return how, json.loads(result.stdout)["rows"]


def _catch_up(arguments: Sequence[str], deadly: int) -> None:
    """Run the command, and die at one point of it. Runs in the child process."""
    steps, one_by_one = Steps(deadly), threading.Lock()

    def meet(what: str, where: str) -> None:
        with one_by_one:  # requests may run side by side
            print(f"{_POINT}{what} {where}\n", end="")  # noqa: T201 - read by the process that started this one
            steps.step()

    opened.open_store = lambda spec: FaultyStore(open_store(spec), meet)  # type: ignore[attr-defined]
    look, write = SqlSink.positions_in_ledger, SqlSink.write

    def looking(sink: SqlSink, slots: Sequence[str]) -> Mapping[str, Position]:
        meet("before look", "at the ledger")
        return look(sink, slots)

    def writing(sink: SqlSink, chunk: Chunk) -> Rejected | None:
        meet("before write", chunk.key)
        returned = write(sink, chunk)
        meet("after write", chunk.key)
        return returned

    SqlSink.positions_in_ledger, SqlSink.write = looking, writing  # type: ignore[assignment, method-assign]
    main(arguments)


Target = Callable[[Path], AbstractContextManager[Restorable]]


def killed_at_requests(target_in: Target, effort: Effort) -> Outcome:
    """Play one round for each request of an undisturbed command, or for every n-th."""
    outcome, ways, died = Outcome(), Counter[str](), Counter[str]()
    with target_in(effort.folder) as target:
        ground = Ground(effort.folder, target, LOST)
        points = _undisturbed(outcome, ground)
        every = 1 if effort.share >= WHOLE_FROM else round(WHOLE_FROM / effort.share)
        for number in range(1 + effort.seed % every, len(points) + 1, every):
            ground.reset()
            with _judged(outcome, ground, f"seed {effort.seed}, request {number}, {points[number - 1]}"):
                code, passed = ground.die(number)
                assert code == -signal.SIGKILL, f"it did not die there: it ended with {code}"
                assert len(passed) == number, f"it died at its request {len(passed)}"
                died[" ".join(passed[-1].split(" ")[:2])] += 1
                ways[ground.go_on()[0]] += 1
            outcome.rounds += 1
    tried = "each was tried" if every == 1 else f"every {every}th was tried"
    outcome.detail = "\n".join(
        [
            f"- requests of an undisturbed catch-up: {len(points)}; {tried}",
            tally("died", died),
            tally("completed", ways),
        ]
    )
    return outcome


def _undisturbed(outcome: Outcome, ground: Ground) -> list[str]:
    """Run the command once without a death. Return its requests."""
    points: list[str] = []
    with _judged(outcome, ground, "undisturbed"):
        code, points = ground.die()
        assert code == 0, f"it ended with {code}"
        kinds = {point.split(" ")[1] for point in points}
        assert kinds >= {"create", "read", "list", "look", "write"}, f"it made only these kinds of requests: {kinds}"
        ground.go_on()
    return points


def killed_at_random(target_in: Target, effort: Effort) -> Outcome:
    """Kill the command at random moments, and some more times if too few kills came amid its work."""
    outcome, ways, met = Outcome(), Counter[str](), Counter[str]()
    chance, kills = random.Random(effort.seed), effort.times(KILLS)
    with target_in(effort.folder) as target:
        ground = Ground(effort.folder, target, MANY)
        start_s, work_s = ground.spans()
        for number in range(2 * kills):
            if outcome.rounds >= kills and met[SOME] >= LEAST_HITS * kills:
                break
            early = chance.random() < EARLY
            after_s = chance.uniform(0, start_s if early else work_s)
            ground.reset()
            died = False
            with _judged(outcome, ground, f"seed {effort.seed}, round {number}, after {after_s:.3f} s"):
                died = ground.kill(after_s, early=early)
                ordered = any(ground.order.glob("*.json"))
                how, due = ground.go_on()
                met[_met(due, ordered=ordered) if died else LATE] += 1
                ways[how] += 1
            outcome.rounds += died
    spent = f"- an undisturbed catch-up writes its order down after {start_s:.2f} s, and ends {work_s:.2f} s later"
    outcome.detail = "\n".join([spent, tally("state after the kill", met), tally("completed", ways)])
    if outcome.rounds < kills:
        outcome.violations.append(f"seed {effort.seed}: only {outcome.rounds} of {kills} kills came before the end")
    if met[SOME] < LEAST_HITS * kills:
        outcome.violations.append(f"seed {effort.seed}: only {met[SOME]} of {kills} kills came amid the rows")
    return outcome


def _met(due: int, *, ordered: bool) -> str:
    """Tell how far a catch-up had come when it was killed, by the rows that were still due."""
    if not ordered:
        return "no order was written down"
    if due == MANY * ROWS:
        return "the target had none of the lost rows"
    return SOME if due else "the target had every lost row"


@contextmanager
def _judged(outcome: Outcome, ground: Ground, name: str) -> Iterator[None]:
    """Play a round, which the block holds, and count the rows at its end."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any error is a finding
        outcome.violations.append(f"{name}: {type(error).__name__}: {error}")
    count(outcome, name, ground.site.rows(), ground.expected)


def count(outcome: Outcome, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
    """Compare the rows in the target with those of the batches."""
    times = Counter(found)
    lost, foreign = set(expected) - times.keys(), times.keys() - set(expected)
    repeated = [row for row, number in sorted(times.items()) if number > 1]
    outcome.lost += len(lost)
    outcome.repeated += len(found) - len(times)
    for what, rows in (("lost", sorted(lost)), ("twice", repeated), ("sent by nobody", sorted(foreign))):
        if rows:
            outcome.violations.append(f"{name}: ids {spans(rows)} {what}")


@contextmanager
def postgresql(folder: Path) -> Iterator[Restorable]:  # noqa: ARG001 - has its own
    with servers_folder() as place, PostgresqlServer(place / "server") as server:
        yield OnServer(server, server.new_database())


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Restorable]:
    yield InFile(folder / "target.db")


TARGETS: Mapping[str, Target] = {"PostgreSQL": postgresql, "SQLite": sqlite_file}
SCENARIOS = [
    Scenario(
        name=f"{name} restored: catch-up killed {when}",
        law="the same command completes it, the stream goes on, and each row is in the target once",
        unit="kill",
        run=partial(run, target_in),
    )
    for name, target_in in TARGETS.items()
    for when, run in (("at every request", killed_at_requests), ("at random", killed_at_random))
]

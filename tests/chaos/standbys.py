"""Two drains that stand by for each other, and a live query, on one WAL: killed in turn."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.support.processes import Child, ChildError
from tests.support.streams import SESSION, Home

KILLS = 30
LEASE_S = 1.5
LIMIT_S = 240.0
LONGEST_DELAY_S = 1.5
FILES = 3
"""Files that the source gets for each life. Each becomes a batch."""
ROWS = 25
NAME = "rows"
DRAINS = ("drain A", "drain B")
QUERY = "query"
QUERY_PROGRAM = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
from wal_sink import Settings
from wal_sink_backends import SqlSink

home, how = Home(Path(sys.argv[1])), sys.argv[2]
to = {"rows": SqlSink(f"sqlite:///{home.root / 'out.db'}", "rows")} if how == "serves" else None
with home.sink(to, settings=Settings(chunk_rows=7)) as sink:
    writer = home.feed.stream(spark).writeStream
    sink.run(writer.trigger(availableNow=True) if how == "ends" else writer)
"""
)


@dataclass
class Crowd:
    """The processes, one of each name, and their rows."""

    home: Home
    chance: random.Random
    stack: ExitStack
    living: dict[str, Child] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    fed: int = 0

    def start(self, name: str, how: str = "") -> Child:
        """Start a process anew. `how`: what a query does."""
        self.lives[name] += 1
        log = self.home.root / f"{name.replace(' ', '-')}-{self.lives[name]}.log"
        if name == QUERY:
            child = Child.python(QUERY_PROGRAM, self.home.root, how, log=log, limit_s=LIMIT_S)
        else:
            child = Child([sys.executable, "-m", "wal_sink.cli", *self._drain()], log=log, limit_s=LIMIT_S)
        self.living[name] = self.stack.enter_context(child)
        return child

    def _drain(self) -> list[str]:
        target = f"sqlite:///{self.home.root / 'out.db'}?table=rows"
        told = ["--checkpoint", str(self.home.checkpoint), "--start-from", "earliest", "--name", NAME]
        standby = ["--follow", "--standby", "--lease", f"{LEASE_S:g}"]
        return ["drain", str(self.home.wal), "--to", target, *told, *standby]

    def feed(self) -> None:
        for _ in range(FILES):
            self.home.feed.add(range(self.fed, self.fed + ROWS))
            self.fed += ROWS

    def delivered(self) -> list[int]:
        """Return every row of the target."""
        file = self.home.root / "out.db"
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as target:
            if not target.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchall():
                return []
            return [number for (number,) in target.execute("SELECT id FROM rows")]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. No process may end by itself meanwhile."""

        def look() -> bool:
            for name, child in self.living.items():
                if not child.running:
                    raise ChildError(f"{name} ended by itself with {child.wait()}\n{child.output[-2000:]}")
            return condition()

        next(iter(self.living.values())).wait_until(look, what)


def killed_in_turn(effort: Effort) -> Outcome:
    """Kill one of the three after the other, at random moments, and start it again."""
    chance = random.Random(effort.seed)
    kills = effort.times(KILLS, least=3)
    outcome = Outcome()
    served: Counter[str] = Counter()
    with ExitStack() as stack:
        crowd = Crowd(Home(effort.folder), chance, stack)
        try:
            for name in (*DRAINS, QUERY):
                crowd.start(name, "stages")
            for number in range(kills):
                _kill(crowd, (*DRAINS, QUERY)[number % 3], served)
                outcome.rounds += 1
            _finish(crowd)
        except (ChildError, AssertionError) as error:
            print(error, file=sys.stderr)  # noqa: T201 - for the terminal, not for the report
            outcome.violations.append(f"seed {effort.seed}, kill {outcome.rounds}: {str(error).splitlines()[0]}")
        came = crowd.delivered()
    outcome.lost = len(set(range(crowd.fed)) - set(came))
    outcome.repeated = len(came) - len(set(came))
    terms = len(
        [each for each in (effort.folder / f"wal/terms/committer-{NAME}").iterdir() if "ended" not in each.name]
    )
    outcome.detail = f"- rows {crowd.fed}, batches {crowd.fed // ROWS}, take-overs {terms - 1}\n- lives: " + ", ".join(
        f"{name} {times}" for name, times in (crowd.lives + served).items()
    )
    return outcome


def _kill(crowd: Crowd, name: str, served: Counter[str]) -> None:
    """Give work, wait until some of it arrived, kill the process at a random moment and start it again."""
    before = len(crowd.delivered())
    crowd.feed()
    crowd.wait(lambda: len(crowd.delivered()) > before, "rows of this round are delivered")
    time.sleep(crowd.chance.uniform(0.0, LONGEST_DELAY_S))
    crowd.living.pop(name).kill()
    how = crowd.chance.choice(["stages", "serves"])
    if name == QUERY:
        served[f"query that {how}"] += 1
    crowd.start(name, how)


def _finish(crowd: Crowd) -> None:
    """The query reads what is left, the drains deliver it, and each of them ends in order."""
    crowd.living.pop(QUERY).kill()
    crowd.start(QUERY, "ends").succeed()
    crowd.living.pop(QUERY)
    crowd.wait(lambda: len(set(crowd.delivered())) == crowd.fed, "every row is delivered")
    for name in DRAINS:
        child = crowd.living.pop(name)
        child.send(signal.SIGTERM)
        code = child.wait()
        if code != 0 or "ended by SIGTERM: no batch is pending" not in child.output:
            raise ChildError(f"{name} ended with {code}, expected 0\n{child.output[-2000:]}")


SCENARIOS = (
    Scenario(
        "two standbys and a query",
        "of two drains that stand by for each other and a live query, killed in turn, the others go on: a "
        "transactional sink loses no row and gets none twice",
        "kill",
        killed_in_turn,
    ),
)

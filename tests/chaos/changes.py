"""One scenario per target of change streams: processes deliver a long history and replay its dead letters.

Both are killed. In the end each row of the target is compared with a model.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
from boto3.dynamodb.types import TypeDeserializer

from tests.chaos.backend_deaths import EARLY_S, KILLS, LEAST_HITS, SPARE, Death, Lives, Target, early, tell
from tests.chaos.backend_life import NAME
from tests.chaos.backends import REDIS_VARIABLE
from tests.chaos.change_life import CHANGES, live, replay
from tests.chaos.lives import tally
from tests.chaos.moments import Seen
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.house.log import paths
from tests.support.change_history import KEY, NEWER_BY, Change, Model, Row, batches_of, history, rows_of, table_of
from tests.support.delta_tables import rows_in
from tests.support.forked import ForkedChild
from tests.support.processes import Child
from tests.support.servers.databases import PASSWORD as SQL_PASSWORD
from tests.support.servers.databases import (
    PASSWORD_VARIABLE,
    DatabaseServer,
    MariadbServer,
    PostgresqlServer,
    servers_folder,
)
from tests.support.servers.dynamodb_local import LOCAL_ACCESS, DynamoDbLocal
from tests.support.servers.dynamodb_server import REGION
from tests.support.servers.redis_server import PASSWORD as REDIS_PASSWORD
from tests.support.servers.redis_server import RedisServer
from wal_sink.operate.replay import DeadLetters

ROWS, KEYS = 200_000, 5_000
BATCH_ROWS = 1_500
BAD = 1 / 400
"""The share of changes that arrive with a wrong operation or position."""
STREAM = {"newer_by": ",".join(NEWER_BY), "operation": "op"}
READ = TypeDeserializer().deserialize
_ROWS = "SELECT shop, id, file, pos, note FROM changes"
_query = partial(urlencode, safe="{},")  # a comma separates names only if it is not quoted


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Target]:
    path = folder / "target.db"

    def rows() -> Sequence[Row]:
        with closing(sqlite3.connect(path)) as database:
            return [Row(*values) for values in database.execute(_ROWS)]

    yield Target(f"sqlite:///{path}?{_sql_options()}", list, {}, rows)


def _sql_options(**more: str) -> str:
    return _query({"table": "changes", "mode": "upsert", "key": ",".join(KEY), **STREAM, **more})


@contextmanager
def sql_server(kind: type[DatabaseServer], folder: Path) -> Iterator[Target]:  # noqa: ARG001
    with servers_folder() as place, kind(place / "server") as server:
        database = server.new_database()
        url = server.url(database, options=_sql_options(password_env=PASSWORD_VARIABLE))
        yield Target(
            url,
            list,
            {PASSWORD_VARIABLE: SQL_PASSWORD},
            lambda: [Row(*values) for values in server.query(database, _ROWS)],
        )


@contextmanager
def dynamodb_table(folder: Path) -> Iterator[Target]:
    with DynamoDbLocal(folder / "dynamodb") as server:
        table = server.new_table()
        options = {"region": REGION, "endpoint_url": server.endpoint, "ledger_table": f"{table}-ledger", **STREAM}

        def rows() -> Sequence[Row]:
            return rows_of({name: READ(value) for name, value in item.items()} for item in server.items(table))

        access = {name.upper(): value for name, value in LOCAL_ACCESS.items()}
        yield Target(f"dynamodb://{table}?{_query(options)}", list, access, rows)


@contextmanager
def redis_hashes(folder: Path) -> Iterator[Target]:
    with RedisServer(folder / "redis") as server, server.client() as client:
        options = _query({"key": "changes:{id}", "password_env": REDIS_VARIABLE, **STREAM})

        def rows() -> Sequence[Row]:
            return rows_of(client.hgetall(key) for key in client.scan_iter("changes:*", count=1_000))

        yield Target(f"{server.url}?{options}", list, {REDIS_VARIABLE: REDIS_PASSWORD}, rows)


@contextmanager
def delta_table(folder: Path) -> Iterator[Target]:
    marks = {"newer_by": STREAM["newer_by"], "delete_when": "gone", "on_delete": "mark", "create": "true"}
    options = _query({"mode": "upsert", "key": "id", **marks})
    yield Target(
        f"delta://{quote(str(folder / 'table'))}?{options}", list, {}, lambda: rows_of(rows_in(folder / "table"))
    )


def with_bad_rows(changes: Sequence[Change], chance: random.Random) -> tuple[pa.Table, int]:
    """The rows of the query, with operations and positions as they are sent, some of them wrong; and how many are.

    A row is never bad if another one of its version has other values: the order of the two would count.
    """
    notes = defaultdict[tuple[Any, ...], set[str | None]](set)
    for one in changes:
        if not one.is_delete:
            notes[(*one.key, *one.version)].add(one.note)
    sent: list[tuple[str | None, int | None]] = []
    bad = 0
    for one in changes:
        is_bad = chance.random() < BAD and len(notes[(*one.key, *one.version)]) < 2
        sent.append(chance.choice([("?", one.pos), (None, one.pos), (one.op, None)]) if is_bad else (one.op, one.pos))
        bad += is_bad
    ops, positions = zip(*sent, strict=True)
    table = table_of(changes).append_column("sent_op", pa.array(ops, pa.string()))
    return table.append_column("sent_pos", pa.array(positions, pa.int64())), bad


def killed_in_history(
    target_in: Callable[[Path], AbstractContextManager[Target]], effort: Effort, *, mark: bool = False
) -> Outcome:
    """Kill drivers that deliver a history, and replays of its dead letters between and beside them. Then let both end.

    `mark`: the target takes whole segments, so it has no dead letters, and deletes mark their rows.
    """
    effort.folder.mkdir(parents=True, exist_ok=True)
    kills, rows, chance = effort.times(KILLS, least=2), effort.times(ROWS), random.Random(effort.seed)
    size = min(BATCH_ROWS, rows // (4 * (kills + SPARE)))
    changes = history(effort.seed, changes=rows, keys=effort.times(KEYS), lateness=2 * size)[:rows]
    table, bad = (table_of(changes, flag="gone"), 0) if mark else with_bad_rows(changes, chance)
    pq.write_table(table, effort.folder / CHANGES, row_group_size=size)
    model, batches = Model(mark=mark), list(batches_of(changes, size))
    for part in batches:
        model.apply(part)
    with target_in(effort.folder) as target:
        lives = Lives(effort, target, live)
        replays = Replays(effort.folder, target, chance)
        for number in range(kills + SPARE):
            if number >= kills and lives.hits >= LEAST_HITS * kills:
                break
            latest = len(batches) - 3 * (kills + SPARE - number)
            death = early if number % 3 == 1 else reaching(min(latest, len(batches) * number // kills))
            with replays.beside() if bad and number else nullcontext():
                if not lives.end_by(death):
                    return lives.outcome
        lives.finish(len(batches))
        if bad:
            replays.finish(lives.outcome, bad)
        compare(lives.outcome, target.rows(), model.rows)
    tell(lives, kills, len(batches))
    lives.outcome.detail += f"\n- changes: {rows:,}; rows in the end: {len(model.rows):,}"
    lives.outcome.detail += "\n" + tally("replays, and rows that they sent", replays.done) if bad else ""
    return lives.outcome


def reaching(batch_id: int) -> Death:
    """Die in the batch after this one, or after the first one that this life completed and delivered."""

    def death(lives: Lives, child: Child, before: Seen) -> float:
        marker = lives.place.wal / paths.marker(NAME, max(before.completed + 1, batch_id))
        child.wait_until(marker.exists, "it delivered a batch that it completed")
        return lives.typical(before).batch_s

    return death


class Replays:
    """Replays of dead letters, one after the other. About every second one is killed."""

    def __init__(self, folder: Path, target: Target, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._folder, self._target, self._chance = folder, target, chance

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Replay while a driver lives, or be killed before."""
        with self._start() as child:
            if dies := self._chance.random() < 0.5:
                self._end(child, dies=True)
            yield
            if not dies:
                self._end(child, dies=False)

    def finish(self, outcome: Outcome, bad: int) -> None:
        """Replay what is left. Each bad row must be in one dead letter, which is sent."""
        with self._start() as child:
            self._end(child, dies=False)
        letters = list(DeadLetters(str(self._folder / "wal"), name=NAME).all())
        self.done["rows"] = sum(letter.chunk.num_rows for letter in letters if letter.replayed)
        if self.done["rows"] != bad or not all(letter.replayed for letter in letters):
            outcome.violations.append(f"{bad} bad rows, {self.done['rows']} of them replayed")

    def _start(self) -> ForkedChild:
        log = self._folder / f"replay-{self.done.total()}.log"
        return ForkedChild(replay, self._folder, self._target.url, log=log, env=self._target.environment)

    def _end(self, child: ForkedChild, *, dies: bool) -> None:
        if dies:
            time.sleep(self._chance.uniform(0, EARLY_S))
            child.kill()
        if not dies or child.wait() == 0:
            child.succeed()
            self.done["finished"] += 1
        else:
            self.done["killed"] += 1


def compare(outcome: Outcome, found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Compare the rows of a target with those of the model. A row that is wrong violates, whatever is wrong with it."""
    keys = Counter(row[:2] for row in found)
    outcome.lost = len({row[:2] for row in expected} - keys.keys())
    outcome.repeated = keys.total() - len(keys)
    if wrong := sorted(set(found) ^ set(expected), key=repr)[:4]:
        outcome.violations.append(f"rows that only the target or only the model has, the first: {wrong}")


_IN: Mapping[str, Callable[[Effort], Outcome]] = {
    "SQLite": partial(killed_in_history, sqlite_file),
    "PostgreSQL": partial(killed_in_history, partial(sql_server, PostgresqlServer)),
    "MariaDB": partial(killed_in_history, partial(sql_server, MariadbServer)),
    "DynamoDB Local": partial(killed_in_history, dynamodb_table),
    "Redis": partial(killed_in_history, redis_hashes),
    "a Delta table": partial(killed_in_history, delta_table, mark=True),
}
SCENARIOS = [
    Scenario(f"change stream into {name}", "the target is as the newest changes, row by row", "kill", run)
    for name, run in _IN.items()
]
